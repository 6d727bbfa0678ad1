"""Plain data ⇄ JSON: None, booleans, whole numbers, floats, texts, and lists, tuples and maps of these. Pure.

JSON has neither tuples, nor maps with other keys than texts, nor floats that are not finite: each of these is an object with
one entry that says what it is. Everything else is refused, in both directions; nothing is ever unpickled.

    (0.9, 0.999) → {"tuple": [0.9, 0.999]}      {1: "a"} → {"map": [[1, "a"]]}      inf → {"float": "inf"}
"""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 32
"""Levels of lists and maps in each other."""
LARGEST_WHOLE = (1 << 64) - 1
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: Any, depth: int = 0) -> Any:
    """Raises ValueError that says which value is not plain."""
    _check_depth(depth)
    kind = type(value)  # exactly: a subclass would come back as another type
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return _checked(value)
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is list:
        return [to_json(each, depth + 1) for each in value]
    if kind is tuple:
        return {"tuple": [to_json(each, depth + 1) for each in value]}
    if kind is dict:
        return {"map": [[to_json(key, depth + 1), to_json(each, depth + 1)] for key, each in value.items()]}
    raise ValueError(f"a {kind.__module__}.{kind.__qualname__} is no plain data")


def from_json(value: Any, depth: int = 0) -> Any:
    """The inverse, of what `load_json` gave. Raises ValueError for what `to_json` does not give."""
    _check_depth(depth)
    if isinstance(value, list):
        return [from_json(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return _checked(value) if type(value) is int else value
    if len(value) != 1:
        raise ValueError("an object that does not say what it is")
    ((kind, content),) = value.items()
    if kind == "float" and isinstance(content, str) and content in _NOT_FINITE:
        return _NOT_FINITE[content]
    if kind == "tuple" and isinstance(content, list):
        return tuple(from_json(each, depth + 1) for each in content)
    if kind == "map" and isinstance(content, list):
        return dict(_pair(each, depth + 1) for each in content)
    raise ValueError("an object that does not say what it is")


def load_json(data: bytes) -> Any:
    """UTF-8, no key twice, no number that is none. Raises ValueError."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump_json(value: Any) -> bytes:
    """The same bytes for the same value."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _pair(pair: Any, depth: int) -> tuple[Any, Any]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError("an entry of a map that is no pair")
    key = from_json(pair[0], depth)
    try:
        hash(key)
    except TypeError:
        raise ValueError("a list or a map as the key of a map") from None
    return key, from_json(pair[1], depth)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _checked(number: int) -> int:
    if abs(number) > LARGEST_WHOLE:
        raise ValueError("a whole number of more than 64 bits")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key that is there twice")
    return found
