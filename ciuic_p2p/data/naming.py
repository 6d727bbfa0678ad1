"""What a dataset is called in a run: its name, and where its contents are known, a mark of them. Pure.

So two peers whose files differ do not divide them as if they were the same.
"""

from __future__ import annotations

import re

from blake3 import blake3

_MARKED = re.compile(r"(.*) #[0-9a-f]{16}", re.DOTALL)


def mark_dataset(name: str, *contents: object) -> str:
    """The name with a mark, which is another one where one of `contents` is."""
    return f"{name} #{blake3(repr(contents).encode()).hexdigest(length=8)}"


def name_of(dataset: str) -> str:
    """Without the mark, where there is one."""
    found = _MARKED.fullmatch(dataset)
    return found[1] if found else dataset
