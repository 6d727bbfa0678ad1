"""A source: the records of all files under a URL, in constant memory, from any place on. Everything is opened by fsspec."""

from __future__ import annotations

import functools
import gzip
import posixpath
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import IO, Any, cast

import fsspec
from blake3 import blake3

from ciuic_p2p.data.formats.arrays import read_npy, read_raw
from ciuic_p2p.data.formats.lines import read_jsonl, read_lines, read_paragraphs
from ciuic_p2p.data.formats.parquet import read_parquet
from ciuic_p2p.data.formats.streams import decompressed
from ciuic_p2p.data.formats.webdataset import read_webdataset
from ciuic_p2p.data.order import Order
from ciuic_p2p.data.records import START, Broken, Place, ReadFile, Record
from ciuic_p2p.data.slots import Slots
from ciuic_p2p.errors import LocalError, Transient

_ENDINGS: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "lines",
    ".text": "lines",
    ".parquet": "parquet",
    ".tar": "webdataset",
    ".npy": "npy",
    ".bin": "raw",
}
COMPRESSIONS = (".gz", ".zst")
_STREAMED: dict[str, ReadFile] = {
    "jsonl": read_jsonl,
    "lines": read_lines,
    "paragraphs": read_paragraphs,
    "webdataset": read_webdataset,
}
FORMATS = ("jsonl", "lines", "paragraphs", "parquet", "webdataset", "npy", "raw")
"""Names of formats. `raw` needs a dtype and the length of a row; `paragraphs` is asked for, text is otherwise read by lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A record, and the place after it."""

    record: Record
    after: Place


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where records come from. Making one reads nothing."""

    url: str
    """Of a file, a pattern such as `s3://bucket/*.jsonl.gz`, or a folder with all that lies under it."""
    format: str | None = None
    """One of FORMATS; None: by each file's ending."""
    shuffle_seed: int | None = None
    """With a seed, each pass takes the files in another order."""
    columns: tuple[str, ...] | None = None
    """Of parquet: only these."""
    dtype: str | None = None
    """Of raw arrays, such as "uint16"."""
    row: int = 1
    """Of raw arrays: values in a record."""
    storage_options: dict[str, Any] = field(default_factory=dict)
    """For fsspec, such as credentials. Never logged."""

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise LocalError(f"{self.format!r} is no format of records", f"use one of {', '.join(FORMATS)}")

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """Their paths in the file system, in ascending order. Raises LocalError where there are none, Transient."""
        return tuple(name for name, _ in self._listing)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, by names and sizes of the files: places are good only as long as it is the same.

        Where the folder lies does not matter, so a place is good for a copy of the data too.
        """
        folder = len(posixpath.commonpath([name.rpartition("/")[0] for name in self.files]))
        listed = "\0".join(f"{name[folder:]}\0{size}" for name, size in self._listing)
        return blake3(f"ciuic source\0{listed}".encode(errors="surrogatepass")).hexdigest(length=16)

    def read(self, start: Place = START, pass_number: int = 0) -> Iterator[SourceRecord]:
        """All records from `start` on, file by file. Raises LocalError for broken content, Transient for lost connections."""
        for index in range(start.file, len(self.files)):
            place = start if index == start.file else Place(file=index)
            yield from self._read_file(self._file_at(index, pass_number), place)

    def _file_at(self, index: int, pass_number: int) -> str:
        if self.shuffle_seed is None:
            return self.files[index]
        order = Order(len(self.files), self.shuffle_seed)
        return self.files[next(order.samples_of(Slots.of([(pass_number, index, index + 1)])))]

    def _read_file(self, name: str, place: Place) -> Iterator[SourceRecord]:
        read_file = self.reader_of(name)
        number = place.record
        with self._opened(name) as stream:
            try:
                for number, read in enumerate(read_file(stream, place), start=place.record + 1):
                    yield SourceRecord(record=read.record, after=Place(place.file, number, read.offset))
            except (Broken, EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LocalError(f"{name}, after record {number}: {error}", "repair or remove the file") from error

    @contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        with translated(f"read {name}"), self.system.open(name, "rb") as stream:
            yield decompressed(cast("IO[bytes]", stream), name)

    def kind_of(self, name: str) -> str:
        """The format of one of its files, one of FORMATS. Raises LocalError."""
        kind = self.format or format_of(name)
        if kind is None:
            raise LocalError(f"the ending of {name} says no format", f"name one of {', '.join(FORMATS)}")
        return kind

    def reader_of(self, name: str) -> ReadFile:
        """For one of its files, once that is decompressed. Raises LocalError where it cannot be read as what it should be."""
        kind = self.kind_of(name)
        if kind == "parquet":
            read_file: ReadFile = functools.partial(read_parquet, columns=self.columns)
        elif kind == "raw":
            if self.dtype is None:
                raise LocalError(f"{name} is a raw array, which does not say of what", 'give its dtype, such as "uint16"')
            read_file = functools.partial(read_raw, dtype=self.dtype, row=self.row)
        else:
            read_file = _STREAMED.get(kind, read_npy)
        if kind not in _STREAMED and name.endswith(COMPRESSIONS):
            raise LocalError(f"{name} is compressed as a whole, so {kind} in it cannot be sought in", "decompress it")
        return read_file

    @functools.cached_property
    def _located(self) -> tuple[Any, str]:
        with translated(f"open {self.url}"):
            if "ciuic" not in fsspec.available_protocols():  # not installed, as from a checkout
                fsspec.register_implementation("ciuic", "ciuic_p2p.fs.CiuicFileSystem")
            system, path = fsspec.core.url_to_fs(self.url, **self.storage_options)
            return system, str(path)

    def with_home(self, home: str | PathLike[str]) -> Source:
        """Objects come from the daemon of this home, where nothing else is said; of other files it is the same source."""
        if not self.url.startswith("ciuic://") or "home" in self.storage_options:
            return self
        return replace(self, storage_options={"home": fspath(home), **self.storage_options})

    @property
    def system(self) -> Any:
        """That of fsspec in which the files lie. Raises LocalError, Transient."""
        return self._located[0]

    @functools.cached_property
    def infos(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """(name, what the file system says of it) of each file, as they are listed once. Raises what `files` raises."""
        system, path = self._located
        with translated(f"list {self.url}"):
            if any(sign in path for sign in "*?["):
                found = system.glob(path, detail=True)
            elif system.isdir(path):
                found = system.find(path, detail=True)
            else:
                return ((path, system.info(path)),)
        listed = {name: info for name, info in found.items() if info.get("type") == "file" and self._is_wanted(name)}
        if not listed:
            raise LocalError(f"{self.url} holds no file of records", "check the URL, or name the format of its files")
        return tuple((name, listed[name]) for name in sorted(listed))

    @property
    def _listing(self) -> tuple[tuple[str, int], ...]:
        """(name, size in bytes) of each file."""
        return tuple((name, int(info.get("size") or 0)) for name, info in self.infos)

    def _is_wanted(self, name: str) -> bool:
        """Hidden files and what writers leave beside their files, such as _SUCCESS, are not."""
        base = name.rpartition("/")[2]
        return not base.startswith((".", "_")) and (self.format is not None or format_of(name) is not None)


def format_of(name: str) -> str | None:
    """By the ending, before that of a compression; None where it says nothing."""
    for compression in COMPRESSIONS:
        name = name.removesuffix(compression)
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """What fsspec and its file systems raise, as LocalError where the user must act and Transient where time may help."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise LocalError(f"cannot {doing}: it is not there", "check the URL") from error
    except PermissionError as error:
        raise LocalError(f"cannot {doing}: no permission", "check the credentials in storage_options") from error
    except ImportError as error:
        raise LocalError(f"cannot {doing}: {error}", "install what it names") from error
    except ValueError as error:
        raise LocalError(f"cannot {doing}: {error}", "check the URL") from error
    except OSError as error:
        raise Transient(f"cannot {doing}: {type(error).__name__}: {error}") from error
