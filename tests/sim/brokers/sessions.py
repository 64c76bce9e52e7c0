"""Pages of the ledger about sessions: their holders, the order of their messages, and their states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.brokers.ledger import Copy, Ledger, Sent

Key = tuple[str, str | None]
"(place, session id; None where a place has no sessions)"


@dataclass(slots=True, eq=False)
class Hold:
    """One receiver's lock on one session."""

    path: str
    session_id: str
    client: str
    until_ms: int
    is_over: bool = False

    def is_held(self, now_ms: int) -> bool:
        return not self.is_over and now_ms < self.until_ms


@dataclass(slots=True)
class Register:
    """The state of one session: the last acknowledged one, and those that may have been written since."""

    known: list[bytes | None] = field(default_factory=lambda: [None])
    pending: list[bytes | None] = field(default_factory=list)


@dataclass(slots=True)
class Line:
    """Messages of one session, or of a place without sessions, in the order in which they were first handed out."""

    copies: list[Copy] = field(default_factory=list)
    is_loose: bool = False
    "Whether a message that no client has seen yet may be in any place of the line."
    last_seq: int = 0
    last_sent: dict[tuple[str, str], tuple[int, int, str]] = field(default_factory=dict)
    "Latest message for each entity and color, so for each way: when it was sent, its place in its call, and its text."


class SessionBook:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._holds: dict[tuple[str, str], Hold] = {}
        self._states: dict[tuple[str, str], Register] = {}
        self._lines: dict[Key, Line] = {}

    # ── holding ──

    def taken(self, path: str, session_id: str, client: str, until_ms: int, now_ms: int) -> Hold:
        other = self._holds.get((path, session_id))
        if other is not None and other.is_held(now_ms):
            self._ledger.violation(f"two holders: {client} gets {session_id} of {path}, and {other.client} holds it")
        hold = self._holds[path, session_id] = Hold(path, session_id, client, until_ms)
        return hold

    def refused(self, path: str, session_id: str, client: str, now_ms: int) -> None:
        other = self._holds.get((path, session_id))
        if other is None or not other.is_held(now_ms):
            self._ledger.violation(f"refused: {client} does not get {session_id} of {path}, and nobody holds it")

    def lost(self, hold: Hold, now_ms: int) -> None:
        if hold.is_held(now_ms):
            self._ledger.violation(f"lost session: {hold.client} holds {hold.session_id} of {hold.path}")
        hold.is_over = True

    # ── states ──

    def writes(self, hold: Hold, state: bytes | None) -> None:
        self._register(hold).pending.append(state)

    def written(self, hold: Hold, state: bytes | None, is_done: bool) -> None:
        register = self._register(hold)
        register.pending.remove(state)
        if is_done:
            register.known = [state]

    def read(self, hold: Hold, state: bytes | None) -> None:
        register = self._register(hold)
        if state not in (*register.known, *register.pending):
            self._ledger.violation(f"wrong state: {hold.session_id} of {hold.path} is {state!r}, not {register}")
        elif not register.pending:
            register.known = [state]

    def _register(self, hold: Hold) -> Register:
        return self._states.setdefault((hold.path, hold.session_id), Register())

    def killed(self) -> None:
        for hold in self._holds.values():
            hold.is_over = True
        for register in self._states.values():
            register.known += register.pending
            register.pending.clear()

    # ── order ──

    def disordered(self, path: str, session_id: str | None) -> None:
        """A message that was to be taken for good went back to its place; later ones were handed out meanwhile."""
        self._lines.setdefault((path, session_id), Line()).is_loose = True

    def started_anew(self, path: str, session_id: str | None) -> None:
        """Messages that were being taken for good when the broker died are gone, or there again before all others."""
        line = self._lines.setdefault((path, session_id), Line())
        for copy in line.copies:
            copy.is_doubtful = True
        line.last_seq = 0
        line.last_sent.clear()

    def last_seq(self, path: str, session_id: str | None) -> int:
        line = self._lines.get((path, session_id))
        return 0 if line is None else line.last_seq

    def in_turn(self, copy: Copy, sent: Sent, hold: Hold | None, now_ms: int, after: int | None) -> None:
        """A message is handed out because it is the next one; `after`: it was, when its receiver asked."""
        key = (copy.path, None if hold is None else hold.session_id)
        line = self._lines.setdefault(key, Line())
        if hold is not None and (sent.session_id or "") != hold.session_id:
            self._ledger.violation(f"wrong session: {copy.text} of {sent.session_id} in {hold}")
        if (
            hold is not None and hold.is_held(now_ms) and after is None
        ):  # otherwise the locks of the session have ended, and so has this lock
            before = [each.text for each in line.copies if each.seq < copy.seq and self._waits(each, hold, now_ms)]
            if len(before) > self._ledger.taken_now(*key):  # copies that are being received and deleted need not wait
                self._ledger.violation(f"order: {copy.text} of {key} is handed out, and {before} come before it")
        if copy.is_handed or sent.ttl_ms:  # the broker may remove expired messages at any time
            return
        line.copies.append(copy)
        if line.is_loose:
            return
        last_seq = line.last_seq if after is None else after
        if copy.seq < last_seq:
            self._ledger.violation(f"order: {copy.text} of {key} has number {copy.seq}, and {last_seq} was before")
        line.last_seq = max(line.last_seq, copy.seq)
        arrivals = self._ledger.topology.arrivals(sent.entry, sent.color)
        if after is None and copy.home == copy.path and arrivals[copy.path] == 1:
            self._check_sent(line, key, sent)

    def _waits(self, copy: Copy, hold: Hold, now_ms: int) -> bool:
        """Whether the message waits, or is on its way back from another holder."""
        if copy.is_gone or copy.is_dead or copy.is_deferred or copy.is_doubtful:
            return False
        settings = self._ledger.topology.places[copy.path].description
        if copy.deliveries >= getattr(settings, "max_delivery_count", 1):  # the copy may have been dead-lettered
            return False
        return copy.delivery is None or copy.delivery.hold is not hold or not copy.delivery.is_held(now_ms)

    def _check_sent(self, line: Line, key: Key, sent: Sent) -> None:
        """Check the order of messages that come on one way: the message acknowledged before the other was sent is
        first.
        """
        if len(sent.calls) != 1 or sent.scheduled_ms:
            return
        call = sent.calls[0]
        this = (call.began, call.texts.index(sent.text), sent.text)
        last = line.last_sent.get((sent.entry, sent.color), this)
        is_late = call.ended and call.ended < last[0]
        if is_late or (call.began == last[0] and this[1] < last[1]):
            self._ledger.violation(f"order: {sent.text} comes in {key} after {last[2]}, which was sent later")
        line.last_sent[sent.entry, sent.color] = max(this, last)
