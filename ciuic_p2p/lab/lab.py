"""A wide-area network on one machine: a network namespace for each host and a carrier between them.

TCP, congestion control and all else are the kernel's own; the carrier (one router process; netem where that cannot be) gives
each ordered pair of hosts its delay, jitter and loss, and each host its rate. Knows nothing of peers: it runs what it is given.

Several labs live side by side. Each has a folder, and its owner holds a lock on it: a folder whose lock is free was left
behind by an owner that died, and the next lab to come up clears it away.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ciuic_p2p.errors import ConfigError, LocalError
from ciuic_p2p.lab.netem import connect_by_netem, read_counters, shape_by_netem
from ciuic_p2p.lab.system import LABS, Carrier, choose_carrier, compile_router, lab_available, open_tun, run_ip
from ciuic_p2p.lab.topology import Topology

UNIQUE = "x_"
"""How the folder of a lab without a name begins; a given name has no underscore, so the two never meet."""

SWITCH = "~"
"""Stands for a host in the name of netem's own namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """What the router carried for one host so far; `dropped` counts packets."""

    sent_bytes: int
    received_bytes: int
    dropped: int


class RunningLab:
    """A lab that is up, seen from any process."""

    def __init__(self, folder: Path, addresses: dict[str, str], router_pid: int | None, owner_pid: int) -> None:
        self.folder = folder
        self.addresses = addresses
        """Host name → IPv4 address; reachable from inside the lab only."""
        self.owner_pid = owner_pid
        self._router_pid = router_pid
        """None: netem carries the packets."""

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        """What to execute so that `argv` runs on `host`. Raises ConfigError for a host that is not in the lab."""
        if host not in self.addresses:
            raise ConfigError(f"{host} is no host of this lab", f"its hosts are {', '.join(self.addresses)}")
        return ["ip", "netns", "exec", _space(self.folder, host), *argv]

    def run(self, host: str, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Starts `argv` on `host`; `popen` goes to subprocess.Popen, and the process id is that of `argv` itself."""
        return subprocess.Popen(self.command(host, argv), **popen)

    def set(self, topology: Topology) -> None:
        """Changes delays, rates and losses within 0.2 s; the hosts must stay the same.

        Packets on their way keep their delay under the router, and are lost under netem.
        """
        if [host.name for host in topology.hosts] != list(self.addresses):
            raise ConfigError("the hosts of a lab that is up cannot change", "take it down and bring the other one up")
        if self._router_pid is None:
            shape_by_netem(_space(self.folder, SWITCH), _spaces(self.folder, self.addresses), self.addresses, topology)
            return
        _write_atomically(self.folder / "router.cfg", topology.router_config())
        os.kill(self._router_pid, signal.SIGHUP)

    def stats(self) -> dict[str, HostTraffic]:
        """Traffic of each host, at most 0.5 s old."""
        if self._router_pid is None:
            counted = {name: read_counters(space) for name, space in _spaces(self.folder, self.addresses).items()}
            return {
                name: HostTraffic(sent_bytes=sent, received_bytes=received, dropped=dropped)
                for name, (sent, received, dropped) in counted.items()
            }
        with suppress(FileNotFoundError):  # the router writes it within its first moments
            rows = [[int(word) for word in line.split()] for line in (self.folder / "stats").read_text().splitlines()]
            return {
                name: HostTraffic(sent_bytes=sent, received_bytes=received, dropped=dropped)
                for name, (sent, received, dropped) in zip(self.addresses, rows, strict=True)
            }
        return {name: HostTraffic(sent_bytes=0, received_bytes=0, dropped=0) for name in self.addresses}


class Lab:
    """Brings a lab up and takes it down again, with everything that still runs in it.

    with Lab(topology) as lab:
        lab.run("node-us", ["ciuic-peer", "start"])
    """

    def __init__(self, topology: Topology, name: str | None = None) -> None:
        if name is not None and (not re.fullmatch(r"[a-z0-9]{1,20}", name)):
            raise ConfigError(f"{name!r} cannot name a lab", "use 1 to 20 small letters and digits")
        self._topology = topology
        self._name = name
        self._folder: Path | None = None
        self._lock: int | None = None
        self._router: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RunningLab:
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    def up(self) -> RunningLab:
        """Raises LocalError when this machine cannot have a lab, or one of this name is up."""
        if reason := lab_available():
            raise LocalError(f"no lab can be brought up here: {reason}", "use a Linux machine where you are root")
        try:
            with _all_labs_locked():
                clear_stale_labs()
                folder = self._take_folder()
            return self._connect(folder)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Ends what runs in the lab and removes it. May be called again."""
        if self._router is not None:
            self._router.terminate()
            self._router.wait()
            self._router = None
        try:
            if self._folder is not None:
                _remove(self._folder)
                self._folder = None
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def wait(self) -> None:
        """Returns when the router ends; where there is none, never."""
        if self._router is not None:
            self._router.wait()
            return
        while True:
            signal.pause()

    def _take_folder(self) -> Path:
        if self._name is None:
            folder = Path(tempfile.mkdtemp(prefix=UNIQUE, dir=LABS))
        else:
            folder = LABS / self._name
            folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = _lock(folder)
        if self._lock is None:
            raise LocalError(f"a lab named {folder.name} is up", f"end it with `ciuic-peer lab down --name {folder.name}`")
        self._folder = folder
        return folder

    def _connect(self, folder: Path) -> RunningLab:
        addresses = {host.name: f"10.77.0.{number}" for number, host in enumerate(self._topology.hosts, start=1)}
        if choose_carrier() is Carrier.ROUTER:
            self._router = self._start_router(folder, addresses)
        else:
            connect_by_netem(_space(folder, SWITCH), _spaces(folder, addresses), addresses, self._topology)
        router_pid = self._router.pid if self._router else None
        state = {"router_pid": router_pid, "owner_pid": os.getpid(), "addresses": addresses}
        _write_atomically(folder / "state.json", json.dumps(state))
        return RunningLab(folder, addresses, router_pid, os.getpid())

    def _start_router(self, folder: Path, addresses: dict[str, str]) -> subprocess.Popen[bytes]:
        _write_atomically(folder / "router.cfg", self._topology.router_config())
        devices: list[int] = []
        try:
            for name, address in addresses.items():
                devices.append(_add_host(_space(folder, name), address, self._topology.gso_bytes))
            argv = [str(compile_router()), str(folder / "router.cfg"), str(folder / "stats"), *map(str, devices)]
            # its own session: Ctrl-C is for the owner, who takes the lab down last
            return subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=devices, start_new_session=True)
        finally:
            for device in devices:
                os.close(device)


