"""What a trainer did since it loaded the anchor. Knows no model and no daemon."""

from __future__ import annotations

import math
from typing import Any

from ciuic_p2p.errors import LocalError
from ciuic_p2p.local.protocol import Progress, Ready


class Tally:
    """Samples, steps and mean loss since the anchor was loaded."""

    def __init__(self) -> None:
        self.samples = 0
        self.steps = 0
        self._samples_with_loss = 0
        self._loss_sum: Any = 0.0

    def add(self, samples: int, loss: Any) -> None:
        """Counts one step. `loss` is a number, a tensor of one (not read before a report, so it costs no wait), or None."""
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
            raise LocalError(f"samples={samples!r} is not a number of samples", "pass how many this step trained on")
        self.steps += 1
        self.samples += samples
        if loss is not None:
            value = loss.detach() if hasattr(loss, "detach") else loss
            self._loss_sum = self._loss_sum + value * samples
            self._samples_with_loss += samples

    @property
    def loss(self) -> float | None:
        """Mean over the samples; None when none was given or it is not finite."""
        if self._samples_with_loss == 0:
            return None
        mean = float(self._loss_sum) / self._samples_with_loss
        return mean if math.isfinite(mean) else None

    def progress(self) -> Progress:
        return Progress(samples=self.samples, steps=self.steps, loss=self.loss)

    def ready(self) -> Ready:
        return Ready(samples=self.samples, steps=self.steps, loss=self.loss)

    def ready_without_weight(self) -> Ready:
        """Takes part in the round and contributes nothing."""
        return Ready(samples=0, steps=self.steps, loss=self.loss)
