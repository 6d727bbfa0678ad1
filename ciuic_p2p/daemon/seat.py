"""The place of a trainer in a run: its exchange, the version it started from, and what it is told. Knows no rounds."""

from __future__ import annotations

import threading
import time

import numpy as np

from ciuic_p2p.core.codec_choice import AUTO, POLICIES
from ciuic_p2p.core.events import RunShape
from ciuic_p2p.core.ledgers import UseReport, encode_report
from ciuic_p2p.core.messages import MOST_SAMPLES_PER_S, TOPOLOGIES
from ciuic_p2p.daemon.contribution import Contribution
from ciuic_p2p.daemon.likeness import likeness_of
from ciuic_p2p.daemon.versions import Version
from ciuic_p2p.errors import ConfigError
from ciuic_p2p.local.protocol import Attach
from ciuic_p2p.local.trainer import Trainer
from ciuic_p2p.tensors.codecs.base import Float32
from ciuic_p2p.tensors.codecs.registry import all_codecs, reply_codec
from ciuic_p2p.tensors.feedback import Feedback
from ciuic_p2p.tensors.layout import Layout
from ciuic_p2p.tensors.outer import OuterOptimizer


class Seat:
    """One attached trainer. The exchange is the trainer's, except between its `ready` and what answers it."""

    def __init__(self, trainer: Trainer, attach: Attach) -> None:
        """Raises LayoutMismatch, ConfigError for what the trainer asks and this daemon cannot do."""
        self.trainer = trainer
        self.layout = Layout.from_wire(attach.layout)
        settings = attach.strategy
        OuterOptimizer(learning_rate=settings.outer_learning_rate, momentum=settings.outer_momentum)
        _require_known(settings.codec)
        if settings.topology not in (AUTO, *TOPOLOGIES):
            raise ConfigError(f"there is no topology {settings.topology!r}", f"use {', '.join((AUTO, *TOPOLOGIES))}")
        self.shape = RunShape(
            layout=likeness_of(self.layout, settings),
            count=self.layout.count,
            parameter_count=self.layout.parameter_count,
            codec_policy=settings.codec,
            encoded_bytes=_encoded_bytes(self.layout),
            outer_learning_rate=settings.outer_learning_rate,
            outer_momentum=settings.outer_momentum,
            topology=settings.topology,
        )
        self.is_attached = False
        """It was told so; before that it waits for the run's state."""
        self.base: Version | None = None
        self.loaded_at_s = time.monotonic()
        self.samples_per_s = 0.0
        self._feedback: Feedback | None = None
        self._lock = threading.Lock()

    def load(self, version: Version) -> None:
        """Puts the anchor into the exchange; the next pseudo-gradient is measured from it."""
        np.copyto(self.trainer.exchange, version.state.anchor)
        self.base = version
        self.loaded_at_s = time.monotonic()

    def initial_values(self) -> Float32 | None:
        """[count] float32, the model as the script made it; None once it was given another state."""
        exchange: Float32 = self.trainer.exchange
        return exchange if self.base is None and len(exchange) == self.layout.count else None

    def contribution(self, report: UseReport = ()) -> Contribution | None:
        """Base minus local values, and what was used for it. None when that is not finite."""
        assert self.base is not None, "a trainer is ready only after it was attached"
        contribution = Contribution(self.base.state.anchor, self.trainer.exchange, self.feedback, encode_report(report))
        return contribution if contribution.is_finite() else None

    def feedback(self) -> Feedback:
        """Made at first need: it is as large as the model."""
        with self._lock:
            if self._feedback is None:
                self._feedback = Feedback(self.layout.count)
            return self._feedback

    def forget_residual(self) -> None:
        """The state was taken from others: what is left over belongs to another anchor."""
        if self._feedback is not None:
            self._feedback.zero()

    def note_speed(self, samples: int) -> None:
        seconds = time.monotonic() - self.loaded_at_s
        if samples > 0 and seconds > 0:
            self.samples_per_s = min(samples / seconds, MOST_SAMPLES_PER_S)


def _require_known(codec: str) -> None:
    known = (*POLICIES, *(each.name for each in all_codecs()))
    if codec not in known:
        raise ConfigError(f"there is no codec {codec!r}", f"choose one of {', '.join(known)}")


def _encoded_bytes(layout: Layout) -> dict[str, int]:
    """Of the whole tensor under each codec, half as contributions and half as results, which may travel under another one;
    buffers travel as float32 under every one."""
    count, buffers_bytes = layout.parameter_count, 4 * (layout.count - layout.parameter_count)
    return {
        codec.name: (codec.encoded_bytes(count) + reply_codec(codec).encoded_bytes(count)) // 2 + buffers_bytes
        for codec in all_codecs()
    }
