"""The part of a round in which reports travel: what each contributor used of its leases. Knows no datasets, only their bytes.

Its owner gets each report from the contributor itself, so that nobody reports for another, and sends all of them as the result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ciuic_p2p.core.ledgers import UseReport, decode_report, decode_reports, encode_reports
from ciuic_p2p.errors import MalformedMessage, MalformedPayload
from ciuic_p2p.terms import LARGEST_FRAME_BYTES, PeerId

Read = TypeVar("Read")


class Reports:
    """Of one round on one peer. Thread-safe."""

    def __init__(self) -> None:
        self.found: dict[PeerId, UseReport] = {}
        """Those in the result, once it is here."""
        self._lock = threading.Lock()
        self._term = -1
        self._gathered: dict[PeerId, tuple[UseReport, int]] = {}

    def add(self, sender: PeerId, payload: memoryview, samples: int, term: int) -> None:
        """Raises MalformedPayload, and adds nothing. A later term begins anew, as with values."""
        report = _read(decode_report, payload)
        with self._lock:
            if term > self._term:
                self._term, self._gathered = term, {}
            if term == self._term:
                self._gathered[sender] = (report, samples)

    def publish(self, term: int) -> tuple[bytes, int]:
        """The result, and the samples of all whose reports are in it."""
        with self._lock:
            gathered = self._gathered if term == self._term else {}
            self.found = {peer: report for peer, (report, _) in gathered.items()}
            return encode_reports(self.found), sum(samples for _, samples in gathered.values())

    def store(self, payload: memoryview) -> None:
        """Raises MalformedPayload."""
        self.found = _read(partial(decode_reports, largest_bytes=LARGEST_FRAME_BYTES), payload)


def _read(decode: Callable[[bytes], Read], payload: memoryview) -> Read:
    try:
        return decode(bytes(payload))
    except MalformedMessage as error:
        raise MalformedPayload(None, f"a report that does not decode: {error}") from None
