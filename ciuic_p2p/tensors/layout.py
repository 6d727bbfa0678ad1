"""Which tensor of the model lies where in the flat float32 array that peers average. Knows names and shapes, no tensor."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import blake3

from ciuic_p2p.errors import LayoutMismatch, MalformedMessage

Role = Literal["parameter", "buffer"]

MOST_ENTRIES = 20_000
MOST_VALUES = 1 << 40
_LONGEST_NAME = 512
_MOST_DIMENSIONS = 16
_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
_FINGERPRINT_DOMAIN = "ciuic layout 1"
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor of the model. Raises LayoutMismatch when a field is out of range."""

    name: str
    """Dotted, as torch's `named_parameters` gives it."""
    shape: tuple[int, ...]
    dtype: str
    """Of the model's own tensor, without `torch.`; in the flat array every value is a float32."""
    role: Role

    def __post_init__(self) -> None:
        if not (0 < len(self.name) <= _LONGEST_NAME and self.name.isprintable()):
            raise LayoutMismatch(f"a tensor's name has {len(self.name)} characters, or some that do not print")
        if len(self.shape) > _MOST_DIMENSIONS or any(size < 0 for size in self.shape) or self.count > MOST_VALUES:
            raise LayoutMismatch(f"tensor {self.name} has the impossible shape {list(self.shape)[:_MOST_DIMENSIONS]}")
        if self.dtype not in _DTYPES:
            raise LayoutMismatch(f"tensor {self.name} is {self.dtype[:32]}", f"only {', '.join(sorted(_DTYPES))} are averaged")
        if self.role not in get_args(Role):
            raise LayoutMismatch(f"tensor {self.name} is neither a parameter nor a buffer")

    @property
    def count(self) -> int:
        """Number of values; 1 for a scalar."""
        return math.prod(self.shape)

    def describe(self) -> str:
        """One line that reads one way only: role, dtype and shape hold no spaces."""
        return f"{self.role} {self.name} {self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Parameters first, then floating buffers, each in the model's order.

    Raises LayoutMismatch when they are in another order, a name occurs twice, or there are too many.
    """

    entries: tuple[Entry, ...]
    frozen: str = ""
    """Fingerprint of the parameters that are not trained and do not travel; empty when there are none."""

    def __post_init__(self) -> None:
        if not 0 < len(self.entries) <= MOST_ENTRIES:
            raise LayoutMismatch(f"{len(self.entries)} tensors to average, between 1 and {MOST_ENTRIES} are possible")
        if self.frozen and not _HASH.fullmatch(self.frozen):
            raise LayoutMismatch("the fingerprint of the frozen parameters is none")
        names: set[str] = set()
        for entry in self.entries:
            if entry.name in names:
                raise LayoutMismatch(f"tensor {entry.name} occurs twice")
            names.add(entry.name)
        roles = [entry.role for entry in self.entries]
        if roles != sorted(roles, reverse=True):
            raise LayoutMismatch("a buffer comes before a parameter")
        if self.count > MOST_VALUES:
            raise LayoutMismatch(f"{self.count} values to average, at most {MOST_VALUES} are possible")

    @classmethod
    def arrange(cls, entries: Iterable[Entry]) -> Layout:
        """The layout of these tensors: parameters moved before buffers, otherwise in the order given."""
        return cls(tuple(sorted(entries, key=lambda entry: entry.role != "parameter")))

    @property
    def parameter_count(self) -> int:
        """Values of the parameters: the flat array's first ones, which the outer optimiser steps with momentum."""
        return sum(entry.count for entry in self.entries if entry.role == "parameter")

    @property
    def count(self) -> int:
        """Values of the whole flat array."""
        return sum(entry.count for entry in self.entries)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each entry begins in the flat array."""
        return tuple(itertools.accumulate((entry.count for entry in self.entries[:-1]), initial=0))

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits: BLAKE3 over the description of every entry, one a line. Frozen parameters have their own."""
        text = "\n".join([_FINGERPRINT_DOMAIN, *(entry.describe() for entry in self.entries)])
        return str(blake3.blake3(text.encode()).hexdigest())

    def describe_difference(self, other: Layout) -> str:
        """One line that names the first tensor in which `other` differs, or an empty one when none does."""
        for index, (mine, theirs) in enumerate(itertools.zip_longest(self.entries, other.entries)):
            if mine == theirs:
                continue
            if theirs is None:
                return f"tensor {index} ({mine.describe()}) is missing from the other"
            if mine is None:
                return f"tensor {index} ({theirs.describe()}) is only in the other"
            return f"tensor {index} is {mine.describe()}, in the other {theirs.describe()}"
        return "" if self.frozen == other.frozen else "the frozen parameters have other values, or others are frozen"

    def require_same(self, other: Layout) -> None:
        """Raises LayoutMismatch with the first difference."""
        if difference := self.describe_difference(other):
            raise LayoutMismatch(difference, "train the same model under another run name, or change it to match")

    def to_wire(self) -> dict[str, Any]:
        """A dict of lists, integers and strings, for from_wire."""
        entries = [[entry.name, list(entry.shape), entry.dtype, entry.role] for entry in self.entries]
        return {"entries": entries, "frozen": self.frozen} if self.frozen else {"entries": entries}

    @classmethod
    def from_wire(cls, message: Any) -> Layout:
        """Raises MalformedMessage for anything that to_wire would not have written."""
        rows = message.get("entries") if isinstance(message, dict) else None
        if not isinstance(rows, list) or len(rows) > MOST_ENTRIES:
            raise MalformedMessage(None, "a layout without a list of entries, or with too many")
        frozen = message.get("frozen", "")
        if not isinstance(frozen, str):
            raise MalformedMessage(None, "a layout whose frozen parameters have no fingerprint")
        try:
            return cls(tuple(_entry_from_wire(row) for row in rows), frozen)
        except LayoutMismatch as error:
            raise MalformedMessage(None, f"an impossible layout: {error.what}") from error


def _entry_from_wire(row: Any) -> Entry:
    if not (isinstance(row, list | tuple) and len(row) == 4):
        raise MalformedMessage(None, "an entry of a layout that is not [name, shape, dtype, role]")
    name, shape, dtype, role = row
    if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(role, str) and isinstance(shape, list | tuple)):
        raise MalformedMessage(None, "an entry of a layout with a field of the wrong type")
    if len(shape) > _MOST_DIMENSIONS or not all(type(size) is int and 0 <= size <= MOST_VALUES for size in shape):
        raise MalformedMessage(None, "an entry of a layout with an impossible shape")
    return Entry(name=name, shape=tuple(shape), dtype=dtype, role=role)  # type: ignore[arg-type]  # Entry checks the role
