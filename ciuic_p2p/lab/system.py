"""What a lab asks of the operating system: `ip`, `tc`, the C compiler, TUN devices. Knows no topology."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from enum import StrEnum
from functools import cache
from pathlib import Path

from ciuic_p2p.errors import LocalError

LABS = Path("/run/ciuic-lab")
"""State of all labs. Only root can write there, so root may run what lies there."""

TUN = Path("/dev/net/tun")
ROUTER_SOURCE = Path(__file__).with_name("router.c")

# <linux/if_tun.h>
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
VNET_HEADER_BYTES = 10
IFREQ = struct.Struct("16sH22x")


def run_ip(*arguments: str) -> str:
    """Runs `ip` and returns what it printed. Raises LocalError with its complaint."""
    return _run("ip", arguments)


def run_tc(*arguments: str) -> str:
    """The same for `tc`."""
    return _run("tc", arguments)


def _run(program: str, arguments: tuple[str, ...]) -> str:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        complaint = f"`{program} {' '.join(arguments)}` failed: {result.stderr.strip()}"
        raise LocalError(complaint, "a lab needs root, namespaces and iproute2")
    return result.stdout


def open_tun() -> tuple[int, str]:
    """A new TUN device with segmentation offload: its descriptor and the name that the kernel gave it."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = bytearray(IFREQ.pack(b"ciuic%d", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(descriptor, TUNSETIFF, request)
    fcntl.ioctl(descriptor, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER_BYTES))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return descriptor, IFREQ.unpack(request)[0].rstrip(b"\0").decode()


def compile_router() -> Path:
    """The router's binary, compiled at first use. Raises LocalError when there is no compiler or it refuses."""
    binary = LABS / f"router-{hashlib.sha256(ROUTER_SOURCE.read_bytes()).hexdigest()[:12]}"
    if binary.exists():
        return binary
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LocalError("there is no C compiler", "install gcc")
    LABS.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "router"
        result = subprocess.run([compiler, "-O2", "-o", made, ROUTER_SOURCE], capture_output=True, text=True, check=False)
        if result.returncode:
            raise LocalError(
                f"the router does not compile: {result.stderr.strip().splitlines()[0]}", "install gcc and libc headers"
            )
        arriving = binary.with_suffix(f".{os.getpid()}")
        shutil.copy2(made, arriving)
        arriving.replace(binary)
    return binary


class Carrier(StrEnum):
    """What carries a lab's packets."""

    ROUTER = "router"
    """This package's own, exact about rates and cables; needs a C compiler."""
    NETEM = "netem"
    """The kernel's."""


def lab_available() -> str | None:
    """None when a lab can be brought up here, else the reason why not, in a few words."""
    carrier = choose_carrier()
    return carrier if not isinstance(carrier, Carrier) else None


@cache
def choose_carrier() -> Carrier | str:
    """The router where it works, else netem where that does, else the reason why the router does not. Tries them out."""
    if os.geteuid() != 0:
        return "a lab needs root"
    if shutil.which("ip") is None:
        return "`ip` is not installed (iproute2)"
    space = f"ciuic-try-{os.getpid()}"
    try:
        run_ip("netns", "add", space)
    except LocalError as error:
        return str(error)
    try:
        reason = _why_no_router()
        return Carrier.ROUTER if reason is None else Carrier.NETEM if _has_netem(space) else reason
    finally:
        run_ip("netns", "delete", space)


def _why_no_router() -> str | None:
    try:
        compile_router()
        descriptor, _ = open_tun()
        os.close(descriptor)
    except LocalError as error:
        return error.what
    except OSError as error:
        return f"{TUN}: {error.strerror}"
    return None


def _has_netem(space: str) -> bool:
    try:
        run_ip("-n", space, "link", "add", "here", "type", "veth", "peer", "name", "there")
        run_tc("-n", space, "qdisc", "add", "dev", "here", "root", "handle", "1:", "htb")
        run_tc("-n", space, "qdisc", "add", "dev", "there", "root", "netem", "delay", "1ms")
    except (LocalError, FileNotFoundError):
        return False
    return True
