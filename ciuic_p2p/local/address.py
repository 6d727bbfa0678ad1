"""Names a unix socket so that any home works: the kernel takes at most 107 bytes of path. Opens no socket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_ADDRESS_BYTES = 107
"""sun_path in unix(7), without the closing zero."""


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address of `path` for bind or connect, valid inside the block. Raises OSError when its folder cannot be opened."""
    if len(os.fsencode(path)) <= LONGEST_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
