"""From measurements to plans: lines, cables, regions, and the figures that a reader can check by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pytest

from ciuic_p2p.core.codec_choice import SPEEDS
from ciuic_p2p.core.messages import BUTTERFLY, HIERARCHICAL, LEAST_LINE_MBPS, RING, STAR, Plan, encode
from ciuic_p2p.core.parts import choose_part_values
from ciuic_p2p.core.planning.correction import LEAST, MOST, REMEMBERED, TRUSTED, Correction
from ciuic_p2p.core.planning.draft import ALIGNMENT_VALUES, cut
from ciuic_p2p.core.planning.geography import NEAREST_RTT_MS, UNKNOWN_RTT_MS, assume_rtt_ms, place_region
from ciuic_p2p.core.planning.gossip import GOSSIP, choose_grid, count_rounds_to_mix, gossip_groups
from ciuic_p2p.core.planning.network import ALIKE, LONGEST_MS, MOST_REGIONS, UNMEASURED_MBPS, Network, survey_ground
from ciuic_p2p.core.planning.planner import HYSTERESIS, PATIENCE_FACTOR, Planned, RoundToPlan, plan_round
from ciuic_p2p.core.planning.ring import order_regions
from ciuic_p2p.core.planning.simplex import maximise
from ciuic_p2p.core.planning.suggestion import MANY_STEPS, ROUND_SHARE, suggest_inner_steps
from ciuic_p2p.core.topology import LEAST_PATIENCE_S, Link, Links, Place
from ciuic_p2p.lab.topology import Topology, read_topology, shipped_topology
from ciuic_p2p.terms import UNKNOWN_REGION, PeerId, StateHash

PEERS = tuple(PeerId(f"peer-{index}") for index in range(4))
COUNT = 10_000_000
ENCODED_BYTES = 40_000_000
OCEAN_BYTES = 50_000_000


def plan(lines_mbps: Sequence[float | None], listeners: int = 0, links: Links | None = None) -> Planned:
    """Of peers without regions: a butterfly."""
    peers = PEERS[: len(lines_mbps)]
    lines = {peer: mbps for peer, mbps in zip(peers, lines_mbps, strict=True) if mbps is not None}
    wanted = RoundToPlan(
        contributors=peers,
        listeners=tuple(PeerId(f"listener-{index}") for index in range(listeners)),
        count=COUNT,
        encoded_bytes=ENCODED_BYTES,
        codec="float32",
    )
    return plan_round(wanted, Network(links=links or {}, lines_mbps=lines))


def sizes(planned: Planned) -> list[int]:
    """Of each owner's spans."""
    owned: dict[PeerId, int] = {}
    for span in planned.spans:
        owned[span.owner] = owned.get(span.owner, 0) + span.stop - span.start
    return [owned.get(peer, 0) for peer in PEERS]


def measure(topology: Topology) -> tuple[tuple[PeerId, ...], Network]:
    """What peers in such a lab would find out, without any noise."""
    peers = tuple(PeerId(host.name) for host in topology.hosts)
    pairs = [(a, b) for a in topology.hosts for b in topology.hosts if a != b]
    network = Network(
        links={(PeerId(a.name), PeerId(b.name)): Link(rtt_ms=2000 * topology.delay_s(a, b)) for a, b in pairs},
        places={PeerId(host.name): Place(host.name, host.region) for host in topology.hosts},
        lines_mbps={PeerId(host.name): min(host.up_mbps, host.down_mbps) for host in topology.hosts},
        cables_mbps={
            pair: mbps
            for cable, mbps in topology.cable_mbps.items()
            for pair in (tuple(cable.split("-")), tuple(reversed(cable.split("-"))))
        },
    )
    return peers, network


