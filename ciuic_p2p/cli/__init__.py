"""The command `ciuic-peer`. Commands are thin: they read flags, call one function, print. Nothing heavy is imported before
the command that needs it runs."""

from ciuic_p2p.cli.app import main

__all__ = ["main"]
