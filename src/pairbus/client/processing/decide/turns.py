"""Decides which of the named sessions is tried next. Each is held by one slot at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

PAUSE_S = 1.0  # before a session is tried again that another receiver holds, or that was idle here


class SessionTurns:
    """The sessions that `session_ids` names, in turns."""

    def __init__(self, session_ids: Sequence[str]) -> None:
        self._free_at = dict.fromkeys(session_ids, -math.inf)
        "Free session → time from which on it may be tried; the one that has waited longest stands first."

    def take(self, now: float) -> str | None:
        """Take the next session for a slot; None when none may be tried now."""
        for session_id, free_at in self._free_at.items():
            if free_at <= now:
                del self._free_at[session_id]
                return session_id
        return None

    def give_back(self, session_id: str, now: float) -> None:
        self._free_at[session_id] = now + PAUSE_S

    def wait_s(self, now: float) -> float:
        """Return the seconds until a session may be tried; infinite when slots hold all of them."""
        return max(min(self._free_at.values(), default=math.inf) - now, 0.0)
