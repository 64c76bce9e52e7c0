"""Frames in the log, for `logging_enable`: never a token, a password or a body."""

from __future__ import annotations

import logging
import re

from pairbus.amqp.settings import Trace

TEXT_MAX = 2000  # characters of a frame
_SECRET = re.compile(r"(initial_response=|sig=|SharedAccessKey=)(b?'[^']*'|[^\s&,;)'\"]*)")


def log_frames(where: str, logger: logging.Logger | None = None) -> Trace:
    """Return a hook for `Carrier(trace=…)` that logs each frame at DEBUG, by default to `pairbus.transport.frames`.

    Of payloads of transfers, which may be tokens, only the size is shown; answers to a SASL mechanism are hidden.
    """
    logger = logger or logging.getLogger("pairbus.transport.frames")

    def trace(direction: str, channel: int, text: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %d %s", where, direction, channel, _SECRET.sub(r"\1***", text[:TEXT_MAX]))

    return trace
