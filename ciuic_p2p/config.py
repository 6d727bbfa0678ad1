"""What a daemon is told: the only reader of the environment and of TOML profiles. Knows what a legal value looks like,
not what becomes of it, and nothing of what lies in the home.

Precedence: flag, environment, profile, default. Every setting is one row of `SETTINGS`.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from ciuic_p2p.errors import AddressUnusable, ConfigError
from ciuic_p2p.terms import UNKNOWN_REGION

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """All that `ciuic-peer start` can be told; every field was checked."""

    home: Path
    name: str
    region: str
    joins: tuple[str, ...]
    """Join strings, or multiaddrs with /p2p/; empty: start a new swarm."""
    token: str | None = field(repr=False)
    """From token_file or CIUIC_TOKEN, for joins that are plain multiaddrs. Never logged."""
    token_file: Path | None
    listen: tuple[str, ...]
    """Multiaddrs of libp2p."""
    session_listen: str
    """host:port of sessions and lanes; port 0 lets the system choose."""
    announce: tuple[str, ...]
    """Multiaddrs to tell others instead of those listened on, such as a forwarded port."""
    http: str
    """host:port of status, metrics and dashboard."""
    probe_period_s: float
    lanes_per_peer: int
    lane_mbps: float | None
    """What each lane may send at most; None: as fast as the path carries it."""
    up_mbps: float | None
    """What this machine's line to the network carries; None: found out while rounds run. The same for `down_mbps`."""
    down_mbps: float | None
    forward: bool
    """Carry bytes between two other peers of the swarm that have no better way to each other."""
    replicas: int
    """Copies of each shard of an object that repairs see to; the same on all peers of a swarm."""
    store_quota_bytes: int | None
    """What shards may take here; None: the disk alone limits it."""
    store_reserve_bytes: int
    """What the store leaves free on its disk."""
    repair_period_s: float
    """Between two repairs of the store."""
    scrub_period_s: float
    """In which all shards of the store are read once and compared with their names."""
    gone_after_s: float
    """How long the copies of a silent peer count; then they are made anew."""
    snapshot_every_s: float
    """A run's state is saved so often, at the boundary of an epoch."""
    log_level: str
    json: bool
    """Print the ready line as JSON."""


def home_from(explicit: str | Path | None) -> Path:
    """The home folder: `explicit`, else CIUIC_HOME, else the platform's user data folder. It need not exist yet."""
    chosen = explicit or os.environ.get("CIUIC_HOME") or platformdirs.user_data_dir("ciuic")
    return Path(chosen).expanduser().absolute()


def socket_path(home: Path) -> Path:
    """The unix socket on which the daemon of this home answers."""
    return home / "daemon.sock"


def debug_wanted() -> bool:
    """Whether CIUIC_DEBUG asks for tracebacks."""
    return os.environ.get("CIUIC_DEBUG", "") not in ("", "0")


