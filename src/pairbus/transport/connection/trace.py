"""Frames in the log, for `logging_enable`: never a token, a password or a body."""

from __future__ import annotations

import logging
import re

from pairbus.amqp.settings import Trace

logger = logging.getLogger("pairbus.transport.frames")

TEXT_MAX = 2000  # characters of a frame
_SECRET = re.compile(r"(initial_response=|sig=|SharedAccessKey=)(b?'[^']*'|[^\s&,;)'\"]*)")


def log_frames(where: str) -> Trace:
    """Return a hook for `Carrier(trace=…)` that logs each frame at DEBUG.

    Of payloads of transfers, which may be tokens, only the size is shown; answers to a SASL mechanism are hidden.
    """

    def trace(direction: str, channel: int, text: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s %s %d %s", where, direction, channel, _SECRET.sub(r"\1***", text[:TEXT_MAX]))

    return trace
