"""Processes that take a line on standard input as their cue and answer with one JSON object a line. Measures nothing itself."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ciuic_p2p.errors import LocalError

STOP_S = 10.0


class Child:
    """One of them. What it complains of on stderr is kept, for the line that says why it ended."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by `kill`
        # its own group, since hivemind's processes have children of their own
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, start_new_session=True
        )
        self._read = b""

    def fileno(self) -> int:
        """Of what it says, for `select`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `hear` says what became of it
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, limit_s: float) -> dict[str, Any]:
        """Its next object. Raises LocalError when it ended, or says nothing for so long."""
        deadline_s = time.monotonic() + limit_s
        while b"\n" not in self._read:
            if first_to_answer([self], deadline_s - time.monotonic()) is None:
                raise LocalError(f"{self.name} gave no answer in time")
            more = os.read(self.fileno(), 1 << 16)
            if not more:
                raise LocalError(f"{self.name} ended early: {self._last_complaint()}")
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)

    def ask_to_end(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        """Asks it to end, and after a while ends it and what it started."""
        self.ask_to_end()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        """Ends it and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _last_complaint(self) -> str:
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def first_to_answer(children: Sequence[Child], limit_s: float) -> Child | None:
    """One that has something to say, or ended; None when there is none for so long."""
    return next(iter(select.select(children, [], [], max(0.0, limit_s))[0]), None)


def module_argv(module: str, **options: object) -> list[str]:
    """What runs one of this package's modules."""
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [sys.executable, "-m", module, *flags]


def say(fact: dict[str, object]) -> None:
    """The child's side."""
    print(json.dumps(fact), flush=True)