def child_environment(**extra: str) -> dict[str, str]:
    """For a process whose daemon is not the user's: this environment without its CIUIC_ settings, and `extra`."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CIUIC_")} | extra


def load_config(flags: Mapping[str, Any], profile_path: Path | None, environ: Mapping[str, str]) -> DaemonConfig:
    """The settings of one daemon.

    `flags` has a key for each row of SETTINGS, or "json"; None, an empty tuple and an absent key all mean: not given.
    Raises ConfigError that names the flag, the variable, or the file and key, and the remedy.
    """
    profile = _read_profile(profile_path) if profile_path else {}
    found = {row.key: _look_up(row, flags, profile, environ, profile_path) for row in SETTINGS}
    home, token_file, session_listen = found.pop("home"), found.pop("token_file"), found.pop("session_listen")
    return DaemonConfig(
        **found,
        home=home_from(home),
        token_file=token_file,
        token=_read_token(token_file) if token_file else environ.get("CIUIC_TOKEN", "").strip() or None,
        session_listen=session_listen or _beside(found["listen"][0]),
        json=bool(flags.get("json")),
    )


def split_host_port(address: str) -> tuple[str, int]:
    """("127.0.0.1", 80) of "127.0.0.1:80", ("::1", 80) of "[::1]:80". Raises AddressUnusable."""
    host, colon, port = address.rpartition(":")
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or int(port) > 65535
        or ("[" not in host and ":" in host)
    ):
        raise AddressUnusable(f"{address!r} is not HOST:PORT", "write it as 127.0.0.1:8080 or [::1]:8080")
    return host.strip("[]"), int(port)


# --- how each kind of value is checked; each raises ValueError with what would be right ---------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("give a text that is not empty")
    return value.strip()


def _word(value: object) -> str:
    text = _text(value)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        raise ValueError("give 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit")
    return text


def _several(check: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    def check_each(value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError('give a list, such as ["a", "b"]')
        return tuple(check(item) for item in value)

    return check_each


def _at_least_one(check: Callable[[object], tuple[str, ...]]) -> Callable[[object], tuple[str, ...]]:
    def check_all(value: object) -> tuple[str, ...]:
        values = check(value)
        if not values:
            raise ValueError("give at least one")
        return values

    return check_all


def _protocols(text: str) -> list[tuple[str, str]]:
    """Names and values of a multiaddr's parts."""
    from multiaddr import Multiaddr  # here, because the command line's other commands need none
    from multiaddr.exceptions import Error

    try:
        return [(protocol.name, value) for protocol, value in Multiaddr(text).items()]
    except (Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a multiaddr: {error}") from None


def _multiaddr(value: object) -> str:
    text = _text(value)
    _protocols(text)
    return text


def _listen_address(value: object) -> str:
    text = _text(value)
    names = [name for name, _ in _protocols(text)]
    if names[:1] not in (["ip4"], ["ip6"]) or names[1:2] != ["tcp"]:
        raise ValueError(f"{text!r} cannot be listened on; write it as /ip4/0.0.0.0/tcp/4001")
    return text


def _join(value: object) -> str:
    text = _text(value)
    if not text.startswith("ciuic1") and "p2p" not in [name for name, _ in _protocols(text)]:
        raise ValueError(
            f"{text!r} names no peer; use what `ciuic-peer invite` prints there, or an address that ends in /p2p/…"
        )
    return text


def _host_port(value: object) -> str:
    text = _text(value)
    try:
        split_host_port(text)
    except AddressUnusable as error:
        raise ValueError(error.remedy) from None
    return text


def _path(value: object) -> Path:
    text = str(value) if isinstance(value, Path) else _text(value)
    if "\0" in text:
        raise ValueError("give a path")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~name of a user who does not exist
        raise ValueError(str(error)) from None


def _period_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 3600:
        raise ValueError("give seconds between 0.05 and 3600")
    return float(value)


def _wait_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 30 * 86_400:
        raise ValueError("give seconds between 0 and 2592000")
    return float(value)


def _replica_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 16:
        raise ValueError("give a whole number between 1 and 16")
    return value


def _size_bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 60:
        raise ValueError("give a whole number of bytes")
    return value


def _snapshot_period_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 30 * 86_400:
        raise ValueError("give seconds between 1 and 2592000")
    return float(value)


def _scrub_period_s(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.05 <= value <= 365 * 86_400:
        raise ValueError("give seconds between 0.05 and 31536000")
    return float(value)


def _lane_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
        raise ValueError("give a whole number between 1 and 64")
    return value


def _rate_mbps(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.01 <= value <= 1e6:
        raise ValueError("give Mbit/s between 0.01 and 1000000")
    return float(value)


def _yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


def _log_level(value: object) -> str:
    level = _text(value).lower()
    if level not in ("debug", "info", "warning", "error"):
        raise ValueError("give debug, info, warning or error")
    return level


# --- the settings, and where each is looked for ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: its key in profiles, its flag, how its text in the environment is read, its check, its default."""

    key: str
    flag: str
    from_text: Callable[[str], object]
    check: Callable[[object], Any]
    default: Callable[[], Any]

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "CIUIC_" + self.flag.removeprefix("--").replace("-", "_").upper()


def _as_list(text: str) -> list[str]:
    return [part for part in re.split(r"[\s,]+", text) if part]


def _as_number(read: Callable[[str], object]) -> Callable[[str], object]:
    def read_number(text: str) -> object:
        try:
            return read(text)
        except ValueError:
            return text  # the check says what is wrong with it

    return read_number


def _as_yes_or_no(text: str) -> object:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.strip().lower(), text)


def _host_name() -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")
    return plain[:63] or "peer"


SETTINGS = (
    Setting("home", "--home", str, _path, lambda: None),
    Setting("name", "--name", str, _word, _host_name),
    Setting("region", "--region", str, _word, lambda: UNKNOWN_REGION),
    Setting("joins", "--join", _as_list, _several(_join), tuple),
    Setting("token_file", "--token-file", str, _path, lambda: None),
    Setting("listen", "--listen", _as_list, _at_least_one(_several(_listen_address)), lambda: ("/ip4/0.0.0.0/tcp/0",)),
    Setting("session_listen", "--session-listen", str, _host_port, lambda: None),
    Setting("announce", "--announce", _as_list, _several(_multiaddr), tuple),
    Setting("http", "--http", str, _host_port, lambda: "127.0.0.1:0"),
    Setting("probe_period_s", "--probe-period-s", _as_number(float), _period_s, lambda: 1.0),
    Setting("lanes_per_peer", "--lanes-per-peer", _as_number(int), _lane_count, lambda: 2),
    Setting("lane_mbps", "--lane-mbps", _as_number(float), _rate_mbps, lambda: None),
    Setting("up_mbps", "--up-mbps", _as_number(float), _rate_mbps, lambda: None),
    Setting("down_mbps", "--down-mbps", _as_number(float), _rate_mbps, lambda: None),
    Setting("forward", "--forward", _as_yes_or_no, _yes_or_no, lambda: True),
    Setting("replicas", "--replicas", _as_number(int), _replica_count, lambda: 3),
    Setting("store_quota_bytes", "--store-quota-bytes", _as_number(int), _size_bytes, lambda: None),
    Setting("store_reserve_bytes", "--store-reserve-bytes", _as_number(int), _size_bytes, lambda: 1 << 30),
    Setting("repair_period_s", "--repair-period-s", _as_number(float), _period_s, lambda: 60.0),
    Setting("scrub_period_s", "--scrub-period-s", _as_number(float), _scrub_period_s, lambda: 604_800.0),
    Setting("gone_after_s", "--gone-after-s", _as_number(float), _wait_s, lambda: 600.0),
    Setting("snapshot_every_s", "--snapshot-every-s", _as_number(float), _snapshot_period_s, lambda: 7200.0),
    Setting("log_level", "--log-level", str, _log_level, lambda: "info"),
)


def _look_up(
    row: Setting, flags: Mapping[str, Any], profile: Mapping[str, Any], environ: Mapping[str, str], file: Path | None
) -> Any:
    flag = flags.get(row.key)
    if flag is not None and flag not in ((), []):
        return _checked(row.check, flag, f"the flag {row.flag}")
    text = environ.get(row.variable, "")
    if text.strip():
        return _checked(row.check, row.from_text(text), f"the variable {row.variable}")
    if row.key in profile and file is not None:
        value = _checked(row.check, profile[row.key], f"{file}: {row.key}")
        return file.parent / value if isinstance(value, Path) else value
    return row.default()


def _checked(check: Callable[[object], Value], value: object, origin: str) -> Value:
    try:
        return check(value)
    except ValueError as error:
        raise ConfigError(f"{origin} is wrong", str(error)) from None


def _read_profile(path: Path) -> dict[str, Any]:
    try:
        profile = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read ({error.strerror})", "check the path after --profile") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", 'write lines such as name = "node-us"') from None
    known = [row.key for row in SETTINGS]
    for key in profile:
        if key not in known:
            raise ConfigError(f"{path}: {key} is not a setting", f"the settings are {', '.join(known)}")
    return profile


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token file {path} cannot be read ({error})", "check the path after --token-file") from None
    if not token:
        raise ConfigError(f"the token file {path} is empty", "write the token into it that you were given")
    return token


def _beside(listen: str) -> str:
    """Where sessions listen when nobody said: the host of libp2p, and its port + 1 where that is fixed."""
    parts = _protocols(listen)
    host, port = parts[0][1], int(parts[1][1])
    chosen = port + 1 if 0 < port < 65535 else 0
    return f"[{host}]:{chosen}" if ":" in host else f"{host}:{chosen}"
