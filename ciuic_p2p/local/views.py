"""What the daemon shows of itself to people and monitors. Knows neither socket nor HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Views(Protocol):
    """Plain data that JSON takes, as the commands print it with --json. Called in the event loop; each returns at once."""

    def status(self) -> dict[str, Any]:
        """This peer, its traffic, store and runs."""

    def peers(self) -> list[dict[str, Any]]:
        """Every peer of the swarm, this one included."""

    def links(self) -> list[dict[str, Any]]:
        """Measured links."""

    def rounds(self) -> list[dict[str, Any]]:
        """The latest rounds, the newest last."""

    async def plan(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What the planner would do with a model of `size_bytes` and inner steps of `step_s`. Raises LocalError."""

    def metrics(self) -> dict[str, float]:
        """Prometheus samples by name, labels included where there are some: `ciuic_epoch{run="mnist"}`."""
