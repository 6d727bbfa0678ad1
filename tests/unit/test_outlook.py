"""What `ciuic-peer plan` says of a network, and what it cannot be asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ciuic_p2p.core.planning.network import Network
from ciuic_p2p.core.topology import Link, Place
from ciuic_p2p.daemon.outlook import LARGEST_BYTES, Question, foresee
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.terms import PeerId

PEERS = tuple(PeerId(f"{region}{number}") for region in ("us", "eu", "as") for number in range(2))
PAIRS = [(a, b) for a in PEERS for b in PEERS if a != b]
PLACES = {peer: Place(f"node-{peer}", peer[:2]) for peer in PEERS}
OCEANS = {("us", "eu"): 100.0, ("us", "as"): 50.0, ("eu", "as"): 50.0}
LIMITED = Network(
    links={pair: Link(rtt_ms=90.0, goodput_mbps=30.0) for pair in PAIRS},
    places=PLACES,
    lines_mbps=dict.fromkeys(PEERS, 1000.0),
    cables_mbps=OCEANS | {(other, one): mbps for (one, other), mbps in OCEANS.items()},
)


def ask(network: Network, peers: tuple[PeerId, ...] = PEERS, step_s: float | None = None) -> dict[str, Any]:
    answer = foresee(Question(size_bytes=500_000_000, step_s=step_s), peers, network)
    assert json.loads(json.dumps(answer)) == answer
    return answer


def test_over_narrow_oceans_it_tells_of_stages_carriers_and_shares() -> None:
    answer = ask(LIMITED)
    assert (answer["topology"], answer["codec"]) == ("hierarchical", "int4")
    assert answer["stages"] == [
        "within as 2 send to 2 carriers",
        "within eu 2 send to 2 carriers",
        "within us 2 send to 2 carriers",
        "carriers of as, eu, us send their sums to owners in eu, us",
        "averages come back the same way",
    ]
    assert {region["region"]: region["share"] for region in answer["regions"]} == {"as": 0, "eu": 0.5, "us": 0.5}
    assert all(peer["carries"] == pytest.approx(0.5, abs=1e-3) for region in answer["regions"] for peer in region["peers"])
    assert {a["topology"] for a in answer["alternatives"]} == {"butterfly", "star", "hierarchical", "ring", "gossip"}
    assert [a["topology"] for a in answer["alternatives"] if a["chosen"]] == ["hierarchical"]
    assert [a["topology"] for a in answer["alternatives"] if a["barred"]] == ["ring", "gossip"]
    assert answer["inner_steps"] is None


def test_with_a_step_time_it_suggests_how_many_steps_a_round_is_worth() -> None:
    answer = ask(LIMITED, step_s=0.5)
    suggested = answer["inner_steps"]
    assert suggested["steps"] == -(-answer["predicted_s"] // (0.25 * 0.5))
    assert suggested["round_share"] <= 0.25
    assert str(suggested["steps"]) in suggested["advice"]


def test_where_oceans_are_wide_each_sends_to_each() -> None:
    answer = ask(Network(links=LIMITED.links, places=PLACES, lines_mbps=LIMITED.lines_mbps))
    assert answer["stages"] == ["each of 6 sends to each of 6 owners", "owners send the averages to all"]


def test_alone_nothing_travels() -> None:
    answer = ask(Network(), PEERS[:1])
    assert answer["stages"] == ["nobody else is here: nothing travels"]
    assert answer["transfer_s"] == 0


@pytest.mark.parametrize("size_bytes", [0, 3, -1, LARGEST_BYTES + 1, True, 4.0, "500MB", None])
def test_a_size_that_cannot_be_planned_is_refused_with_the_remedy(size_bytes: Any) -> None:
    with pytest.raises(ConfigError, match="--size"):
        Question.from_options({"size_bytes": size_bytes})


@pytest.mark.parametrize("step_s", [0, -1.0, float("nan"), float("inf"), True, "1s"])
def test_a_step_time_that_is_none_is_refused_with_the_remedy(step_s: Any) -> None:
    with pytest.raises(ConfigError, match="--step-time"):
        Question.from_options({"size_bytes": 4, "step_s": step_s})


def test_the_smallest_and_the_largest_model_have_plans() -> None:
    for size_bytes in (4, LARGEST_BYTES):
        assert foresee(Question(size_bytes=size_bytes), PEERS, LIMITED)["alternatives"]
