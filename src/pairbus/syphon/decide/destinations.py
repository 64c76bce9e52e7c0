"""Remembers which entities of the primary are missing, and since when; which are busy; which refuse batches.

All pumps of a syphon share it. A destination that fails is skipped for the rest of the pass: its messages stay locked,
so that they are not received again and again, and the messages behind them move on.
"""

from __future__ import annotations

from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind
from pairbus.syphon.decide.dead_letter import Ruling, ruling_on
from pairbus.syphon.decide.pace import LOCK_MAX_S, PASS_MAX_S, PAUSE_MAX_S

MISSING_MEMORY_S = PAUSE_MAX_S + LOCK_MAX_S + PASS_MAX_S  # every syphon with messages for it has tried it again by then


class Destinations:
    """Entities of the primary by their keys."""

    def __init__(self, missing_grace_s: float) -> None:
        self._missing_grace_s = missing_grace_s
        self._missing: dict[str, tuple[float, float]] = {}
        "Key of a destination → time since when it is missing, and time when that was seen last."
        self._marked: set[tuple[str, str]] = set()
        "(queue, key of a missing destination) that has a message with the mark."
        self._busy_until: dict[str, float] = {}
        self._no_batches: set[str] = set()

    def closed_because(self, path: str, now: float) -> str | None:
        """Return the reason why no message may be sent to the destination now; None when it may."""
        if not self._busy_until:
            return None
        until = self._busy_until.get(key_of(path))
        if until is None:
            return None
        if now >= until:
            del self._busy_until[key_of(path)]
            return None
        return f"server-busy, left alone for {until - now:.1f}s"

    def delivered(self, path: str) -> None:
        """Note that the destination has accepted a message."""
        if self._missing:
            self._exists(key_of(path))

    def marked(self, queue: str, path: str, since: float, now: float) -> None:
        """Note the mark of a message: an earlier attempt, perhaps of another process, found the destination missing."""
        key = key_of(path)
        self._marked.add((queue, key))
        known_since, seen = self._missing.get(key, (since, now))
        self._missing[key] = since if now - seen > MISSING_MEMORY_S else min(known_since, since), now

    def missing_since(self, path: str) -> float | None:
        """Return the time since when the destination is missing; None when it is not known to be missing."""
        entry = self._missing.get(key_of(path))
        return None if entry is None else entry[0]

    def needs_mark(self, queue: str, path: str) -> bool:
        """Tell whether the destination is missing and no message of the queue has the mark; True once for a queue."""
        place = queue, key_of(path)
        if place[1] not in self._missing or place in self._marked:
            return False
        self._marked.add(place)
        return True

    def takes_batches(self, path: str) -> bool:
        return not self._no_batches or key_of(path) not in self._no_batches

    def refuses_batches(self, path: str) -> None:
        """Note that a batch was refused whose messages were accepted one by one: a partitioned entity needs one key."""
        self._no_batches.add(key_of(path))

    def failed(self, path: str, failure: Failure, now: float, *, at_attach: bool = False) -> Ruling:
        """Decide about a failed attempt. `at_attach`: the link was refused, so that no message can be to blame."""
        key, kind = key_of(path), failure.kind
        if kind is Kind.BUSY:
            self._busy_until[key] = now + BUSY_WAIT_S
        if kind is Kind.NOT_FOUND or (at_attach and kind in MESSAGE_FAULTS):
            since, seen = self._missing.get(key, (now, now))
            if now - seen > MISSING_MEMORY_S:
                since = now  # another syphon may have delivered there meanwhile
            self._missing[key] = since, now
            return ruling_on(path, failure, now - since, self._missing_grace_s)
        self._exists(key)  # any other answer proves that it does
        return ruling_on(path, failure, None, self._missing_grace_s)

    def _exists(self, key: str) -> None:
        if self._missing.pop(key, None) is not None:
            self._marked = {place for place in self._marked if place[1] != key}


def key_of(path: str) -> str:
    """Return the key of a path: paths are equal in any case."""
    return path.strip("/").lower()
