"""Figures of one contestant beside another or beside a limit, and the flags of benchmarks that take them."""

from __future__ import annotations

import argparse
import signal
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.arenas import Arena, Terms, median_parts
from benchmarks.laps import Lap
from benchmarks.pings import sent_during
from benchmarks.report import LEAST_SAMPLES, Figure, Measurement
from ciuic_p2p.tensors.codecs.registry import codec_by_name

VALUES_PER_MB = 250_000

Limit = Callable[[float], float]
"""Bytes of the whole tensor, as it is sent → the least seconds in which a network can average it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What the command line says of how figures are taken."""

    terms: Terms
    megabytes: float | None
    """Of the tensor instead of each figure's own; such figures have no goal."""

    def count(self, megabytes: float) -> int:
        """Values of a tensor that was meant to have so many MB."""
        return int((self.megabytes or megabytes) * VALUES_PER_MB)

    def goal(self, goal: float | None) -> float | None:
        return goal if self.megabytes is None else None


def flags_parser(limit_s: float, warm_up_s: float) -> argparse.ArgumentParser:
    """The defaults for one figure."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--laps", type=int, default=LEAST_SAMPLES, help="rounds of each contestant that count")
    parser.add_argument("--limit-s", type=float, default=limit_s, help="longest time for one figure")
    parser.add_argument("--warm-up-s", type=float, default=warm_up_s, help="first rounds, which do not count, take so long")
    parser.add_argument("--megabytes", type=float, help="of the tensor, to try something out; figures then have no goal")
    return parser


def read_flags(parser: argparse.ArgumentParser) -> tuple[Flags, argparse.Namespace]:
    """This benchmark's flags; those of every benchmark are left to `run_benchmark`. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options, _ = parser.parse_known_args()
    terms = Terms(laps=max(options.laps, LEAST_SAMPLES), limit_s=options.limit_s, warm_up_s=options.warm_up_s)
    return Flags(terms=terms, megabytes=options.megabytes), options


class Contest:
    """Figures that are taken in one arena."""

    def __init__(self, arena: Arena, flags: Flags) -> None:
        self._arena = arena
        self._flags = flags

    def seconds(self, codec: str, megabytes: float) -> Measurement:
        """Ours alone; reported only."""

        def take() -> Figure:
            laps = self._run([codec], megabytes)
            return Figure(samples=_seconds(laps[codec]), goal=None, higher_is_better=False, parts=median_parts(laps))

        return take

    def times_faster(self, codec: str, other: str, megabytes: float, goal: float) -> Measurement:
        """The other's seconds ÷ ours, of rounds that followed each other."""

        def take() -> Figure:
            laps = self._run([codec, other], megabytes)
            pairs = zip(_seconds(laps[other]), _seconds(laps[codec]), strict=True)
            return Figure(
                samples=[theirs_s / ours_s for theirs_s, ours_s in pairs],
                goal=self._flags.goal(goal),
                parts=median_parts(laps),
            )

        return take

    def times_limit(self, codec: str, megabytes: float, limit_of: Limit, goal: float) -> Measurement:
        """Our seconds ÷ the network's limit."""

        def take() -> Figure:
            limit_s = limit_of(self._encoded_bytes(codec, megabytes))
            laps = self._run([codec], megabytes)
            return Figure(
                samples=[seconds / limit_s for seconds in _seconds(laps[codec])],
                goal=self._flags.goal(goal),
                higher_is_better=False,
                parts={"limit_s": limit_s, **median_parts(laps)},
            )

        return take

    def share_of_limit(self, codec: str, megabytes: float, limit_of: Limit, goal: float) -> Measurement:
        """The limit ÷ our seconds: how much of what the links could carry meanwhile was the tensor."""

        def take() -> Figure:
            limit_s = limit_of(self._encoded_bytes(codec, megabytes))
            laps = self._run([codec], megabytes)
            return Figure(
                samples=[limit_s / seconds for seconds in _seconds(laps[codec])],
                goal=self._flags.goal(goal),
                parts={"limit_s": limit_s, **median_parts(laps)},
            )

        return take

    def slowest_ping(self, codec: str, megabytes: float, round_trip_s: float, goal: float) -> Measurement:
        """How much longer than the path's round trip the slowest ping took that any daemon sent during a round."""

        def take() -> Figure:
            laps = self._run([codec], megabytes)
            pings = self._arena.pings()
            extra_s = [[ping.seconds - round_trip_s for ping in sent_during(pings, lap)] for lap in laps[codec]]
            return Figure(
                samples=[max(of_lap) for of_lap in extra_s],
                goal=self._flags.goal(goal),
                higher_is_better=False,
                parts={
                    "median_extra_s": statistics.median(one for of_lap in extra_s for one in of_lap),
                    "pings": sum(len(of_lap) for of_lap in extra_s),
                    **median_parts(laps),
                },
            )

        return take

    def _run(self, names: Sequence[str], megabytes: float) -> dict[str, list[Lap]]:
        return self._arena.compare(names, self._flags.count(megabytes), self._flags.terms)

    def _encoded_bytes(self, codec: str, megabytes: float) -> int:
        return codec_by_name(codec.partition("@")[0]).encoded_bytes(self._flags.count(megabytes))


def _seconds(laps: Sequence[Lap]) -> list[float]:
    return [lap.seconds for lap in laps]
