"""The way of spooled messages: one lane for each path, so that a blocked entity delays no other.

Laws of this file.
 1. A lane goes in order. Whatever goes wrong with the entity, its messages wait; only a message that is itself to blame
    steps aside, because what lies behind it must not wait for ever.
 2. A message is to blame only in the eyes of its own entity. A backlog queue may refuse what the primary would take
    (the aliases cost bytes): such a message waits for the primary.
 3. Several messages travel as one batch, which is taken whole or not at all, so a refusal cannot change their order.
 4. A lane that moves comes to its end, however many are sent meanwhile: for two that leave, one may come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pairbus.amqp.errors import ProtocolError
from pairbus.pairing.envelope import Away, wrap
from pairbus.pairing.pair import Pair
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind
from pairbus.pairing.sending import RETRY_PAUSES_S, Pause, Plan, SenderState, sending

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0  # before a lane tries again: doubling from the one to the other
MISSING_GRACE_S = 15 * 60.0  # how long an entity may not exist before its messages step aside: it may be redeployed
AT_ONCE = frozenset({Kind.COMMUNICATION, Kind.INTERNAL, Kind.FULL})
"Errors that come quickly, and may be gone as quickly: tried again before they count, as a send does."

IN_FOR_OUT = 0.5  # messages that may come into a lane for each one that leaves it
ROOM_MAX = 100.0  # what they may add up to while nobody comes
MOVING_S = 2.0  # after the last that left, a lane no longer counts as moving
HOLD_S = 5.0  # that a send waits for room at most
HOLD_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Way:
    """The destination of a lane: the entity itself, or a backlog queue."""

    queue: str | None = None

    def __str__(self) -> str:
        return self.queue or "primary"


PRIMARY = Way()


class Verdict(Enum):
    WAIT = "wait"
    "The same messages again, after a pause."
    SINGLY = "singly"
    "One of a batch is to blame: send each alone to find out which."
    REFUSE = "refuse"
    "The one message that was sent steps aside."


class Lane:
    """The state of one path's forwarding."""

    def __init__(self, path: str, missing_grace_s: float = MISSING_GRACE_S) -> None:
        self.path = path
        self.reason = ""
        "Why it does not move; empty while it does."
        self.pause_s = 0.0
        "Seconds before the next attempt."
        self.is_busy = False
        "The pause is one that the service asked for: nothing may cut it short."
        self.singly = 0
        "Number of messages, from the next one on, that must go alone."
        self._tries = 0
        "Attempts of one batch, by one way, in a row."
        self._missing_grace_s = missing_grace_s
        self._missing_since: float | None = None

    def __repr__(self) -> str:
        return f"<Lane {self.path} {self.reason or 'moving'}, pause {self.pause_s:g}s>"

    def moved(self, count: int) -> None:
        """Messages were accepted, or stepped aside."""
        self.reason = ""
        self.pause_s = 0.0
        self.is_busy = False
        self._tries = 0
        self.singly = max(self.singly - count, 0)

    def accepted(self, count: int) -> None:
        self._missing_since = None
        self.moved(count)

    def again_s(self, way: Way, failure: Failure, began: float, now: float) -> float | None:
        """After what pause the same attempt is made again, before its failure counts against the entity; None: it does.

        A backlog queue that fails costs nothing but that queue: another one takes the messages at once.
        """
        if way != PRIMARY:
            return None
        self._tries += 1
        if failure.kind not in AT_ONCE or self._tries > len(RETRY_PAUSES_S):
            self._tries = 0
            return None
        return max(RETRY_PAUSES_S[self._tries - 1] - (now - began), 0.0)

    def failed(self, way: Way, failure: Failure, count: int, now: float) -> Verdict:
        """`count` messages, sent together, were not accepted."""
        if failure.kind in MESSAGE_FAULTS:
            if count > 1:
                self.singly = count
                return Verdict.SINGLY
            if way == PRIMARY:
                return Verdict.REFUSE
        if way == PRIMARY and self._is_missing_for_good(failure, now):
            if count > 1:
                self.singly = count
                return Verdict.SINGLY
            return Verdict.REFUSE
        self.stuck(f"{way}: {failure.text}", busy=failure.kind is Kind.BUSY)
        return Verdict.WAIT

    def stuck(self, reason: str, *, busy: bool = False) -> None:
        """Wait, each time twice as long."""
        self.reason = reason
        self.is_busy = busy
        self.pause_s = max(min(self.pause_s * 2, PAUSE_MAX_S), PAUSE_S, BUSY_WAIT_S if busy else 0.0)

    def _is_missing_for_good(self, failure: Failure, now: float) -> bool:
        if failure.kind is not Kind.NOT_FOUND:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        return now - self._missing_since >= self._missing_grace_s


def wrapped(payload: bytes, away: Away) -> bytes | Failure:
    """The backlog message; a message that cannot be read can only go home as it is."""
    try:
        return wrap(payload, away)
    except (ProtocolError, IndexError) as error:
        return Failure(Kind.INVALID, f"the message cannot be read: {error}", error=error)


class Inflow:
    """How many messages may join lanes that move. A lane that does not move is joined freely: it must not cost time."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}

    def left(self, path: str, count: int, now: float) -> None:
        """A namespace has accepted so many."""
        room = self._room(path, now)
        if room is None:
            room = self._rooms[path.lower()] = _Room()
        room.count, room.moved_at = min(room.count + count * IN_FOR_OUT, ROOM_MAX), now

    def stuck(self, path: str) -> None:
        self._rooms.pop(path.lower(), None)

    def takes(self, path: str, now: float) -> bool:
        """Whether a send may join; one message of it is counted now, the others when it `came`."""
        room = self._room(path, now)
        if room is None:
            return True
        if room.count < 1:
            return False
        room.count -= 1
        return True

    def came(self, path: str, count: int, now: float) -> None:
        """More than there was room for is owed: the next ones wait for it."""
        room = self._room(path, now)
        if room is not None:
            room.count -= count - 1

    def _room(self, path: str, now: float) -> _Room | None:
        room = self._rooms.get(path.lower())
        return None if room is None or now - room.moved_at > MOVING_S else room


@dataclass(slots=True)
class _Room:
    count: float = 0.0
    moved_at: float = 0.0


def queueing(
    pair: Pair, sender: SenderState, timeout_s: float, now: float, inflow: Inflow, waits: Callable[[], bool]
) -> Plan:
    """A send while messages of its entity wait in the spool, which `waits` tells.

    It joins them. Where they are leaving it waits for its turn to do so, for a moment; when all have left before, it
    takes the usual way. So the lane ends although there are always sends.
    """
    began, until = now, now + min(HOLD_S, timeout_s / 2)
    while waits() and now < until and not inflow.takes(sender.entity.path, now):
        reply = yield Pause(HOLD_LOOK_S)
        now = reply.now
    left_s = max(timeout_s - (now - began), 0.001)
    return (yield from sending(pair, sender, left_s, now, behind_spool=waits()))
