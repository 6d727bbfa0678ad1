"""Records of files in any order, as a map-style dataset. Knows neither where files are kept nor how they are read.

DataLoader(Records("s3://bucket/corpus"), batch_size=32, shuffle=True)
run.shard("ciuic://data/corpus", batch_size=32)
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Any

from blake3 import blake3

from ciuic_p2p.config import home_from
from ciuic_p2p.data.cache import Cache, IndexedFile
from ciuic_p2p.data.formats.access import Opened
from ciuic_p2p.data.records import Broken, Record
from ciuic_p2p.data.sources import Source
from ciuic_p2p.errors import LocalError

_MOST_OPEN = 64
"""Files of one dataset, in each process."""


class Records:
    """All records under a URL, in the order of the files' names. May be pickled, and read by forked processes and threads."""

    def __init__(self, source: str | os.PathLike[str] | Source, home: str | os.PathLike[str] | None = None) -> None:
        """source: a URL of a file, of a folder, or a pattern; a Source where more is to be said, such as the format.

        home: in its folder `datasets` is kept what is not a file of this machine, or is packed, and the indexes; default:
        CIUIC_HOME, else the user's data folder. The first time all files are fetched and read once.

        Raises LocalError, also for records that are broken; Transient for lost connections.
        """
        if not isinstance(source, Source):
            source = Source(url=os.fspath(source))
        folder = home_from(None if home is None else Path(home))
        self._source = source.with_home(folder)
        cache = Cache(folder / "datasets")
        self._files = tuple(cache.index(self._source, name, info) for name, info in self._source.infos)
        self._ends = list(accumulate(file.count for file in self._files))
        self._open = _OpenFiles(self._source)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Record:
        """Raises IndexError, and LocalError when the file was changed since it was indexed."""
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"record {number} of {count}")
        number %= count
        at = bisect_right(self._ends, number)
        file = self._files[at]
        return self._open.read(file, number - (self._ends[at] - file.count))

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, by the contents of the files in their order; what they are called does not matter."""
        parts = [(file.kind, file.digest, file.count) for file in self._files]
        return blake3(repr(["ciuic records", parts]).encode()).hexdigest(length=16)


class _OpenFiles:
    """Those that were used last, in this process."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._begin()

    def read(self, file: IndexedFile, number: int) -> Record:
        if self._process != os.getpid():  # forked: the places in these files are the parent's
            self._begin()
        with self._lock:
            if not file.is_the_same():
                raise LocalError(f"{file.name} was changed since it was indexed", "make the dataset again")
            try:
                return self._opened(file).read(number)
            except Broken as error:
                raise LocalError(f"{file.name}, record {number}: {error}", "make the dataset again") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _OpenFiles, (self._source,)

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, Opened] = OrderedDict()

    def _opened(self, file: IndexedFile) -> Opened:
        if file.path in self._open:
            self._open.move_to_end(file.path)
        else:
            self._open[file.path] = file.open(self._source)
            if len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
        return self._open[file.path]
