"""How each contestant is started in its places, cued, and asked how long a round took. Compares nothing.

A contestant that waits for its cue takes no CPU, so that several can live side by side and run turn and turn about.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.children import Child, first_to_answer, module_argv
from benchmarks.laps import Lap, lap_of_round, slowest_s
from benchmarks.swarms import Peer, Place, ask
from ciuic_p2p.errors import LocalError

STARTING_S = 240.0
"""Until all processes of a contestant have found each other and hold their tensors."""
POLL_S = 0.2
NOTICE_S = 0.2
"""From telling hivemind's peers when to start until they do."""

Contestant = Callable[[float], Lap | None]
"""Runs one round within so many seconds, or raises LocalError; None for one in which not all took part."""

_runs = itertools.count()


@contextmanager
def ours(peers: Sequence[Peer], count: int, codec: str) -> Iterator[Contestant]:
    """A run of its own on daemons that are there, averaging `count` float32 values a peer."""
    run = f"benchmark-{next(_runs)}"
    with ExitStack() as stack:
        trainers = [
            _start(
                stack, f"the trainer of {peer.place.name}", peer.place, "benchmarks.stand_in",
                home=peer.home, run=run, count=count, codec=codec, number=number,
            )
            for number, peer in enumerate(peers)
        ]  # fmt: skip
        for trainer in trainers:
            trainer.hear(STARTING_S)

        def all_are_equal() -> bool:
            return len({_standing(peer, run) for peer in peers}) == 1

        def race(limit_s: float) -> Lap | None:
            told, partial = cue_until_whole(trainers, all_are_equal, limit_s)
            if partial:
                return None
            hashes = {fact["state_hash"] for fact in told}
            if len(hashes) != 1:
                raise LocalError(f"the replicas of {run} differ under {codec}")
            lap = lap_of_round([ask(peer, "rounds") for peer in peers], run, hashes.pop(), len(peers))
            if lap is None:
                return None
            return replace(lap, parts={"trainer_s": max(fact["seconds"] for fact in told), **lap.parts})

        yield race


@contextmanager
def gloo(places: Sequence[Place], count: int) -> Iterator[Contestant]:
    """PyTorch's all-reduce of as many values, in plaintext."""
    with ExitStack() as stack:
        ranks: list[Child] = []
        port = 0
        for number, place in enumerate(places):
            options = {"number": number, "peers": len(places), "count": count, "address": place.address}
            first = {"first": places[0].address, "port": port}
            ranks.append(_start(stack, f"gloo on {place.name}", place, "benchmarks.contestants.gloo", **options, **first))
            port = port or ranks[0].hear(STARTING_S)["port"]
        for rank in ranks:
            rank.hear(STARTING_S)

        def race(limit_s: float) -> Lap | None:
            return _lap_of(_cue(ranks, limit_s))

        yield race


@contextmanager
def hivemind(places: Sequence[Place], count: int) -> Iterator[Contestant]:
    """hivemind's averager, uncompressed, from the moment that the group was told to start at."""
    with ExitStack() as stack:
        averagers: list[Child] = []
        join: dict[str, str] = {}
        for number, place in enumerate(places):
            options = {"number": number, "peers": len(places), "count": count, "address": place.address, **join}
            averagers.append(_start(stack, f"hivemind on {place.name}", place, "benchmarks.contestants.hivemind", **options))
            joined = averagers[-1].hear(STARTING_S)
            join = join or {"join": joined["addresses"][0]}

        def race(limit_s: float) -> Lap | None:
            looked_s = time.monotonic()
            _cue(averagers, limit_s)
            grouped_s = time.monotonic() - looked_s
            lap = _lap_of(_cue(averagers, limit_s, str(time.time() + NOTICE_S)))
            return None if lap is None else Lap(seconds=lap.seconds, parts={"matchmaking_s": grouped_s})

        yield race


def _start(stack: ExitStack, name: str, place: Place, module: str, **options: object) -> Child:
    child = Child(name, place.command(module_argv(module, **options)))
    stack.callback(child.kill)
    return child


def _cue(children: Sequence[Child], limit_s: float, line: str = "") -> list[dict[str, Any]]:
    """Tells all of them, then hears all of them."""
    deadline_s = time.monotonic() + limit_s
    for child in children:
        child.tell(line)
    return [child.hear(max(0.0, deadline_s - time.monotonic())) for child in children]


def cue_until_whole(
    trainers: Sequence[Child], all_are_equal: Callable[[], bool], limit_s: float
) -> tuple[list[dict[str, Any]], bool]:
    """Tells all of them and hears them, until all had a round together; and whether there were others before it.

    Who had a round without the others is told again as soon as all hold one state: they wait for it in the next round. To
    tell it before would make for yet another round without them, whose bytes are in the way of theirs.
    """
    deadline_s = time.monotonic() + limit_s
    answering, early, partial, told = list(trainers), [], False, []
    for trainer in trainers:
        trainer.tell()
    while answering or early:
        if early and all_are_equal():
            for trainer in early:
                trainer.tell()
            answering, early = answering + early, []
        answered = first_to_answer(answering, POLL_S if early else deadline_s - time.monotonic())
        if time.monotonic() > deadline_s:
            raise LocalError(f"{', '.join(one.name for one in answering or early)} had no round with all others in time")
        if answered is None:
            continue
        fact = answered.hear(deadline_s - time.monotonic())
        answering.remove(answered)
        if fact["counted"] and fact["peers"] == len(trainers):
            told.append(fact)
        else:
            early.append(answered)
            partial = True
    return told, partial


def _standing(peer: Peer, run: str) -> tuple[int | None, str]:
    """Epoch and hash of the state that a daemon holds."""
    status = next((status for status in ask(peer, "status")["runs"] if status["run"] == run), None)
    return (None, "") if status is None else (status["epoch"], status["state_hash"])


def _lap_of(told: Sequence[dict[str, Any]]) -> Lap | None:
    if not all(fact["whole"] for fact in told):
        return None
    return Lap(seconds=slowest_s([fact["began_s"] for fact in told], [fact["ended_s"] for fact in told]))
