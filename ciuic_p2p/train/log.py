"""The log inside the user's process: events with fields that go where the user sends Python's logging, and nowhere else."""

from __future__ import annotations

import logging
from typing import cast

import structlog


def get_log(name: str) -> structlog.stdlib.BoundLogger:
    """A structlog logger on top of `logging.getLogger(name)`; leaves structlog's own configuration to the user."""
    wrapped = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast(structlog.stdlib.BoundLogger, wrapped)
