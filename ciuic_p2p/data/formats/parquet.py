"""Parquet by pyarrow, one row group after the other. Knows nothing of where files lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from ciuic_p2p.data.optional import load
from ciuic_p2p.data.records import Broken, Place, Read

_ROWS = 1 << 10
"""Decoded at once."""


def read_parquet(stream: IO[bytes], place: Place, columns: tuple[str, ...] | None = None) -> Iterator[Read]:
    """A record a row. Row groups before the place are not read. Raises Broken, and LocalError without pyarrow."""
    pyarrow = load("pyarrow")
    parquet = load("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(stream)
        skipped, groups = _groups_from(file.metadata, place.record)
        chosen = list(columns) if columns is not None else None
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups, columns=chosen):
            rest = batch.slice(min(skipped, batch.num_rows))
            skipped -= batch.num_rows - rest.num_rows
            for row in rest.to_pylist():
                yield Read(row, 0)
    except (pyarrow.ArrowException, OSError) as error:
        raise Broken(f"no parquet: {error}") from error


def _groups_from(metadata: Any, record: int) -> tuple[int, list[int]]:
    """Rows to skip in the first of the row groups that hold `record` and what follows, and those groups."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if record < rows:
            return record, list(range(group, metadata.num_row_groups))
        record -= rows
    return 0, []
