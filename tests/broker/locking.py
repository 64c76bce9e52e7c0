"""Locks one message at a time, for tests that tell messages apart."""

from __future__ import annotations

from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.boxes.sessions import MessageSession


def lock_next(box: Box, now_ms: int, session: MessageSession | None = None) -> Lock | None:
    """Lock the next waiting message of a box, of a session where it has sessions."""
    return next(iter(box.lock_next(1, now_ms, session)), None)
