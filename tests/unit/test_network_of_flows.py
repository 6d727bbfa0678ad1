"""The simulator's network: frames of a pair in order, lines and cables shared, every byte there once, none too early."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from ciuic_p2p.errors import ConfigError
from ciuic_p2p.lab.topology import find_topology
from ciuic_p2p.simulator.network import SharedNetwork
from ciuic_p2p.simulator.world import Lines, World, even_world, world_of

MB = 1e6
SECOND_OF_100_MBPS = 12.5e6


def two_regions(**changes: Any) -> World:
    """Two peers each, lines of 100 Mbit/s, a cable of 100 between; 0.05 s across, 0.005 s within."""
    lines = Lines(up_mbps=100, down_mbps=100, cable_mbps=100, rtt_ms=100)
    world = even_world(4, 2, lines)
    delay_s = np.where(world.region_of[:, None] == world.region_of[None, :], 0.005, 0.05)
    return World(**{**{name: getattr(world, name) for name in World.__slots__}, "delay_s": delay_s, **changes})


def arrivals(network: SharedNetwork[str]) -> dict[str, float]:
    """Until nothing is on its way."""
    found: dict[str, float] = {}
    while (due_s := network.next_s()) is not None:
        for arrives_s, token in network.advance(due_s):
            assert token not in found, "a frame arrived twice"
            found[token] = arrives_s
    return found


def test_a_frame_alone_takes_its_bytes_over_the_line_and_one_delay() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 2, SECOND_OF_100_MBPS, "a", 0.0)
    assert arrivals(network) == {"a": pytest.approx(1.05)}


def test_two_flows_share_a_cable_and_the_rest_is_for_who_is_left() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 2, SECOND_OF_100_MBPS, "short", 0.0)
    network.send(1, 3, 2 * SECOND_OF_100_MBPS, "long", 0.0)
    # half of the cable each for 2 s; then the long one has it alone for 1 s more
    assert arrivals(network) == {"short": pytest.approx(2.05), "long": pytest.approx(3.05)}


def test_the_other_direction_of_a_cable_is_another_one() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 2, SECOND_OF_100_MBPS, "there", 0.0)
    network.send(3, 1, SECOND_OF_100_MBPS, "back", 0.0)
    assert arrivals(network) == {"there": pytest.approx(1.05), "back": pytest.approx(1.05)}


def test_a_line_is_shared_by_what_goes_near_and_far() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 1, SECOND_OF_100_MBPS, "near", 0.0)
    network.send(0, 2, SECOND_OF_100_MBPS, "far", 0.0)
    assert arrivals(network) == {"near": pytest.approx(2.005), "far": pytest.approx(2.05)}


def test_weights_divide_a_line() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.weigh(0, 1, 3.0)
    network.send(0, 1, 3 * SECOND_OF_100_MBPS, "much", 0.0)
    network.send(0, 2, SECOND_OF_100_MBPS, "little", 0.0)
    assert arrivals(network) == {"much": pytest.approx(4.005), "little": pytest.approx(4.05)}


def test_what_is_urgent_overtakes_what_waits() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 2, SECOND_OF_100_MBPS, "frame", 0.0)
    network.send(0, 2, SECOND_OF_100_MBPS / 100, "message", 0.0, urgent=True)
    found = arrivals(network)
    assert found["message"] == pytest.approx(0.06, abs=0.001)
    assert found["frame"] == pytest.approx(1.06, abs=0.001)


def test_frames_of_one_pair_come_in_order_one_after_the_other() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    for number in range(5):
        network.send(0, 2, SECOND_OF_100_MBPS, str(number), 0.0)
    found = arrivals(network)
    assert list(found) == ["0", "1", "2", "3", "4"]
    assert list(found.values()) == pytest.approx([1.05, 2.05, 3.05, 4.05, 5.05])


def test_what_is_sent_later_slows_down_what_is_under_way() -> None:
    network: SharedNetwork[str] = SharedNetwork(two_regions())
    network.send(0, 2, SECOND_OF_100_MBPS, "first", 0.0)
    assert network.next_s() == 0.0
    assert network.advance(0.0) == []
    network.send(0, 1, SECOND_OF_100_MBPS, "second", 0.5)
    assert network.next_s() == 0.5
    # 0.5 s alone, then 1 s for the other half at half the rate
    assert arrivals(network) == {"first": pytest.approx(1.55), "second": pytest.approx(2.005)}


def test_processors_are_a_limit_of_each_peer_or_of_the_one_machine() -> None:
    for is_one_machine, expected_s in ((False, 2.005), (True, 4.005)):
        world = two_regions(processor_mbps=50.0, is_one_machine=is_one_machine)
        network: SharedNetwork[str] = SharedNetwork(world)
        network.send(0, 1, SECOND_OF_100_MBPS, "a", 0.0)  # sealed by one, opened by the other
        assert arrivals(network)["a"] == pytest.approx(expected_s)


def test_what_nothing_limits_takes_the_delay() -> None:
    network: SharedNetwork[str] = SharedNetwork(even_world(4, 2, Lines(up_mbps=0, down_mbps=0, rtt_ms=100)))
    network.send(0, 1, 1e9, "a", 0.0)
    assert arrivals(network) == {"a": pytest.approx(0.005, abs=1e-4)}


@pytest.mark.parametrize("tick_s", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(10))
def test_every_byte_is_there_once_in_order_and_no_earlier_than_lines_and_cables_allow(seed: int, tick_s: float) -> None:
    # given random frames between peers of unlike lines
    rng = random.Random(seed)
    lines = np.array([float(rng.randrange(10, 200)) for _ in range(4)])
    network: SharedNetwork[tuple[int, int, int]] = SharedNetwork(two_regions(up_mbps=lines, down_mbps=lines[::-1]), tick_s)
    sent: dict[tuple[int, int, int], float] = {}
    for number in range(200):
        source, target = rng.sample(range(4), 2)
        sent[source, target, number] = rng.uniform(1e3, 1e6)
    for token, size_bytes in sent.items():
        network.send(token[0], token[1], size_bytes, token, 0.0)

    # when all of them are through
    found: list[tuple[float, tuple[int, int, int]]] = []
    while (due_s := network.next_s()) is not None:
        found += network.advance(due_s)

    # then each came once, those of a pair in order, and what shared a capacity took at least its bytes over it
    assert sorted(token for _, token in found) == sorted(sent)
    for pair in {token[:2] for token in sent}:
        numbers = [token[2] for _, token in sorted(found, key=lambda arrival: arrival[0]) if token[:2] == pair]
        assert numbers == sorted(numbers)
    last_s = max(arrives_s for arrives_s, _ in found)
    for peer in range(4):
        up = sum(size for token, size in sent.items() if token[0] == peer)
        assert last_s >= up / (lines[peer] * 125_000)
    over_the_ocean = sum(size for token, size in sent.items() if token[0] < 2 <= token[1])
    assert last_s >= over_the_ocean / SECOND_OF_100_MBPS
    assert network.ocean_bytes.sum() == pytest.approx(sum(sent.values()))
    assert network.ocean_bytes[0, 1] == pytest.approx(over_the_ocean)


def test_ticks_cost_a_tick_a_frame_at_most_where_nobody_waits_for_anybody() -> None:
    found = []
    for tick_s in (0.0, 0.02):
        network: SharedNetwork[str] = SharedNetwork(two_regions(), tick_s)
        network.send(0, 2, SECOND_OF_100_MBPS, "short", 0.0)
        network.send(1, 3, 2 * SECOND_OF_100_MBPS, "long", 0.0)
        found.append(arrivals(network))
    exact, coarse = found
    for token in exact:
        assert exact[token] <= coarse[token] <= exact[token] + 2 * 0.02


def test_the_labs_topologies_are_worlds() -> None:
    world = world_of(find_topology("ocean-limited"), payload_share=0.5)
    assert world.names == ("us0", "us1", "eu0", "eu1", "as0", "as1")
    assert world.regions == ("us", "eu", "as")
    assert set(world.up_mbps) == {500.0}
    assert world.cable_mbps[0].tolist() == [math.inf, 50.0, 25.0]
    assert world.delay_s[0, 2] == pytest.approx(0.045)
    assert world.link(0, 4).goodput_mbps == 25.0
    assert world.link(0, 4).rtt_ms == pytest.approx(160.0)
    assert len(set(world.peers)) == 6


@pytest.mark.parametrize(
    ("peers", "regions", "changes"),
    [
        (0, 1, {}),
        (4097, 1, {}),
        (3, 0, {}),
        (3, 1, {"up_mbps": -1}),
        (3, 1, {"rtt_ms": math.nan}),
        (3, 1, {"cable_mbps": math.inf}),
    ],
)
def test_what_no_world_can_be_is_refused(peers: int, regions: int, changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        even_world(peers, regions, Lines(**changes))


def test_the_same_seed_gives_the_same_world_and_another_one_another() -> None:
    first, again, other = (even_world(8, 4, Lines(), seed) for seed in (1, 1, 2))
    assert (first.delay_s == again.delay_s).all()
    assert (first.delay_s != other.delay_s).any()
    assert first.region_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