def of_float32(peers: tuple[PeerId, ...], size_bytes: int = OCEAN_BYTES, previous: str = BUTTERFLY) -> RoundToPlan:
    return RoundToPlan(contributors=peers, count=size_bytes // 4, encoded_bytes=size_bytes, codec="float32", previous=previous)


def predicted(planned: Planned) -> dict[str, float]:
    return {alternative.topology: alternative.predicted_s for alternative in planned.alternatives}


def ocean_limited() -> tuple[tuple[PeerId, ...], Network]:
    return measure(read_topology(shipped_topology("ocean-limited")))


# -- lines -------------------------------------------------------------------------------------------------------------------


def test_a_line_that_was_not_measured_is_taken_for_a_good_one() -> None:
    # The middle one of those that were,
    assert plan([160.0, 640.0, 2560.0, None]) == plan([160.0, 640.0, 2560.0, 640.0])
    assert plan([None, 640.0, None, None]) == plan([640.0] * 4)
    # but no slower than what is assumed while nothing was measured.
    assert plan([1.0, 4.0, 16.0, None]) == plan([1.0, 4.0, 16.0, UNMEASURED_MBPS])


def test_lines_like_the_middle_one_get_equal_spans() -> None:
    alike = plan([64 / ALIKE + 0.1, 64.0, 64.0, 64 * ALIKE - 0.1])
    assert max(sizes(alike)) - min(sizes(alike)) <= ALIGNMENT_VALUES
    assert alike.spans == plan([64.0] * 4).spans


@pytest.mark.parametrize("factor", [1 / ALIKE - 0.02, ALIKE + 0.02])
def test_a_line_unlike_the_middle_one_gets_another_span(factor: float) -> None:
    unlike = sizes(plan([64.0, 64.0, 64.0, 64 * factor]))
    assert unlike != sizes(plan([64.0] * 4))
    assert (unlike[3] > unlike[0]) == (factor > 1)


def test_noise_does_not_move_spans() -> None:
    assert plan([16.0, 62.0, 68.0, 250.0]).spans == plan([16.4, 66.0, 63.0, 260.0]).spans


def test_a_quicker_line_reduces_more() -> None:
    found = sizes(plan([32.0, 64.0, 128.0, 256.0]))
    assert found == sorted(found)
    assert found[0] < found[3]


def test_measured_lines_go_before_pairs() -> None:
    links = {(PEERS[0], PEERS[1]): Link(rtt_ms=0.0, goodput_mbps=1.0)}
    assert plan([8.0, 8.0, 8.0], links=links) == plan([8.0, 8.0, 8.0])


def test_without_measured_lines_all_are_as_quick_as_the_quickest_pair() -> None:
    near = Link(rtt_ms=100.0, goodput_mbps=1024.0)
    links = {(a, b): near for a in PEERS[:3] for b in PEERS[:3] if a != b}
    assert plan([None] * 3, links=links) == plan([1024.0] * 3, links=links)
    nothing = plan([None] * 3)
    assert max(sizes(nothing)[:3]) - min(sizes(nothing)[:3]) <= ALIGNMENT_VALUES
    # Each sends its contribution to two spans, and its result to two others: 4/3 of the tensor.
    assert nothing.transfer_s == pytest.approx(4 / 3 * ENCODED_BYTES * 8 / (UNMEASURED_MBPS * 1e6), rel=1e-3)


def test_without_measured_lines_the_middle_goodput_of_a_region_pair_says_how_slow_an_ocean_is() -> None:
    peers = PEERS[:3]
    places = {peer: Place(peer, region) for peer, region in zip(peers, ("us", "us", "eu"), strict=True)}
    across = {pair: Link(goodput_mbps=mbps) for pair, mbps in (((peers[0], peers[2]), 16.0), ((peers[2], peers[1]), 48.0))}
    links = {**across, (peers[0], peers[1]): Link(goodput_mbps=1000.0)}
    ground = survey_ground(Network(links=links, places=places), peers, ())
    assert ground.pairs_mbps == {(0, 1): 32.0, (1, 1): 1000.0}
    planned = plan_round(of_float32(peers), Network(links=links, places=places))
    # A pair moves a contribution to a third of the tensor and the result of another third.
    direct = next(a for a in planned.alternatives if a.topology == BUTTERFLY)
    assert direct.bound_by == "a pair of eu and us"
    assert direct.predicted_s > 2 / 3 * OCEAN_BYTES * 8e-6 / 32


# -- seconds -----------------------------------------------------------------------------------------------------------------


def test_listeners_prolong_a_round() -> None:
    alone = plan([64.0] * 4)
    # Each of four equal owners sends each listener a quarter of the tensor.
    to_one_s = ENCODED_BYTES * 8 / 4 / 64e6
    for listeners in (1, 3):
        heard = plan([64.0] * 4, listeners)
        assert heard.spans == alone.spans
        assert heard.transfer_s == pytest.approx(alone.transfer_s + listeners * to_one_s, rel=1e-3)
        assert heard.patience_s > alone.patience_s


def test_a_peer_alone_needs_time_for_its_listeners_and_its_processor_only() -> None:
    alone = plan([64.0])
    assert alone.transfer_s == 0
    assert 0 < alone.predicted_s < 0.1
    assert (alone.topology, sizes(alone)[0]) == (BUTTERFLY, COUNT)
    assert plan([64.0], listeners=2).predicted_s == pytest.approx(2 * ENCODED_BYTES * 8 / 64e6)


def test_patience_is_for_the_predicted_time_the_path_and_its_jitter() -> None:
    links = {(PEERS[0], PEERS[1]): Link(rtt_ms=200.0, jitter_ms=50.0), (PEERS[1], PeerId("stranger")): Link(rtt_ms=9000.0)}
    near = plan([64.0, 64.0], links={(PEERS[0], PEERS[1]): Link(rtt_ms=20.0)})
    far = plan([64.0, 64.0], links=links)
    assert far.predicted_s == pytest.approx(near.predicted_s + 0.18)
    assert far.patience_s == pytest.approx(PATIENCE_FACTOR * far.predicted_s + 0.3)
    assert plan([100_000.0] * 2).patience_s == LEAST_PATIENCE_S


def test_a_pairs_values_are_those_of_the_slowest_line() -> None:
    # 4 bytes a value: 32 Mbit/s for three others are a third of a million values a second each.
    assert plan([32.0, 512.0, 512.0, 512.0]).values_per_s == pytest.approx(1e6 / 3)


@pytest.mark.parametrize("said", [1e300, -1e300, 1e-300])
def test_nothing_that_a_member_says_of_its_links_makes_the_others_wait_without_end(said: float) -> None:
    links = {(a, b): Link(rtt_ms=said, jitter_ms=said, goodput_mbps=said) for a in PEERS for b in PEERS if a != b}
    planned = plan([None] * 4, links=links)
    # At the least rate that is taken for one, and with the longest round trips.
    assert 0 < planned.predicted_s < ENCODED_BYTES * 8e-6 * 1.5 / LEAST_LINE_MBPS + 2 * LONGEST_MS / 1000
    assert planned.patience_s < PATIENCE_FACTOR * planned.predicted_s + 6 * LONGEST_MS / 1000 + 1


def test_a_cable_that_is_said_to_carry_nothing_carries_the_least_there_is() -> None:
    peers, network = ocean_limited()
    planned = plan_round(
        of_float32(peers), dataclasses.replace(network, cables_mbps=dict.fromkeys(network.cables_mbps, 1e-300))
    )
    # x_g = 1/3: 2/3 of the tensor over each cable.
    assert planned.transfer_s == pytest.approx(2 / 3 * 400 / LEAST_LINE_MBPS, rel=1e-3)


def test_over_lines_that_are_no_limit_the_processors_are_one() -> None:
    planned = plan([1e6] * 2)
    # Two contributions and a result are half the tensor each, contribution and results in all a whole one.
    coding_s = 4e-9 * COUNT * (1.5 / SPEEDS["float32"].encode_gbps + 2 / SPEEDS["float32"].decode_gbps)
    assert planned.predicted_s > coding_s > planned.transfer_s
    assert "the processors" in planned.reason


# -- the hierarchy -----------------------------------------------------------------------------------------------------------


def test_over_slow_oceans_the_regions_shares_are_the_best_there_are() -> None:
    """By hand: cables of 100, 50, 50 Mbit/s, each carries (x_g + x_h) of 400 Mbit each way.

    Asia's contributions and results must cross 50 + 50: 4 s. With x_us + x_eu = 1 and x_as = 0 the cable between those two
    takes 400/100 = 4 s, and x_us = x_eu = 1/2 makes those to Asia take 200/50 = 4 s. So 4 s are the least, and only so.
    """
    peers, network = ocean_limited()
    planned = plan_round(of_float32(peers), network)
    assert planned.topology == HIERARCHICAL
    assert planned.transfer_s == pytest.approx(4.0, rel=1e-3)
    owned = dict.fromkeys(("us", "eu", "as"), 0)
    for span in planned.spans:
        owned[network.places[span.owner].region] += span.stop - span.start
    assert owned == {"us": pytest.approx(6_250_000, rel=1e-3), "eu": pytest.approx(6_250_000, rel=1e-3), "as": 0}
    # Everybody carries half of what its region has.
    for peer in peers:
        carried = sum(span.stop - span.start for span in planned.spans if peers.index(peer) in span.carriers)
        assert carried == pytest.approx(6_250_000, rel=1e-3)
    # A flat butterfly sends everything across twice: equal spans, (2 · 1/6 + 2 · 1/6) · 2 of the tensor over 50 Mbit/s.
    # The longest round trip is 210 ms, and the last part waits for 50 ms.
    assert predicted(planned)[BUTTERFLY] == pytest.approx(4 / 3 * 400 / 50 + 0.21 + 0.05, rel=1e-3)
    assert "the cable from" in planned.reason


def test_cables_that_are_nearly_alike_get_shares_that_are() -> None:
    """44 and 46 Mbit/s: steps of a fifth between them would make one region own a fifth more, and all wait for its cable."""
    peers, network = ocean_limited()
    cables = dict(network.cables_mbps)
    cables["as", "us"], cables["as", "eu"] = 44.0, 46.0
    planned = plan_round(of_float32(peers), dataclasses.replace(network, cables_mbps=cables))
    owned: dict[str, int] = {}
    for span in planned.spans:
        region = network.places[span.owner].region
        owned[region] = owned.get(region, 0) + span.stop - span.start
    assert owned["us"] / owned["eu"] == pytest.approx(44 / 46, abs=0.02)


def test_quick_oceans_need_no_hierarchy() -> None:
    peers, network = measure(read_topology(shipped_topology("three-regions")))
    planned = plan_round(of_float32(peers), network)
    assert planned.topology == BUTTERFLY
    # Each of six sends 5/6 of its own and five results of a sixth.
    assert planned.transfer_s == pytest.approx(10 / 6 * 400 / 100, rel=1e-3)


def test_unlike_lines_carry_what_they_can() -> None:
    """Two regions of lines of 16 and 64 Mbit/s. With T = S / 16 the slow ones can only send their own contribution."""
    network = Network(
        places={peer: Place(peer, region) for peer, region in zip(PEERS, ("us", "us", "eu", "eu"), strict=True)},
        lines_mbps=dict(zip(PEERS, (16.0, 64.0, 16.0, 64.0), strict=True)),
        cables_mbps={("us", "eu"): 16.0, ("eu", "us"): 16.0},
    )
    planned = plan_round(of_float32(PEERS, size_bytes=16_000_000), network)
    assert planned.topology == HIERARCHICAL
    assert planned.transfer_s == pytest.approx(128 / 16, rel=1e-3)
    assert {span.owner for span in planned.spans} == {PEERS[1], PEERS[3]}
    assert {place for span in planned.spans for place in span.carriers} == {1, 3}


def test_in_a_hierarchy_owners_send_listeners_their_results() -> None:
    """Each of 2 × 2 carries 1/2 and owns 1/4: it sends 1 + 1/2 · (m - 1) + 1/4 · (G - 2 + listeners) of the tensor."""
    network = Network(
        places={peer: Place(peer, region) for peer, region in zip(PEERS, ("us", "us", "eu", "eu"), strict=True)},
        lines_mbps=dict.fromkeys(PEERS, 100.0),
    )
    for listeners, tensors in ((0, 1.5), (2, 2.0)):
        wanted = dataclasses.replace(
            of_float32(PEERS, previous=HIERARCHICAL), listeners=tuple(PeerId(f"listener-{n}") for n in range(listeners))
        )
        planned = plan_round(wanted, network)
        assert planned.topology == HIERARCHICAL
        assert planned.transfer_s == pytest.approx(tensors * 400 / 100, rel=1e-3)


def test_an_edge_of_the_swarm_carries_nothing() -> None:
    peers = tuple(PeerId(f"peer-{index}") for index in range(8))
    slow = peers[0]
    network = Network(
        places={peer: Place(peer, "us" if index < 4 else "eu") for index, peer in enumerate(peers)},
        lines_mbps=dict.fromkeys(peers, 100.0) | {slow: 20.0},
        cables_mbps={("us", "eu"): 5.0, ("eu", "us"): 5.0},
    )
    planned = plan_round(of_float32(peers), network)
    assert planned.topology == HIERARCHICAL
    places = {place for span in planned.spans for place in span.carriers}
    assert places == set(range(8)) - {peers.index(slow)}
    assert any(peers.index(slow) in group for group in planned.groups)


def test_a_peer_without_a_region_is_counted_to_where_it_is_nearest() -> None:
    peers, network = ocean_limited()
    stray = PeerId("as0")
    places = {peer: place for peer, place in network.places.items() if peer != stray}
    planned = plan_round(of_float32(peers), dataclasses.replace(network, places=places))
    assert planned == plan_round(of_float32(peers), network)
    unplaced = survey_ground(Network(), peers, ())
    assert unplaced.regions == (UNKNOWN_REGION,)


def test_a_codec_whose_loss_only_the_sender_makes_good_has_no_hierarchy() -> None:
    peers, network = ocean_limited()
    for codec in ("onebit", "topk"):
        planned = plan_round(dataclasses.replace(of_float32(peers), codec=codec), network)
        assert planned.topology == BUTTERFLY
        assert any(codec in a.barred for a in planned.alternatives if a.topology == HIERARCHICAL)


# -- ring, star, gossip ------------------------------------------------------------------------------------------------------


def test_a_ring_goes_around_the_wide_cables() -> None:
    cables = {("us", "eu"): 100.0, ("eu", "as"): 10.0, ("us", "as"): 100.0, ("sa", "as"): 100.0, ("eu", "sa"): 100.0}
    both_ways = cables | {(other, one): mbps for (one, other), mbps in cables.items()} | {("us", "sa"): 10.0}
    places = {peer: Place(peer, region) for peer, region in zip(PEERS, ("us", "eu", "as", "sa"), strict=True)}
    ground = survey_ground(Network(places=places, cables_mbps=both_ways), PEERS, ())
    order = [ground.regions[region] for region in order_regions(ground)]
    assert order in (["as", "us", "eu", "sa"], ["as", "sa", "eu", "us"])


def test_a_ring_is_for_codecs_that_may_encode_at_each_hop() -> None:
    peers, network = ocean_limited()
    lossless = {a.topology: a.barred for a in plan_round(of_float32(peers), network).alternatives}
    assert lossless[RING] == ""
    lossy = plan_round(dataclasses.replace(of_float32(peers), codec="int4", encoded_bytes=6.45e6), network)
    assert "int4" in {a.topology: a.barred for a in lossy.alternatives}[RING]


def test_a_star_makes_its_centre_send_everything_to_all() -> None:
    peers, network = measure(read_topology(shipped_topology("three-regions")))
    assert predicted(plan_round(of_float32(peers), network))[STAR] == pytest.approx(5 * 400 / 100, rel=0.02)


def test_gossip_is_shown_and_never_chosen() -> None:
    peers, network = ocean_limited()
    planned = plan_round(of_float32(peers, previous=GOSSIP), network)
    gossip = next(a for a in planned.alternatives if a.topology == GOSSIP)
    assert gossip.barred
    assert planned.topology != GOSSIP


@pytest.mark.parametrize(("count", "grid"), [(16, (4, 4)), (64, (8, 8)), (27, (3, 3, 3))])
def test_a_full_grid_has_mixed_after_as_many_rounds_as_it_has_axes(count: int, grid: tuple[int, ...]) -> None:
    assert count_rounds_to_mix(count, grid) == len(grid)


@pytest.mark.parametrize("count", [2, 5, 10, 100, 997, 1000])
def test_gossip_groups_have_everyone_once_each_epoch(count: int) -> None:
    members = [PeerId(str(number)) for number in range(count)]
    grid = choose_grid(count)
    assert math.prod(grid) >= count
    for epoch in range(2 * len(grid)):
        groups = gossip_groups(members, epoch, grid)
        assert sorted(peer for group in groups for peer in group) == sorted(members)
        assert max(map(len, groups)) <= grid[epoch % len(grid)]
    assert count_rounds_to_mix(count, grid) < 3 * len(grid) + 3


def test_a_grid_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        gossip_groups([PeerId(str(number)) for number in range(5)], 0, (2, 2))


# -- choosing ----------------------------------------------------------------------------------------------------------------


def with_cables(mbps: float) -> tuple[tuple[PeerId, ...], Network]:
    peers, network = ocean_limited()
    return peers, dataclasses.replace(
        network, lines_mbps=dict.fromkeys(peers, 100.0), cables_mbps=dict.fromkeys(network.cables_mbps, mbps)
    )


def test_what_is_in_use_stays_until_another_is_clearly_better() -> None:
    def chosen(mbps: float, previous: str) -> tuple[str, float]:
        peers, network = with_cables(mbps)
        planned = plan_round(of_float32(peers, previous=previous), network)
        return planned.topology, predicted(planned)[BUTTERFLY] / predicted(planned)[HIERARCHICAL]

    assert chosen(200.0, HIERARCHICAL)[0] == HIERARCHICAL
    assert chosen(200.0, BUTTERFLY)[0] == BUTTERFLY
    assert chosen(20.0, BUTTERFLY) == (HIERARCHICAL, pytest.approx(2.0, rel=0.05))
    # 2/3 of the tensor times two over 75 Mbit/s against 10/6 over 100: within the hysteresis.
    topology, gain = chosen(75.0, BUTTERFLY)
    assert (topology, 1 < gain < HYSTERESIS) == (BUTTERFLY, True)
    peers, network = with_cables(75.0)
    assert "which stays up to" in plan_round(of_float32(peers), network).reason


def test_experience_corrects_what_is_predicted_and_chosen() -> None:
    peers, network = ocean_limited()
    first = plan_round(of_float32(peers), network)
    correction = Correction()
    for _ in range(3):
        correction = correction.add(HIERARCHICAL, first.predicted_s, 2 * first.predicted_s)
    second = plan_round(dataclasses.replace(of_float32(peers), correction=correction), network)
    assert (second.topology, second.correction) == (HIERARCHICAL, pytest.approx(2.0))
    assert second.predicted_s == pytest.approx(2 * first.predicted_s)
    assert second.transfer_s == first.transfer_s
    assert second.spans == first.spans
    for _ in range(3):
        correction = correction.add(BUTTERFLY, 10.0, 2.5).add(HIERARCHICAL, 1.0, 100.0)
    assert correction.factor(HIERARCHICAL) == MOST
    third = plan_round(dataclasses.replace(of_float32(peers), correction=correction), network)
    assert third.topology == BUTTERFLY


def learned(*rounds: tuple[str, float]) -> Correction:
    """From (topology, ratio)."""
    correction = Correction()
    for topology, ratio in rounds:
        correction = correction.add(topology, 1.0, ratio)
    return correction


def test_a_correction_is_the_middle_of_the_newest_rounds_within_bounds() -> None:
    assert learned().factor(BUTTERFLY) == 1.0
    assert learned(*((BUTTERFLY, ratio) for ratio in (9.0, 1.0, 1.2, 1.4, 1.1, 1.3))).factor(BUTTERFLY) == pytest.approx(1.2)
    assert learned((STAR, 1e-6)).factor(STAR) == LEAST
    assert learned((STAR, 1e6)).factor(STAR) == MOST
    assert learned().add(STAR, 0.0, 1.0) == learned().add(STAR, 1.0, 0.0) == learned()


def test_what_was_hardly_tried_is_as_wrong_as_the_others_and_what_is_long_ago_is_forgotten() -> None:
    flat = ((BUTTERFLY, 1.5),) * 4
    assert learned(*flat).factor(HIERARCHICAL) == 1.5
    assert learned(*flat, (HIERARCHICAL, 3.5)).factor(HIERARCHICAL) == 1.5  # a first round over cold paths
    assert learned(*flat, *((HIERARCHICAL, 3.5),) * TRUSTED).factor(HIERARCHICAL) == 3.5
    assert learned(*((HIERARCHICAL, 3.5),) * TRUSTED, *((BUTTERFLY, 1.5),) * REMEMBERED).factor(HIERARCHICAL) == 1.5


# -- geography ---------------------------------------------------------------------------------------------------------------


def test_before_anything_was_measured_round_trips_follow_the_globe() -> None:
    assert assume_rtt_ms("us", "us") == NEAREST_RTT_MS
    assert assume_rtt_ms("us", "eu") == assume_rtt_ms("eu", "us")
    assert 70 < assume_rtt_ms("us-east-1", "eu-central-1") < 130
    assert assume_rtt_ms("us", "eu") < assume_rtt_ms("us", "as")
    assert assume_rtt_ms("europe-west4", "eastus2") < UNKNOWN_RTT_MS + 20
    assert assume_rtt_ms("basement", "us") == UNKNOWN_RTT_MS


@pytest.mark.parametrize("label", ["basement", "", "usual", "asap", "unknown", "42"])
def test_a_label_that_only_looks_like_a_region_is_nowhere(label: str) -> None:
    assert place_region(label) is None


def test_a_round_trip_that_was_not_measured_is_that_of_its_regions() -> None:
    peers, network = ocean_limited()
    few = {pair: link for pair, link in network.links.items() if pair in (("us0", "eu0"), ("as1", "us0"))}
    ground = survey_ground(dataclasses.replace(network, links=few), peers, ())
    number = {region: index for index, region in enumerate(ground.regions)}
    assert ground.rtt_between_ms(number["us"], number["eu"]) == pytest.approx(90.0)
    assert ground.rtt_between_ms(number["as"], number["us"]) == pytest.approx(160.0)
    assert ground.rtt_between_ms(number["eu"], number["as"]) == assume_rtt_ms("eu", "as")


# -- small and large ---------------------------------------------------------------------------------------------------------


def as_message(planned: Planned, wanted: RoundToPlan) -> Plan:
    return Plan(
        run="run",
        epoch=0,
        term=1,
        base_hash=StateHash("0" * 64),
        contributors=wanted.contributors,
        listeners=wanted.listeners,
        spans=planned.spans,
        topology=planned.topology,
        groups=planned.groups,
        count=wanted.count,
        parameter_count=wanted.count,
        part_values=1 << 18,
        codec=wanted.codec,
        lossless_level=0,
        reason=planned.reason,
        outer_learning_rate=0.7,
        outer_momentum=0.6,
        predicted_s=planned.predicted_s,
        correction=planned.correction,
        patience_s=planned.patience_s,
    )


REGIONS = ("us", "eu", "as", "sa", "af", "au", "in", "ca")


def large_swarm(count: int, cables: Mapping[tuple[str, str], float]) -> tuple[RoundToPlan, Network]:
    peers = tuple(PeerId(f"12D3KooW{number:044d}") for number in range(count))
    places = {peer: Place(f"node-{peer[-4:]}", REGIONS[number * 7 % 8]) for number, peer in enumerate(peers)}
    lines = {peer: 200.0 * (1 + number % 3) for number, peer in enumerate(peers)}
    wanted = RoundToPlan(contributors=peers, count=500_000_000, encoded_bytes=258_000_000, codec="int4")
    return wanted, Network(places=places, lines_mbps=lines, cables_mbps=cables)


@pytest.mark.parametrize("cable_mbps", [0.0, 400.0])
def test_a_plan_for_a_thousand_peers_is_one_message(cable_mbps: float) -> None:
    cables = {(one, other): cable_mbps for one in REGIONS for other in REGIONS if one != other} if cable_mbps else {}
    wanted, network = large_swarm(1000, cables)
    planned = plan_round(wanted, network)
    assert planned.topology == (HIERARCHICAL if cables else BUTTERFLY)
    assert len(encode(as_message(planned, wanted))) < 1 << 19  # `encode` itself refuses 1 MiB


def test_of_very_many_labels_those_of_the_fewest_peers_count_as_none() -> None:
    peers = tuple(PeerId(f"peer-{number:03d}") for number in range(200))
    labels = [f"r{number:03d}" if number < 150 else "eu" for number in range(200)]
    places = {peer: Place(peer, label) for peer, label in zip(peers, labels, strict=True)}
    listener = PeerId("listener")
    ground = survey_ground(Network(places={**places, listener: Place("l", "r199")}), peers, [listener])
    assert ground.regions == ("eu", *(f"r{number:03d}" for number in range(MOST_REGIONS - 1)), UNKNOWN_REGION)
    assert sum(map(len, ground.members)) == 200
    assert ground.listeners == (0,) * MOST_REGIONS + (1,)


def test_of_very_many_links_a_part_is_read() -> None:
    peers = tuple(PeerId(f"peer-{number:04d}") for number in range(600))
    far = Link(rtt_ms=150.0, goodput_mbps=50.0)
    links = {(a, b): far for a in peers for b in peers if a != b}
    ground = survey_ground(Network(links=links, lines_mbps={peers[0]: 10.0}), peers, ())
    assert ground.rtt_ms == {(0, 0): 150.0}


def test_a_tensor_without_values_has_a_plan_without_spans() -> None:
    peers, network = ocean_limited()
    wanted = of_float32(peers, size_bytes=0)
    planned = plan_round(wanted, network)
    assert planned.spans == ()
    assert planned.transfer_s == 0
    as_message(planned, wanted)
    assert choose_part_values(0, len(peers), planned.values_per_s) > 0


def test_shares_are_cut_on_block_borders_and_cover_everything() -> None:
    assert cut(1000, [0.5, 0.0, 0.5]) == [(0, 512), (512, 512), (512, 1000)]
    assert cut(1000, [1.0, 0.0]) == [(0, 1000), (1000, 1000)]
    assert cut(0, [0.3, 0.7]) == [(0, 0), (0, 0)]


# -- inner steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("predicted_s", "step_s", "steps"), [(0.1, 0.5, 1), (0.125, 0.5, 1), (4.0, 0.5, 32), (0.0, 1.0, 1)])
def test_a_round_costs_at_most_a_quarter_of_the_inner_steps(predicted_s: float, step_s: float, steps: int) -> None:
    found = suggest_inner_steps(predicted_s, step_s)
    assert found.inner_steps == steps
    assert found.share <= ROUND_SHARE + 1e-9


def test_very_many_inner_steps_come_with_a_warning() -> None:
    assert "drift apart" in suggest_inner_steps(100.0, 0.5).advice
    assert "drift apart" not in suggest_inner_steps(MANY_STEPS * 0.5 * ROUND_SHARE, 0.5).advice
    assert "every step" in suggest_inner_steps(0.01, 0.5).advice


# -- linear programmes -------------------------------------------------------------------------------------------------------


def test_a_linear_programme_ends_at_its_best_corner() -> None:
    assert maximise([3, 5], [[1, 0], [0, 2], [3, 2]], [4, 12, 18]) == pytest.approx([2, 6])
    # Beale's example, on which the simplex method runs in circles without Bland's rule.
    rows = [[0.25, -60, -1 / 25, 9], [0.5, -90, -1 / 50, 3], [0, 0, 1, 0]]
    assert maximise([0.75, -150, 1 / 50, -6], rows, [0, 0, 1]) == pytest.approx([1 / 25, 0, 1, 0])
    with pytest.raises(ValueError, match="no greatest"):
        maximise([1.0], [[-1.0]], [1.0])


@pytest.mark.parametrize("topology", [BUTTERFLY, STAR, HIERARCHICAL, RING])
def test_what_the_user_wants_is_planned_where_it_is_possible(topology: str):
    peers, network = ocean_limited()
    planned = plan_round(dataclasses.replace(of_float32(peers), wanted=topology), network)
    assert planned.topology == topology
    assert "asked for" in planned.reason


def test_an_impossible_wish_is_not_insisted_on():
    peers, network = ocean_limited()
    planned = plan_round(dataclasses.replace(of_float32(peers), codec="int4", wanted=RING), network)
    assert planned.topology != RING
    assert "asked for" not in planned.reason


def test_lines_that_are_no_limit_need_not_be_alike_to_carry_alike() -> None:
    # Over narrow cables lines of 280 and 600 Mbit/s have plenty to spare: each carries half, in as few flows as can be.
    peers, network = ocean_limited()
    lines = {peer: 280.0 if place % 2 else 600.0 for place, peer in enumerate(sorted(peers))}
    planned = plan_round(of_float32(peers), dataclasses.replace(network, lines_mbps=lines))
    assert planned.topology == HIERARCHICAL
    assert len(planned.spans) == 4  # of two regions that own, one for each carrier
    flows = {(carrier, span.owner) for span in planned.spans for carrier in span.carriers if peers[carrier] != span.owner}
    assert len(flows) == 8  # of each owner with one carrier of each other region
