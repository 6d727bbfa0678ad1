"""Corpora for the tests of the data pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from pydoc_data.topics import topics  # type: ignore[import-untyped]

from ciuic_p2p.data.sources import Source

PARAGRAPHS = [part for name in sorted(topics) for part in topics[name].split("\n\n") if len(part) > 40]
"""Real English prose, from the standard library: several thousand paragraphs."""


def corpus(folder: Path, name: str, texts: Iterable[str], files: int = 3) -> Source:
    """As JSONL in so many files."""
    listed = list(texts)
    (folder / name).mkdir()
    for number in range(files):
        lines = (json.dumps({"text": text}) + "\n" for text in listed[number::files])
        (folder / name / f"{number}.jsonl").write_text("".join(lines))
    return Source(url=str(folder / name))
