"""A peer's line becomes slow in the middle of a round: how many rounds it takes until rounds are as quick as it allows then."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.contests import VALUES_PER_MB
from benchmarks.limits import limit_s
from benchmarks.outages import Rounds, rounds_in
from benchmarks.report import LEAST_SAMPLES, progress
from ciuic_p2p.lab.topology import Topology
from ciuic_p2p.tensors.codecs.registry import codec_by_name

SLOW_MBPS = 10.0
NEAR_LIMIT = 1.5
"""Times the limit: rounds no longer than that show that plan and pace have adapted."""
MOST_ROUNDS = 6
"""After which it counts as never."""
ROUNDS_AFTER = 2
ROUND_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """What followed one drop."""

    rounds: int
    """After the one in which the line dropped, up to the first near the limit, that one included; more than MOST_ROUNDS when
    none was."""
    times_limit: float
    """Seconds of a round then ÷ the least that the network allows with the slow line; of the last ones."""
    dropped_s: float
    """The round in which it dropped."""
    before_s: float


def adaptations(topology: Topology, megabytes: float, codec: str) -> tuple[list[Adaptation], Mapping[str, float]]:
    """One for each sample, each of another peer's line; and what is behind them."""
    count = int(megabytes * VALUES_PER_MB)
    size_bytes = codec_by_name(codec).encoded_bytes(count)
    normal_limit_s = limit_s(topology, size_bytes)
    found = []
    with rounds_in(topology, count, codec) as rounds:
        for number in range(LEAST_SAMPLES):
            before_s = back_to_normal_s(rounds, NEAR_LIMIT * normal_limit_s)
            slow = with_slow_line(topology, number)
            found.append(adaptation(rounds, slow, before_s, limit_s(slow, size_bytes)))
            rounds.lab.set(topology)
    parts = {
        "normal_limit_s": normal_limit_s,
        "new_limit_s": limit_s(with_slow_line(topology, 0), size_bytes),
        "before_s": statistics.median(one.before_s for one in found),
        "dropped_s": statistics.median(one.dropped_s for one in found),
    }
    return found, parts


def adaptation(rounds: Rounds, slow: Topology, before_s: float, new_limit_s: float) -> Adaptation:
    drop = threading.Timer(before_s / 2, rounds.lab.set, (slow,))
    drop.start()
    dropped = rounds.once(ROUND_LIMIT_S)
    drop.join()
    needed, seconds = MOST_ROUNDS + 1, []
    for number in range(1, MOST_ROUNDS + 1):
        lap = rounds.once(ROUND_LIMIT_S)
        seconds.append(lap.seconds if lap is not None else ROUND_LIMIT_S)
        if seconds[-1] <= NEAR_LIMIT * new_limit_s:
            needed = min(needed, number)
        if number >= needed + ROUNDS_AFTER - 1:
            break
    progress(f"adapted after {needed} rounds; {', '.join(f'{s / new_limit_s:.2f}' for s in seconds)} times the limit")
    return Adaptation(
        rounds=needed,
        times_limit=statistics.median(seconds[-ROUNDS_AFTER:]) / new_limit_s,
        dropped_s=dropped.seconds if dropped is not None else ROUND_LIMIT_S,
        before_s=before_s,
    )


def back_to_normal_s(rounds: Rounds, near_s: float) -> float:
    """Runs rounds until one is near the limit of the whole network, or as many as may be; seconds of the last."""
    rounds.whole(ROUND_LIMIT_S)
    for _ in range(MOST_ROUNDS):
        seconds = rounds.whole(ROUND_LIMIT_S).seconds
        if seconds <= near_s:
            break
    return seconds


def with_slow_line(topology: Topology, number: int) -> Topology:
    """Of the host with that number, both ways."""
    hosts = list(topology.hosts)
    hosts[number] = replace(hosts[number], up_mbps=SLOW_MBPS, down_mbps=SLOW_MBPS)
    return replace(topology, hosts=tuple(hosts))
