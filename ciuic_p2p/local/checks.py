"""Checks of single fields of local messages. Each raises MalformedMessage naming the field; none knows a message."""

from __future__ import annotations

import math
import re
from typing import Any

from ciuic_p2p.errors import MalformedMessage

LARGEST_WHOLE = (1 << 63) - 1
LONGEST_TEXT = 4096
MOST_TEXTS = 100_000
LONGEST_RUN_NAME = 128
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_STATE_HASH = re.compile(r"[0-9a-f]{64}")


def instance(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise MalformedMessage(None, f"{name} is a {type(value).__name__} instead of a {kind.__name__}")


def whole(name: str, value: object, *, least: int = 0, most: int = LARGEST_WHOLE) -> None:
    """A whole number in [least, most]; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise MalformedMessage(None, f"{name} must be a whole number from {least} to {most}")


def number(name: str, value: object, *, least: float = -math.inf, most: float = math.inf) -> None:
    """A finite number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise MalformedMessage(None, f"{name} must be a finite number")
    if not least <= value <= most:
        raise MalformedMessage(None, f"{name} must be a number from {least} to {most}")


def word(name: str, value: object) -> None:
    """A short name of letters, digits, `_` and `-`."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise MalformedMessage(None, f"{name} must be a word of at most 64 letters, digits, _ and -")


def text(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise MalformedMessage(None, f"{name} must be a text of at most {LONGEST_TEXT} characters")


def absolute_path(name: str, value: object) -> None:
    """The daemon's own folder is nobody else's."""
    text(name, value)
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise MalformedMessage(None, f"{name} must be an absolute path")


def texts(name: str, value: object) -> None:
    if not isinstance(value, tuple) or len(value) > MOST_TEXTS:
        raise MalformedMessage(None, f"{name} must be a list of at most {MOST_TEXTS} texts")
    for one in value:
        text(f"an entry of {name}", one)


def run_name(name: str, value: object) -> None:
    """A run's name is shown in tables and logs: printable, not empty, without white space around it."""
    shown_whole = isinstance(value, str) and value.isprintable() and value == value.strip()
    if not isinstance(value, str) or not shown_whole or not 0 < len(value) <= LONGEST_RUN_NAME:
        raise MalformedMessage(None, f"{name} must be 1 to {LONGEST_RUN_NAME} printable characters")


def mapping(name: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MalformedMessage(None, f"{name} must be a map with texts as keys")


def state_hash(name: str, value: object) -> None:
    if not isinstance(value, str) or not _STATE_HASH.fullmatch(value):
        raise MalformedMessage(None, f"{name} must be 64 hexadecimal digits")
