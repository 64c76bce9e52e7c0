"""Log lines about connections that have shown no key: anybody who reaches the port could fill a disk with them."""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger("pairbus.broker")

LINES_MAX = 10  # in one period
PERIOD_S = 60.0


class StrangersLog:
    """Writes at most LINES_MAX warnings in a period, and at its end the number of those that were left out."""

    def __init__(self, namespace: str, loop: asyncio.AbstractEventLoop) -> None:
        self._namespace = namespace
        self._loop = loop
        self._count = 0
        "Warnings in this period; 0: there is no period."

    def warning(self, text: str, *args: object) -> None:
        if not self._count:
            self._loop.call_later(PERIOD_S, self._end)
        self._count += 1
        if self._count <= LINES_MAX:
            logger.warning(text, *args)

    def _end(self) -> None:
        left_out, self._count = self._count - LINES_MAX, 0
        if left_out > 0:
            logger.warning(
                "%s: %d more warnings about connections without a key were left out", self._namespace, left_out
            )
