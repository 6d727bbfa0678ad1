"""The run's state survives: what a newcomer, a killed trainer, a snapshot and a killed swarm cost, with real daemons.

`newcomer_share` is of three-regions.json: five peers hold 50 MB of state, the sixth takes it; from the moment that it begins to
fetch until it holds all, as a share of what its line carries. `trainer_back_s` is what a trainer that was killed and started
again waits for its daemon. `snapshot_pause_ms` is what rounds of 100 M parameters took longer, all together, from the order of
a snapshot until it is on the disk, with 3 s of inner steps between them. A round that ends while the state is still being
written needs new memory for it: `back_to_back_ms` is of rounds without any inner steps. `swarm_reborn` is 1 when all peers,
killed at once and started in any order, go on from the newest complete snapshot with equal hashes.

`put_get` puts a file of 1 GB on one of two peers and gets it on the other (2 copies, encrypted between them), over the time of
`cp` and one plain TCP copy on loopback. `holders_lost`: of 20 objects with 3 copies on 6 peers, how many cannot be read, or
have not 3 copies again, after 2 random peers were killed and their disks wiped. `injected_faults`: benchmarks/injections.py.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.children import Child, module_argv
from benchmarks.injections import inject
from benchmarks.outages import log_of
from benchmarks.report import LEAST_SAMPLES, Figure, Measurement, progress, run_benchmark
from benchmarks.swarms import Peer, Place, ask, swarm
from ciuic_p2p.errors import LocalError, SwarmError
from ciuic_p2p.lab.lab import Lab
from ciuic_p2p.lab.topology import find_topology
from ciuic_p2p.local.channel import open_channel
from ciuic_p2p.local.protocol import SnapshotOrder, View
from ciuic_p2p.train.client import Client

RUN = "benchmark"
LIMIT_S = 120.0
POLL_S = 0.1
ROUNDS = 3
"""Before a snapshot, to know what one takes."""
INNER_STEPS_S = 3.0


@contextmanager
def trainers_at(peers: Sequence[Peer], count: int, codec: str = "float32") -> Iterator[list[Child]]:
    """One at each, let in."""
    with ExitStack() as stack:
        made = []
        for number, peer in enumerate(peers):
            made.append(trainer_at(peer, count, number, codec))
            stack.callback(made[-1].kill)
        for trainer in made:
            trainer.hear(LIMIT_S)
        yield made


def trainer_at(peer: Peer, count: int, number: int, codec: str = "float32") -> Child:
    options = {"home": peer.home, "run": RUN, "count": count, "codec": codec, "number": number}
    return Child(f"the trainer of {peer.place.name}", peer.place.command(module_argv("benchmarks.stand_in", **options)))


def round_of(trainers: Sequence[Child]) -> list[dict[str, Any]]:
    """One in which all took part; raises LocalError when that takes too long."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        for trainer in trainers:
            trainer.tell()
        told = [trainer.hear(LIMIT_S) for trainer in trainers]
        if len({fact["state_hash"] for fact in told}) == 1 and all(fact["peers"] == len(trainers) for fact in told):
            return told
    raise LocalError("the peers never were in one mean", "look at their logs")