def attach_lab(name: str) -> RunningLab:
    """The running lab of that name. Raises LocalError when there is none."""
    folder = LABS / name
    with _all_labs_locked():
        lock = _lock(folder) if folder.is_dir() else None
        stale = lock is not None
        if lock is not None:
            os.close(lock)
    if stale or not (folder / "state.json").exists():
        raise LocalError(f"no lab named {name} is up", "start one with `ciuic-peer lab up TOPOLOGY.json`")
    state = json.loads((folder / "state.json").read_text())
    return RunningLab(folder, state["addresses"], state["router_pid"], state["owner_pid"])


def clear_stale_labs() -> None:
    """Removes what owners that died left behind. To be called under the lock on all labs."""
    for folder in LABS.iterdir():
        if folder.is_dir() and (lock := _lock(folder)) is not None:
            _remove(folder)
            os.close(lock)


@contextmanager
def _all_labs_locked() -> Iterator[None]:
    """Held while locks are tried, so that nobody takes a trial for an owner."""
    try:
        LABS.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(LABS / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LocalError(f"{LABS} cannot be written ({error.strerror})", "a lab needs root") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when its owner lives."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _space(folder: Path, host: str) -> str:
    return f"ciuic-{folder.name}-{host}"


def _spaces(folder: Path, hosts: Iterable[str]) -> dict[str, str]:
    return {host: _space(folder, host) for host in hosts}


def _add_host(space: str, address: str, gso_bytes: int) -> int:
    """A namespace with one TUN device in it; returns the descriptor through which the router carries its packets."""
    run_ip("netns", "add", space)
    descriptor, device = open_tun()
    run_ip("link", "set", device, "netns", space)
    run_ip("-n", space, "addr", "add", f"{address}/24", "dev", device)
    run_ip("-n", space, "link", "set", device, "mtu", "1500", "gso_max_size", str(gso_bytes), "up")
    run_ip("-n", space, "link", "set", "lo", "up")
    return descriptor


def _remove(folder: Path) -> None:
    """Kills what runs in the namespaces of this lab, and removes them and the folder."""
    for line in run_ip("netns", "list").splitlines():
        space = line.split()[0]
        if space.startswith(f"ciuic-{folder.name}-"):
            for pid in run_ip("netns", "pids", space).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run_ip("netns", "delete", space)
    shutil.rmtree(folder, ignore_errors=True)


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)
