"""Frozen dataclasses ⇄ msgpack, by their annotations. Every type, range and size is checked; nothing else is ever built.

Knows no message by name; `core/messages.py` and `core/records.py` give the classes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

import msgpack

from ciuic_p2p.errors import MalformedMessage

LONGEST_TEXT = 4096
LARGEST_INTEGER = (1 << 63) - 1
LONGEST_TUPLE = 1 << 17

T = TypeVar("T")


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(cls))


def to_wire(value: Any) -> Any:
    """A dataclass as the list of its fields; tuples as lists; the rest as it is."""
    if dataclasses.is_dataclass(value):
        return [to_wire(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [to_wire(item) for item in value]
    return value


def from_wire(annotation: Any, value: Any) -> Any:
    """The inverse. Raises MalformedMessage for a wrong type, a wrong count, a range or a size exceeded."""
    if isinstance(annotation, typing.NewType):
        return from_wire(annotation.__supertype__, value)
    if dataclasses.is_dataclass(annotation):
        return _dataclass_from_wire(annotation, value)
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return _tuple_from_wire(typing.get_args(annotation), value)
    if origin is types.UnionType:
        return _optional_from_wire(typing.get_args(annotation), value)
    return _scalar_from_wire(annotation, value)


def _dataclass_from_wire(cls: Any, value: Any) -> Any:
    fields = _fields(cls)
    if not isinstance(value, list) or len(value) != len(fields):
        raise MalformedMessage(None, f"{cls.__name__} needs {len(fields)} fields")
    try:
        return cls(**{name: from_wire(hint, item) for (name, hint), item in zip(fields, value, strict=True)})
    except ValueError as error:
        raise MalformedMessage(None, f"{cls.__name__}: {error}") from None


def _tuple_from_wire(arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > LONGEST_TUPLE:
        raise MalformedMessage(None, f"a list of at most {LONGEST_TUPLE} items is wanted")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(from_wire(arguments[0], item) for item in value)
    if len(value) != len(arguments):
        raise MalformedMessage(None, f"a list of {len(arguments)} items is wanted")
    return tuple(from_wire(hint, item) for hint, item in zip(arguments, value, strict=True))


def _optional_from_wire(arguments: tuple[Any, ...], value: Any) -> Any:
    if value is None and types.NoneType in arguments:
        return None
    return from_wire(next(a for a in arguments if a is not types.NoneType), value)


def _scalar_from_wire(annotation: Any, value: Any) -> Any:
    if annotation is float and type(value) is int:
        value = float(value)
    if type(value) is not annotation:
        raise MalformedMessage(None, f"{annotation.__name__} is wanted, {type(value).__name__} came")
    if annotation is int and not 0 <= value <= LARGEST_INTEGER:
        raise MalformedMessage(None, "an integer is out of range")
    if annotation is str and len(value) > LONGEST_TEXT:
        raise MalformedMessage(None, f"a text is longer than {LONGEST_TEXT} characters")
    if annotation is float and not math.isfinite(value):
        raise MalformedMessage(None, "a number is not finite")
    return value


def unpack(data: bytes | memoryview, largest_bytes: int) -> Any:
    """One msgpack value of at most `largest_bytes`; raises MalformedMessage."""
    if len(data) > largest_bytes:
        raise MalformedMessage(None, f"{len(data)} bytes where at most {largest_bytes} are taken")
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedMessage(None, f"not msgpack ({type(error).__name__})") from None
