"""Forwarding of spooled messages: one lane for each path, so that a blocked entity delays no other.

Laws of this file.
 1. A lane goes in order. While its entity fails, its messages wait; only a message that is itself wrong is refused,
    because the messages behind it must not wait for ever.
 2. Only its own entity can prove a message wrong. A backlog queue may refuse a message that the primary would accept
    (the aliases cost bytes): such a message waits for the primary.
 3. Several messages are sent as one batch, which is accepted whole or not at all: a refusal cannot change their order.
 4. A lane that moves becomes empty, however many messages are sent meanwhile: for two that leave, one may join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pairbus.amqp.errors import ProtocolError
from pairbus.backlog.envelope import Envelope, wrap
from pairbus.pairing.commands import Pause, Plan
from pairbus.pairing.pair import Pair
from pairbus.pairing.plan import RETRY_PAUSES_S, SenderState, sending
from pairbus.pairing.policy import BUSY_WAIT_S, MESSAGE_FAULTS, Failure, Kind

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0  # pause before a lane tries again; doubles from PAUSE_S to PAUSE_MAX_S
MISSING_GRACE_S = 15 * 60.0  # how long an entity may be missing before its messages are refused: it may be redeployed
AT_ONCE = frozenset({Kind.COMMUNICATION, Kind.INTERNAL, Kind.FULL})
"Errors that come quickly and may pass quickly: the attempt is repeated before they count, as for a send."

IN_FOR_OUT = 0.5  # messages that may join a lane for each one that leaves it
ROOM_MAX = 100.0  # limit of messages that may join at once, after a time when none did
MOVING_S = 2.0  # a lane counts as moving for this time after the last message that left
HOLD_S = 5.0  # longest wait of a send for room
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
    "Send the same messages again, after a pause."
    SINGLY = "singly"
    "One message of a batch is wrong: send each alone to find out which."
    REFUSE = "refuse"
    "Set the one message aside that was sent."


class Lane:
    """The state of one path's forwarding."""

    def __init__(self, path: str, missing_grace_s: float = MISSING_GRACE_S) -> None:
        self.path = path
        self.reason = ""
        "Reason why the lane does not move; empty while it does."
        self.pause_s = 0.0
        "Seconds before the next attempt."
        self.is_busy = False
        "True: the service asked for the pause, so it must not be shortened."
        self.singly = 0
        "Number of messages, from the next one on, that must be sent alone."
        self._tries = 0
        "Attempts of one batch, by one way, in a row."
        self._missing_grace_s = missing_grace_s
        self._missing_since: float | None = None

    def __repr__(self) -> str:
        return f"<Lane {self.path} {self.reason or 'moving'}, pause {self.pause_s:g}s>"

    def moved(self, count: int) -> None:
        """Note that messages were accepted, or refused."""
        self.reason = ""
        self.pause_s = 0.0
        self.is_busy = False
        self._tries = 0
        self.singly = max(self.singly - count, 0)

    def accepted(self, count: int) -> None:
        self._missing_since = None
        self.moved(count)

    def again_s(self, way: Way, failure: Failure, began: float, now: float) -> float | None:
        """Return the pause before the same attempt is repeated; None when the failure counts against the entity now.

        A failed attempt on a backlog queue is not repeated: another queue gets the messages at once.
        """
        if way != PRIMARY:
            return None
        self._tries += 1
        if failure.kind not in AT_ONCE or self._tries > len(RETRY_PAUSES_S):
            self._tries = 0
            return None
        return max(RETRY_PAUSES_S[self._tries - 1] - (now - began), 0.0)

    def failed(self, way: Way, failure: Failure, count: int, now: float) -> Verdict:
        """Decide about `count` messages, sent together, that were not accepted."""
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
        """Set the pause, each time twice as long."""
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


def wrapped(payload: bytes, envelope: Envelope) -> bytes | Failure:
    """Return the backlog message; a Failure when the message cannot be read: it can only go to the primary as it is."""
    try:
        return wrap(payload, envelope)
    except (ProtocolError, IndexError) as error:
        return Failure(Kind.INVALID, f"the message cannot be read: {error}", error=error)


class Inflow:
    """Number of messages that may join lanes that move. Any send may join a lane that does not move, without a wait."""

    def __init__(self) -> None:
        self._rooms: dict[str, _Room] = {}

    def left(self, path: str, count: int, now: float) -> None:
        """Note that a namespace has accepted `count` messages of the lane."""
        room = self._room(path, now)
        if room is None:
            room = self._rooms[path.lower()] = _Room()
        room.count, room.moved_at = min(room.count + count * IN_FOR_OUT, ROOM_MAX), now

    def stuck(self, path: str) -> None:
        self._rooms.pop(path.lower(), None)

    def takes(self, path: str, now: float) -> bool:
        """Tell whether a send may join; one of its messages is counted now, the others by `joined`."""
        room = self._room(path, now)
        if room is None:
            return True
        if room.count < 1:
            return False
        room.count -= 1
        return True

    def joined(self, path: str, count: int, now: float) -> None:
        """Count the messages of a send that joined. Later sends wait until there is room for all of them."""
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
    """Plan a send while messages of its entity wait in the spool, which `waits` tells.

    The send joins them. In a lane that moves it waits a moment for room; when the lane becomes empty meanwhile, it is
    sent in the usual way. So the lane becomes empty although sends never stop.
    """
    began, until = now, now + min(HOLD_S, timeout_s / 2)
    while waits() and now < until and not inflow.takes(sender.entity.path, now):
        reply = yield Pause(HOLD_LOOK_S)
        now = reply.now
    left_s = max(timeout_s - (now - began), 0.001)
    return (yield from sending(pair, sender, left_s, now, behind_spool=waits()))