def until(holds: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        if found := holds():
            return found
        time.sleep(POLL_S)
    raise LocalError(f"it never came true that {what}")


@contextmanager
def training_here(peers: int, count: int) -> Iterator[tuple[list[Peer], list[Child], Path]]:
    """Daemons and trainers on this machine, and the folder of their homes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ciuic-store-")))
        made = stack.enter_context(swarm([Place(f"local{number}", "127.0.0.1") for number in range(peers)], folder))
        yield made, stack.enter_context(trainers_at(made, count)), folder


# -- a newcomer ----------------------------------------------------------------------------------------------------------


def newcomer_share(megabytes: float) -> Figure:
    """Of its line, with five donors in three regions."""
    topology = find_topology("three-regions")
    count = int(megabytes * 1e6 / 8)  # anchor and momentum, float32 each
    shares, seconds = [], []
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(topology))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ciuic-store-")))
        *places, last = [Place(name, address, lab) for name, address in lab.addresses.items()]
        donors = stack.enter_context(swarm(places, folder))
        trainers = stack.enter_context(trainers_at(donors, count))
        round_of(trainers)
        line_mbps = next(host.down_mbps for host in topology.hosts if host.name == last.name)
        for _ in range(LEAST_SAMPLES):
            taken_s = fetched_s(last, folder, donors[0], count)
            progress(f"a newcomer took {megabytes:g} MB in {taken_s:.2f} s")
            seconds.append(taken_s)
            shares.append(megabytes * 8 / taken_s / line_mbps)
    return Figure(samples=shares, goal=0.85, parts={"fetch_s": statistics.median(seconds), "line_s": megabytes * 8 / line_mbps})


def fetched_s(place: Place, folder: Path, contact: Peer, count: int) -> float:
    """By a peer that never was here."""
    home = folder / place.name
    newcomer = Peer(place, home, contact.facts["join"])
    trainer = None
    try:
        until(lambda: alive_at(newcomer) == 6, "the newcomer sees all others")
        trainer = trainer_at(newcomer, count, 5)
        trainer.hear(LIMIT_S)
        began_s = log_of(newcomer, "state.fetching")[0][0]
        return log_of(newcomer, "state.fetched")[-1][0] - began_s
    finally:
        if trainer is not None:
            trainer.kill()
        newcomer.daemon.stop()
        shutil.rmtree(home, ignore_errors=True)


# -- a trainer that was killed --------------------------------------------------------------------------------------------


def trainer_back_s(megabytes: float) -> Figure:
    """From asking its daemon to being let in."""
    count, waited_s = int(megabytes * 1e6 / 4), []
    with training_here(2, count) as (peers, trainers, _):
        round_of(trainers)
        for _ in range(LEAST_SAMPLES):
            trainers[1].kill()
            trainers[1] = trainer_at(peers[1], count, 1)
            waited_s.append(trainers[1].hear(LIMIT_S)["seconds"])
            progress(f"let in again after {waited_s[-1]:.2f} s")
            round_of(trainers)
        trainers[1].kill()
    return Figure(samples=waited_s, goal=2.0, higher_is_better=False)


# -- snapshots ------------------------------------------------------------------------------------------------------------


def snapshot_pause_ms(parameters: int) -> Figure:
    """What the rounds took longer from the order until it was saved."""
    pauses: dict[float, list[float]] = {INNER_STEPS_S: [], 0.0: []}
    normals_s, saves_s = [], []
    with training_here(1, parameters) as (peers, trainers, _):
        for _ in range(LEAST_SAMPLES):
            for inner_steps_s, found in pauses.items():
                normal_s = statistics.median(round_after(inner_steps_s, trainers) for _ in range(ROUNDS))
                saved = len(log_of(peers[0], "snapshot.saved"))
                order_snapshot(peers[0])
                beside_s = []
                while len(log_of(peers[0], "snapshot.saved")) <= saved:
                    beside_s.append(round_after(inner_steps_s, trainers))
                found.append(1000 * sum(max(0.0, seconds - normal_s) for seconds in beside_s))
                normals_s.append(normal_s)
                saves_s.append(log_of(peers[0], "snapshot.saved")[-1][1]["seconds"])
                progress(f"a round takes {normal_s:.2f} s, beside a snapshot {[round(s, 2) for s in beside_s]}")
    parts = {
        "normal_s": statistics.median(normals_s),
        "save_s": statistics.median(saves_s),
        "back_to_back_ms": statistics.median(pauses[0.0]),
    }
    return Figure(samples=pauses[INNER_STEPS_S], goal=100.0, higher_is_better=False, parts=parts)


def round_after(inner_steps_s: float, trainers: Sequence[Child]) -> float:
    """Seconds that the trainer waited for its new anchor."""
    time.sleep(inner_steps_s)
    return float(round_of(trainers)[0]["seconds"])


def order_snapshot(peer: Peer) -> int:
    """All peers save the epoch that is returned."""
    with open_channel(peer.home) as channel:
        return int(channel.ask(SnapshotOrder(what="save", options={"run": RUN}), View).value["epoch"])


def complete_snapshots(peer: Peer) -> list[dict[str, Any]]:
    with open_channel(peer.home) as channel:
        return [one for one in channel.ask(SnapshotOrder(what="ls"), View).value if one["complete"]]


# -- a swarm that was killed ----------------------------------------------------------------------------------------------


def swarm_reborn(seed: int) -> Figure:
    """Three peers, each time in another order."""
    draw = random.Random(seed)
    return Figure(samples=[reborn(draw.sample(range(3), 3)) for _ in range(LEAST_SAMPLES)], goal=1.0)


def reborn(order: Sequence[int], count: int = 250_000) -> float:
    """1 when all go on from the snapshot, with equal hashes."""
    with ExitStack() as stack:
        peers, trainers, folder = stack.enter_context(training_here(3, count))
        round_of(trainers)
        epoch = order_snapshot(peers[1])
        round_of(trainers)
        saved = until(lambda: saved_by_all(peers, epoch), "all peers have the snapshot")
        round_of(trainers)  # is lost with the swarm
        for child in (*trainers, *(peer.daemon for peer in peers)):
            child.kill()
        again: list[Peer] = []
        for number in order:
            join = again[0].facts["join"] if again else None
            again.append(Peer(Place(f"local{number}", "127.0.0.1"), folder / f"local{number}", join))
            stack.callback(again[-1].daemon.stop)
        until(lambda: all(alive_at(peer) == 3 for peer in again), "all see each other")
        restarted = stack.enter_context(trainers_at(again, count))
        held = {ask(peer, "status")["runs"][0]["state_hash"] for peer in again}
        told = round_of(restarted)
    progress(f"order {order}: hashes equal {held == {saved}}, then epoch {told[0]['epoch']} after {epoch}")
    return float(held == {saved} and told[0]["epoch"] > epoch)


def saved_by_all(peers: Sequence[Peer], epoch: int) -> str | None:
    """The one hash of that epoch's complete snapshot on all of them."""
    hashes = [one["state_hash"] for peer in peers for one in complete_snapshots(peer) if one["epoch"] == epoch]
    return hashes[0] if len(hashes) == len(peers) and len(set(hashes)) == 1 else None


# -- objects --------------------------------------------------------------------------------------------------------------


def put_get(megabytes: float) -> Figure:
    """÷ the time of `cp` plus one loopback TCP copy."""
    ratios, parts = [], []
    with tempfile.TemporaryDirectory(prefix="ciuic-store-") as name, settings(CIUIC_REPLICAS="2"):
        folder = Path(name)
        with training_here(2, 1000) as (peers, _, _):
            clients = [Client(peer.home) for peer in peers]
            for number in range(LEAST_SAMPLES):
                source, target = folder / "source", folder / "target"
                write_random(source, int(megabytes * 1e6))
                address = f"ciuic://benchmark/{number}"
                ours_s = timed(partial(clients[0].upload_file, source, address))
                until(lambda address=address: any(o["address"] == address for o in clients[1].list()), "the other lists it")
                get_s = timed(partial(clients[1].download_file, address, target))
                if not filecmp.cmp(source, target, shallow=False):
                    raise LocalError("what came back is another file")
                cp_s = timed(partial(subprocess.run, ["cp", source, folder / "copied"], check=True))
                tcp_s = timed(partial(copy_by_tcp, source))
                ratios.append((ours_s + get_s) / (cp_s + tcp_s))
                parts.append((ours_s, get_s, cp_s, tcp_s))
                progress(f"put {ours_s:.2f} s, get {get_s:.2f} s, cp {cp_s:.2f} s, tcp {tcp_s:.2f} s")
                for file in (source, target, folder / "copied"):
                    file.unlink()
                clients[0].remove(address)
    names = ("put_s", "get_s", "cp_s", "tcp_s")
    medians = {name: statistics.median(column) for name, column in zip(names, zip(*parts, strict=True), strict=True)}
    return Figure(samples=ratios, goal=2.0, higher_is_better=False, parts=medians)


def write_random(path: Path, size_bytes: int) -> None:
    with path.open("wb") as stream:
        while size_bytes > 0:
            size_bytes -= stream.write(os.urandom(min(size_bytes, 1 << 24)))


def timed(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def copy_by_tcp(source: Path) -> None:
    """Through one plain connection on loopback, from the file to nowhere."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sending:
        receiving, _ = listener.accept()
        with receiving:
            thread = threading.Thread(target=send_file, args=(sending, source))
            thread.start()
            while receiving.recv(1 << 20):
                pass
            thread.join()


def send_file(sending: socket.socket, source: Path) -> None:
    with source.open("rb") as stream:
        sending.sendfile(stream)
    sending.shutdown(socket.SHUT_WR)


def holders_lost(seed: int, objects: int = 20) -> Figure:
    """Objects that are lost, or short of copies once the survivors had time to repair."""
    draw = random.Random(seed)
    quick = settings(CIUIC_REPLICAS="3", CIUIC_REPAIR_PERIOD_S="5", CIUIC_GONE_AFTER_S="5")
    with quick:
        return Figure(samples=[lost_of(draw, objects) for _ in range(LEAST_SAMPLES)], goal=0.0, higher_is_better=False)


def lost_of(draw: random.Random, objects: int) -> float:
    with training_here(6, 1000) as (peers, _, folder):
        contents = [draw.randbytes(1_000_000) for _ in range(objects)]
        for number, content in enumerate(contents):
            source = folder / "source"
            source.write_bytes(content)
            Client(draw.choice(peers).home).upload_file(source, f"ciuic://benchmark/{number}")
        for peer in peers:
            until(lambda peer=peer: len(list(Client(peer.home).list())) == objects, "all list all objects")
        victims = draw.sample(peers, 2)
        survivors = [peer for peer in peers if peer not in victims]
        for victim in victims:
            victim.daemon.kill()
            shutil.rmtree(victim.home)
        began_s, left = time.monotonic(), len(survivors)
        until(lambda: all(alive_at(peer) == left for peer in survivors), "the survivors find them gone")
        until(lambda: all(has_three_copies(survivors[0], number) for number in range(objects)), "repairs are done")
        progress(f"three copies of all again after {time.monotonic() - began_s:.1f} s")
        return float(sum(not is_there(survivors[0], number, content, folder) for number, content in enumerate(contents)))


def alive_at(peer: Peer) -> int:
    """Peers that this one finds alive, itself included."""
    return sum(row["alive"] for row in ask(peer, "peers"))


def has_three_copies(peer: Peer, number: int) -> bool:
    """On peers that are alive."""
    return int(Client(peer.home).stat(f"ciuic://benchmark/{number}")["copies"]) >= 3


def is_there(peer: Peer, number: int, content: bytes, folder: Path) -> bool:
    """Readable, and with three copies."""
    address, target = f"ciuic://benchmark/{number}", folder / "target"
    try:
        Client(peer.home).download_file(address, target)
    except SwarmError:
        return False
    return target.read_bytes() == content and has_three_copies(peer, number)


def injected_faults(times: int, seed: int) -> Figure:
    """Wrong bytes returned, and complete objects lost."""
    with tempfile.TemporaryDirectory(prefix="ciuic-store-") as folder:
        outcome = None
        for outcome in inject(Path(folder), times, seed):
            if outcome.injected % 20 == 0:
                progress(f"{outcome.injected} faults: {outcome.complete} read, {outcome.wrong} wrong, {outcome.lost} lost")
    if outcome is None:
        raise LocalError("nothing was injected", "give --injections of 1 or more")
    parts = {"injected": outcome.injected, "read": outcome.complete, "refused": outcome.refused}
    return Figure(samples=[float(outcome.wrong + outcome.lost)] * LEAST_SAMPLES, goal=0.0, higher_is_better=False, parts=parts)


@contextmanager
def settings(**variables: str) -> Iterator[None]:
    """Of all daemons that are started meanwhile."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def measurements(options: argparse.Namespace) -> dict[str, Measurement]:
    """Figure's name → what takes it."""
    return {
        "newcomer_share": partial(newcomer_share, options.megabytes),
        "trainer_back_s": partial(trainer_back_s, options.megabytes),
        "snapshot_pause_ms": partial(snapshot_pause_ms, options.parameters),
        "swarm_reborn": partial(swarm_reborn, options.seed),
        "put_get": partial(put_get, options.object_megabytes),
        "holders_lost": partial(holders_lost, options.seed),
        "injected_faults": partial(injected_faults, options.injections, options.seed),
    }


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(add_help=False)
    flags.add_argument("--megabytes", type=float, default=50.0, help="of state that a newcomer takes, or a trainer is given")
    flags.add_argument("--parameters", type=int, default=100_000_000, help="of the model that is saved")
    flags.add_argument("--object-megabytes", type=float, default=1000.0, help="of the file that is put and got")
    flags.add_argument("--injections", type=int, default=200, help="faults")
    flags.add_argument("--seed", type=int, default=0, help="of the orders in which peers start again")
    return flags


def main() -> int:
    options, _ = parser().parse_known_args()
    return run_benchmark("store", measurements(options), own_flags=parser())


if __name__ == "__main__":
    sys.exit(main())
