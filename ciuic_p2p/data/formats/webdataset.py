"""WebDataset: a tar file in which members that share a name up to its first dot are one sample.

It is read as a stream and never extracted: names are only compared and split, so none of them reaches the disk.
(https://github.com/webdataset/webdataset#the-webdataset-format)
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

from ciuic_p2p.data.formats.streams import go_to
from ciuic_p2p.data.records import LARGEST_RECORD_BYTES, Broken, Place, Read

_LARGEST_HEADER_BYTES = 1 << 20
KEY = "__key__"
"""The field that holds the name up to its first dot; the others hold bytes, by what follows that dot."""


def read_webdataset(stream: IO[bytes], place: Place) -> Iterator[Read]:
    """A record a sample. Links, folders and devices are passed over. Raises Broken."""
    go_to(stream, place.offset)
    sample: dict[str, Any] = {}
    size_bytes = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in _members(archive):
                key, field = _split(member.name)
                if sample and sample[KEY] != key:
                    yield Read(sample, place.offset + member.offset)
                    sample, size_bytes = {}, 0
                size_bytes += tarfile.BLOCKSIZE + member.size  # with its header, else empty members without end would be small
                if size_bytes > LARGEST_RECORD_BYTES:
                    raise Broken(f"a sample is larger than {LARGEST_RECORD_BYTES >> 20} MiB")
                if field in sample:
                    raise Broken(f"sample {key!r} has two members {field!r}")
                sample[KEY] = key
                sample[field] = _content(archive, member)
            end = place.offset + archive.offset
    except tarfile.TarError as error:
        if place.record and not sample and str(error) == "empty file":
            return  # it was read to its end before
        raise Broken(f"no tar: {error}") from None
    if sample:
        yield Read(sample, end)


class _Member(tarfile.TarInfo):
    """A header. tarfile takes a broken one in the middle for the archive's end, which would lose samples in silence; and it
    reads extended headers whole, whatever their size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if not header.isreg() and header.size > _LARGEST_HEADER_BYTES:
            raise Broken(f"a header of {header.size} bytes")
        return header

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise Broken(f"no tar: {error} at byte {tarfile_.offset}") from None


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Those with content and a name. The list that tarfile keeps of all is emptied: it would grow with the archive."""
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # webdataset does the same
        if member.isreg() and _split(member.name)[1]:
            yield member


def _split(name: str) -> tuple[str, str]:
    """ "a/b.c/12.seg.png" → ("a/b.c/12", "seg.png")."""
    folder, slash, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    return folder + slash + stem, field.lower()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise Broken(f"the file ends inside {member.name!r}")
    return data
