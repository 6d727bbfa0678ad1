"""How a command ends: what went wrong as one line on stderr, and the exit code. Knows no command."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from ciuic_p2p.config import debug_wanted
from ciuic_p2p.errors import SwarmError

Flags = ParamSpec("Flags")

INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


def reports_failure(command: Callable[Flags, None]) -> Callable[Flags, None]:
    """The command with its SwarmErrors turned into one line and exit 1, and Ctrl-C into exit 130."""

    @functools.wraps(command)
    def reporting(*args: Flags.args, **flags: Flags.kwargs) -> None:
        try:
            command(*args, **flags)
            sys.stdout.flush()
        except SwarmError as error:
            if debug_wanted():
                raise
            say_failure(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader, such as `head`, had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    return reporting


def say_failure(what: str) -> None:
    """One line on stderr."""
    typer.echo(f"ciuic-peer: {' '.join(what.split())}", err=True)


def report_crash(error: Exception) -> None:
    """For what should not have happened."""
    say_failure(f"unexpected {type(error).__name__}: {error}; run it again with CIUIC_DEBUG=1 and report what that prints")
