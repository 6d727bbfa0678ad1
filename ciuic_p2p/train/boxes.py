"""Boxes that should fill a larger one: the chunks of a tensor. Pure; knows no tensors and no files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes, one of each for every dimension."""

MOST_SPLIT_DIMENSIONS = 4
"""Each doubles the work. A tensor is split along at most as many dimensions as its device mesh has."""


def check_filled(shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Every place of the shape is in exactly one box; boxes without a place in them do not matter.

    Takes time proportional to the boxes, however they lie. Raises ValueError that says what is wrong.

    A box is told by its corners: counted modulo 2, those of all boxes together are those of the shape exactly when every place
    inside is covered an odd number of times, and none outside. As the boxes' volumes add up to the shape's, that number is 1.
    """
    for offsets, sizes in boxes:
        _check_inside(shape, offsets, sizes)
    if sum(math.prod(sizes) for _, sizes in boxes) != math.prod(shape):
        raise ValueError("its chunks do not have as many values as it has")
    boxes = [box for box in boxes if math.prod(box[1])]
    split = [i for i, size in enumerate(shape) if any(offsets[i] or sizes[i] != size for offsets, sizes in boxes)]
    if len(split) > MOST_SPLIT_DIMENSIONS:
        raise ValueError(f"it is split along {len(split)} dimensions, at most {MOST_SPLIT_DIMENSIONS} are allowed")
    odd: set[tuple[int, ...]] = set()
    for offsets, sizes in [(tuple(0 for _ in shape), shape), *boxes]:
        for corner in product(*((offsets[i], offsets[i] + sizes[i]) for i in split)):
            odd ^= {corner}
    # Without a split dimension each box is the whole shape, and its volume has said that there is one.
    if boxes and split and odd:
        raise ValueError("its chunks overlap")


def _check_inside(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if not len(shape) == len(offsets) == len(sizes):
        raise ValueError(f"a chunk does not have its {len(shape)} dimensions")
    for whole, offset, size in zip(shape, offsets, sizes, strict=True):
        if offset < 0 or size < 0 or offset + size > whole:
            raise ValueError("a chunk reaches beyond it")
