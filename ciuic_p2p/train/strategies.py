"""How a run keeps its peers together, as the user writes it. Knows no tensors and no daemon: importing it is cheap."""

from __future__ import annotations

from dataclasses import dataclass

from ciuic_p2p.errors import ConfigError, MalformedMessage
from ciuic_p2p.local.protocol import StrategySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DiLoCo:
    """Every peer takes `inner_steps` steps of its own optimizer; then all average how far they went and step together.

    DiLoCo, arXiv 2311.08105; with compressed pseudo-gradients, arXiv 2501.18512. Raises ConfigError for settings out of range.
    """

    inner_steps: int = 25
    """Steps of the inner optimizer between two rounds. More means less traffic and peers that drift further apart."""
    codec: str = "auto"
    """How pseudo-gradients travel: "auto" (4 bits, more only where links are so fast that encoding costs more than it saves),
    "source" (1 bit below 100 Mbit/s, else uncompressed), or a codec's name. All peers follow the one that leads a round."""
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.6
    """Nesterov. Right for runs of some tens of rounds; 0.9 with over a hundred rounds of a language model."""

    topology: str = "auto"
    """Which way averages travel: "auto" (what the measured network makes quickest), "butterfly", "star", "hierarchical",
    "ring". One that is impossible for the peers or the codec there are is not insisted on."""

    def __post_init__(self) -> None:
        try:
            self.settings()
        except MalformedMessage as error:
            reason = str(error).partition("strategy.")[2]
            raise ConfigError(f"DiLoCo: {reason}") from None

    def settings(self) -> StrategySettings:
        """The same for the daemon; its ranges are the law."""
        return StrategySettings(
            name="DiLoCo",
            inner_steps=self.inner_steps,
            codec=self.codec,
            outer_learning_rate=self.outer_learning_rate,
            outer_momentum=self.outer_momentum,
            topology=self.topology,
        )
