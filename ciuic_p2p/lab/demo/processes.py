"""Child processes whose output goes to files: started, read as lines of JSON, killed with all their children. Knows no peer."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


class Child:
    """One process in a session of its own, so that Ctrl-C on the terminal is for the demonstration alone."""

    def __init__(self, title: str, argv: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.title = title
        self.log = log
        """What it says on stderr; what it prints lies beside it."""
        self._printed = log.with_suffix(".out")
        self._read_bytes = 0
        with log.open("ab") as stderr, self._printed.open("wb") as stdout:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment, start_new_session=True
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def read_objects(self) -> list[dict[str, Any]]:
        """The JSON objects, one a line, that it printed since the last call. Other lines are left out."""
        with self._printed.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        objects = []
        for line in whole.splitlines():
            with suppress(ValueError):
                objects.append(json.loads(line))
        return [entry for entry in objects if isinstance(entry, dict)]

    def last_words(self) -> str:
        """The last line on its stderr."""
        lines = self.log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def kill(self) -> None:
        """SIGKILL to it and to all its children, at once; as when the machine loses power."""
        everyone = []
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            everyone = [process, *process.children(recursive=True)]
        for process in everyone:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self, patience_s: float) -> int:
        """SIGTERM, and SIGKILL when that does not end it in time. Returns its exit code."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()
        return self._process.returncode
