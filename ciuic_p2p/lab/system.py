"""What a lab asks of the operating system: `ip`, the C compiler, TUN devices. Knows no topology."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
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
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if result.returncode:
        raise LocalError(f"`ip {' '.join(arguments)}` failed: {result.stderr.strip()}", "a lab needs root and namespaces")
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


@cache
def lab_available() -> str | None:
    """None when a lab can be brought up here, else the reason why not, in a few words."""
    if os.geteuid() != 0:
        return "a lab needs root"
    if shutil.which("ip") is None:
        return "`ip` is not installed (iproute2)"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return f"{TUN} is not there"
    space = f"ciuic-try-{os.getpid()}"
    try:
        compile_router()
        run_ip("netns", "add", space)
        run_ip("netns", "delete", space)
        descriptor, _ = open_tun()
        os.close(descriptor)
    except (LocalError, OSError) as error:
        return str(error)
    return None
