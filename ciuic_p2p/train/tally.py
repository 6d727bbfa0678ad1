"""What a trainer did since it loaded the anchor. Knows no model and no daemon."""

from __future__ import annotations

import math
import operator
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
        """Counts one step. `loss` is a number, a tensor of one (not read before a report, so it costs no wait), or None.

        Raises LocalError for a tensor of several values.
        """
        self.steps += 1
        self.samples += samples
        if loss is not None:
            self._loss_sum = self._loss_sum + _value_of(loss) * samples
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

    def ready(self, used: dict[str, Any] | None = None) -> Ready:
        """used: of the leases, by dataset."""
        return Ready(samples=self.samples, steps=self.steps, loss=self.loss, used=used or {})

    def ready_without_weight(self) -> Ready:
        """Takes part in the round and contributes nothing."""
        return Ready(samples=0, steps=self.steps, loss=self.loss)


def count_of(samples: Any) -> int:
    """The number of samples that a user passed. Raises LocalError when it is none."""
    try:
        count = -1 if isinstance(samples, bool) else operator.index(samples)
    except TypeError:
        count = -1
    if count < 0:
        raise LocalError(f"samples={samples!r} is not a number of samples", "pass how many this step trained on")
    return count


def _value_of(loss: Any) -> Any:
    """A number, or a tensor of one that is summed in float32 on its own device, whatever the loss was computed in."""
    if not hasattr(loss, "detach"):
        return float(loss)
    if loss.numel() != 1:
        raise LocalError(f"the loss has shape {tuple(loss.shape)}", "pass its mean over the samples of this step")
    return loss.detach().float().reshape(())
