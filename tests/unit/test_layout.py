"""Which tensor lies where in the flat array."""

from __future__ import annotations

import pytest

from ciuic_p2p.errors import LayoutMismatch
from ciuic_p2p.tensors.layout import Entry, Layout, Role


def entry(name: str, *shape: int, role: Role = "parameter", dtype: str = "float32") -> Entry:
    return Entry(name=name, shape=shape, dtype=dtype, role=role)


MODEL = Layout.arrange(
    [
        entry("conv.weight", 8, 1, 3, 3),
        entry("norm.running_mean", 8, role="buffer"),
        entry("scale"),
        entry("fc.weight", 10, 8, dtype="bfloat16"),
    ]
)


def test_parameters_come_first_in_the_order_of_the_model() -> None:
    assert [each.name for each in MODEL.entries] == ["conv.weight", "scale", "fc.weight", "norm.running_mean"]
    assert MODEL.offsets == (0, 72, 73, 153)
    assert (MODEL.parameter_count, MODEL.count) == (153, 161)


def test_fingerprint_is_pinned() -> None:
    assert MODEL.fingerprint == "bc3cd6d45ad273e5bffbee77c5b0dfe6fdd2f8bf328eb6ba38eeccd5bc3c11ee"


@pytest.mark.parametrize(
    "changed",
    [
        entry("scale", role="buffer"),
        entry("scale", 1),
        entry("scales"),
        entry("scale", dtype="float16"),
    ],
)
def test_every_field_changes_fingerprint_and_difference(changed: Entry) -> None:
    other = Layout.arrange([changed if each.name == "scale" else each for each in MODEL.entries])
    assert other.fingerprint != MODEL.fingerprint
    with pytest.raises(LayoutMismatch) as refusal:
        MODEL.require_same(other)
    assert "tensor 1 is parameter scale float32 scalar, in the other" in str(refusal.value)


def test_missing_and_added_tensors_are_named() -> None:
    shorter = Layout(MODEL.entries[:-1])
    assert MODEL.describe_difference(shorter) == "tensor 3 (buffer norm.running_mean float32 8) is missing from the other"
    assert shorter.describe_difference(MODEL) == "tensor 3 (buffer norm.running_mean float32 8) is only in the other"


def test_same_layouts_do_not_differ() -> None:
    assert MODEL.describe_difference(Layout.from_wire(MODEL.to_wire())) == ""
    MODEL.require_same(Layout(MODEL.entries))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ((), "0 tensors"),
        ((entry("a"), entry("b"), entry("a", 3)), "a occurs twice"),
        ((entry("a", role="buffer"), entry("b")), "before a parameter"),
        ((entry("a", 2**20, 2**20), entry("b")), "at most"),
    ],
)
def test_impossible_layouts_are_refused(entries: tuple[Entry, ...], says: str) -> None:
    with pytest.raises(LayoutMismatch, match=says):
        Layout(entries)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "0 characters"),
        ({"name": "x" * 600}, "600 characters"),
        ({"name": "a\nb"}, "do not print"),
        ({"shape": (2, -1)}, "impossible shape"),
        ({"shape": (2**41,)}, "impossible shape"),
        ({"dtype": "int64"}, "int64"),
        ({"role": "gradient"}, "neither"),
    ],
)
def test_impossible_entries_are_refused(fields: dict[str, object], says: str) -> None:
    good: dict[str, object] = {"name": "w", "shape": (2,), "dtype": "float32", "role": "parameter"}
    with pytest.raises(LayoutMismatch, match=says):
        Entry(**(good | fields))  # type: ignore[arg-type]  # wrong on purpose
