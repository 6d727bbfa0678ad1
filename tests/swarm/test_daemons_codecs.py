"""What real daemons make of a trainer's codec: a name, the choice by measured links, or a word that means nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from daemon_kit import Daemons, PeerProcess, daemons, wait_for
from trainer_kit import ENDLESS, PARTS, TrainerProcess

from ciuic_p2p.core.messages import TOPOLOGIES
from ciuic_p2p.errors import LocalError

VALUES = 200_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    with daemons(tmp_path_factory.mktemp("codecs")) as made:
        yield made


@pytest.fixture(scope="module")
def peers(made: Daemons) -> list[PeerProcess]:
    return list(made.swarm("us", "eu"))


def test_the_link_that_was_measured_chooses_the_codec_and_all_see_why(peers: list[PeerProcess]) -> None:
    run = "auto"
    trainers = [TrainerProcess(peer, part, VALUES, run, "auto") for peer, part in zip(peers, PARTS, strict=False)]
    for trainer in trainers:
        trainer.train_until(ENDLESS)

    def measured(peer: PeerProcess) -> dict[int, str]:
        rounds = peer.rounds(run).items()
        return {epoch: row["reason"] for epoch, row in rounds if "Mbit/s" in row["reason"] and len(row["members"]) == 2}

    wait_for(lambda: measured(peers[0]).keys() & measured(peers[1]).keys(), "both knew their link in one round")
    for trainer in trainers:
        trainer.leave()
    mine, theirs = measured(peers[0]), measured(peers[1])
    assert all(mine[epoch] == theirs[epoch] for epoch in mine.keys() & theirs.keys())
    assert all(row["topology"] in TOPOLOGIES and row["model_error"] > 0 for row in peers[0].rounds(run).values())
    way = r"from (us to eu|eu to us)"
    assert all(re.match(rf"auto: at [\d.]+ Mbit/s {way} int4 is [\d.]+ times as fast as ", reason) for reason in mine.values())
    assert {row["codec"] for row in peers[0].rounds(run).values()} == {"int4"}


def test_a_plan_is_for_all_who_are_here(peers: list[PeerProcess]) -> None:
    foreseen = [peer.view("plan", size_bytes=100_000_000, step_s=0.5) for peer in peers]
    for plan in foreseen:
        assert {row["name"] for region in plan["regions"] for row in region["peers"]} == {"us", "eu"}
        assert plan["predicted_s"] > 0
        assert plan["inner_steps"]["steps"] >= 1
    with pytest.raises(LocalError, match="--size"):
        peers[0].view("plan")


def test_the_codec_that_was_named_is_used_and_called_so(peers: list[PeerProcess]) -> None:
    trainer = TrainerProcess(peers[0], PARTS[0], VALUES, "named", "int8")
    trainer.train_until(2)
    trainer.wait_for_epoch(2)
    trainer.leave()
    rounds = peers[0].rounds("named").values()
    assert {row["codec"] for row in rounds} == {"int8"}
    assert all(row["reason"].startswith("int8: asked for by the trainer") for row in rounds)


def test_another_word_is_refused_with_what_there_is(peers: list[PeerProcess]) -> None:
    refused = TrainerProcess(peers[0], PARTS[0], VALUES, "misspelt", "int3").ended
    assert refused["kind"] == "ConfigError"
    assert refused["error"].startswith("there is no codec 'int3'; choose one of auto, source, float32, ")
    assert peers[0].run("misspelt") == {}
