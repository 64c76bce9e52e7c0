"""Answers the probes of one commit: would a send find room?

Probes share the commit of the writes beside them, so that their callbacks keep their order and many probes cost one
commit. A failed probe fails none of these writes.
"""

from __future__ import annotations

from pairbus.broker.store import Done
from pairbus.errors import StoreError


class RoomCheck:
    """One question for all probes of a commit."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: StoreError | None = None
        "Reason why a send would fail although the writes of the commit succeeded; None: it would not."

    def tell(self, done: Done, error: StoreError | None) -> None:
        """Tell one probe how the commit ended with `error`, or why a send would fail."""
        done(error or self.error)
