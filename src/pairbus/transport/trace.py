"""Frames in the log, for `logging_enable`: never a token, a password or a body."""

from __future__ import annotations

import logging
import re

from pairbus.amqp.settings import Trace

TEXT_MAX = 2000  # characters of a frame
_SECRET = re.compile(r"(initial_response=|sig=|SharedAccessKey=)(b?'[^']*'|[^\s&,;)'\"]*)")


def log_frames(where: str, logger: logging.Logger | None = None) -> Trace:
    """Return a hook for `Carrier(trace=…)` that writes each frame at DEBUG, to `pairbus.transport.frames` if not told.

    Payloads of transfers, tokens among them, are told by their size only; answers to a SASL mechanism are blotted out.
    """
    logger = logger or logging.getLogger("pairbus.transport.frames")

    def trace(direction: str, channel: int, text: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %d %s", where, direction, channel, _SECRET.sub(r"\1***", text[:TEXT_MAX]))

    return trace
