"""The book of everything that clients did and were told, with the promises that can be checked on the way.

It knows messages by the text of their bodies, and copies of them by place and sequence number. What a killed broker
left unanswered is in doubt: it happened or not, but wholly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto

from pairbus.amqp.types import encode_string
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.store import StoredMessage
from tests.broker.topic_world import text_of
from tests.sim.brokers.sessions import Hold, SessionBook
from tests.sim.brokers.topology import GRAVE, Topology


class Told(Enum):
    """The end of a call, as its client knows it."""

    NOTHING = auto()
    YES = auto()
    NO = auto()
    UNKNOWN = auto()


@dataclass(slots=True)
class Call:
    """One send or one cancellation, and the texts that share its outcome."""

    texts: list[str]
    began: int
    told: Told = Told.NOTHING
    ended: int = 0


@dataclass(slots=True)
class Sent:
    """One message, as its sender knows it."""

    text: str
    entry: str
    color: str
    session_id: str | None
    body: bytes
    ttl_ms: int
    scheduled_ms: int
    began_ms: int
    calls: list[Call] = field(default_factory=list)
    cancels: list[Call] = field(default_factory=list)
    seq: int = 0
    "Number in the schedule of the entity; 0: the sender does not know it."

    @property
    def told(self) -> Told:
        """The best that a sender was told about it."""
        known = {call.told for call in self.calls}
        for told in (Told.YES, Told.UNKNOWN, Told.NOTHING):
            if told in known:
                return told
        return Told.NO

    @property
    def cancelled(self) -> Told:
        known = {call.told for call in self.cancels}
        return next((told for told in (Told.YES, Told.UNKNOWN) if told in known), Told.NO)


@dataclass(slots=True, eq=False)
class Copy:
    """One message in one place, as receivers know it."""

    path: str
    seq: int
    text: str
    home: str
    "The place where it arrived; another than `path` when it is a dead letter that was forwarded."
    is_gone: bool = False
    is_dead: bool = False
    is_deferred: bool = False
    is_doubtful: bool = False
    "Whether a settlement was under way when the broker died: it happened or not."
    is_handed: bool = False
    deliveries: int = 0
    delivery: Delivery | None = None
    doubt: Doubt | None = None

    @property
    def set_aside(self) -> str:
        return " and ".join(["dead"] * self.is_dead + ["deferred"] * self.is_deferred)


@dataclass(slots=True, eq=False)
class Doubt:
    """Deletions that are one write, and not answered."""

    copies: list[Copy]
    back: list[Copy] = field(default_factory=list)
    "Copies that were seen again after the kill."


@dataclass(slots=True, eq=False)
class Delivery:
    """One copy under the lock of one receiver."""

    copy: Copy
    token: bytes
    until_ms: int
    is_dead: bool
    hold: Hold | None
    client: str
    is_over: bool = False
    settling: list[Delivery] | None = None
    "Deliveries that are settled together with this one, while the answer is due."
    outcome: Outcome | None = None
    was_held: bool = True
    "Whether the lock had not ended when its settlement was asked for."

    def is_held(self, now_ms: int) -> bool:
        if self.is_over or self.settling is not None:
            return not self.is_over and self.was_held
        return now_ms < self.until_ms if self.hold is None else self.hold.is_held(now_ms)


class Ledger:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.found: list[str] = []
        self.sent: dict[str, Sent] = {}
        self.calls: list[Call] = []
        self.copies: dict[tuple[str, int], Copy] = {}
        self.doubts: list[Doubt] = []
        self.gone: Counter[tuple[str, str]] = Counter()
        "(home, text): completed or taken, and told so."
        self.taken_unseen: Counter[str] = Counter()
        "Receive-and-delete calls that a kill left unanswered, by place: each may have cost one message."
        self.sessions = SessionBook(self)
        self._takings: Counter[tuple[str, str | None]] = Counter()
        self._deletions: dict[Doubt, None] = {}
        self._deliveries: dict[Delivery, None] = {}
        self._step = 0

    def violation(self, text: str) -> None:
        self.found.append(text)

    def step(self) -> int:
        self._step += 1
        return self._step

    # ── sending ──

    def call(self, texts: list[str]) -> Call:
        call = Call(texts, self.step())
        self.calls.append(call)
        return call

    def answered(self, call: Call, is_yes: bool) -> None:
        if call.told is not Told.NOTHING:
            self.violation(f"twice: the call for {call.texts} was answered twice")
        call.told = Told.YES if is_yes else Told.NO
        call.ended = self.step()

    # ── receiving ──

    def seen(self, path: str, is_dead: bool, message: StoredMessage) -> Copy | None:
        """Note that a client has seen a message; None: it was never sent."""
        text = text_of(message.body)
        sent = self.sent.get(text)
        where = f"{text} in {path}{' (dead)' if is_dead else ''}"
        if sent is None:
            self.violation(f"invented: {where} was never sent")
            return None
        if path != GRAVE and not self.topology.places[path].changes_copies and message.body != sent.body:
            self.violation(f"altered: {where}")
        copy = self.copies.get((path, message.seq))
        if copy is None:
            copy = self.copies[path, message.seq] = Copy(path, message.seq, text, self._home(path, message))
            if sent.told in (Told.NOTHING, Told.NO):
                self.violation(f"invented: {where} is seen, its sender was told {sent.told.name.lower()}")
            if copy.home != path:
                self._left(copy.home, sent)
        if copy.text != text:
            self.violation(f"number used twice: {copy.seq} of {path} is {copy.text} and {text}")
        if copy.is_gone:
            self.violation(f"restored: {where} is there after it was acknowledged as settled, or seen elsewhere")
        return copy

    def _home(self, path: str, message: StoredMessage) -> str:
        """Return the place where a message arrived: for a forwarded dead letter the one in its annotation."""
        for source in self.topology.sources_of(path)[1:]:
            if message.annotations.endswith(encode_string(source)):
                return source
        if path == GRAVE:
            self.violation(f"unmarked: {text_of(message.body)} in {path} does not say where it comes from")
        return path

    def _left(self, home: str, sent: Sent) -> None:
        """A forwarded dead letter is not in its source any more; which of several copies it was is unknown."""
        if self.topology.arrivals(sent.entry, sent.color)[home] == 1:
            for copy in self.copies.values():
                if copy.path == home and copy.text == sent.text:
                    copy.is_gone = True

    def delivered(
        self,
        client: str,
        path: str,
        is_dead: bool,
        message: StoredMessage,
        now_ms: int,
        hold: Hold | None,
        *,
        after: int | None = None,
    ) -> Copy | None:
        """A message is handed out in its turn, under a lock or for good.

        `after`: for good, and this is the latest number that had been handed out when the receiver asked.
        """
        copy = self.seen(path, is_dead, message)
        if copy is None:
            return None
        sent, where = self.sent[copy.text], f"{copy.text} ({path} {copy.seq}) for {client}"
        if now_ms < sent.scheduled_ms:
            self.violation(f"early: {where}, {sent.scheduled_ms - now_ms} ms before its time")
        self._check_lock(copy, now_ms, where)
        is_elsewhere = copy.is_dead and copy.is_deferred if is_dead else copy.is_dead or copy.is_deferred
        if is_elsewhere and not copy.is_doubtful:
            self.violation(f"misplaced: {where} comes in its turn, and was set aside as {copy.set_aside}")
        if not is_dead:
            self.sessions.in_turn(copy, sent, hold, now_ms, after)
        copy.is_dead, copy.is_deferred, copy.is_handed = is_dead, False, True
        self._is_back(copy)
        return copy

    def delivered_deferred(
        self, client: str, path: str, is_dead: bool, message: StoredMessage, now_ms: int
    ) -> Copy | None:
        """A deferred message is handed out by its number."""
        copy = self.seen(path, is_dead, message)
        if copy is not None:
            self._check_lock(copy, now_ms, f"{copy.text} ({path} {copy.seq}), deferred, for {client}")
            copy.is_dead, copy.is_deferred, copy.is_handed = is_dead, True, True
            self._is_back(copy)
        return copy

    def _check_lock(self, copy: Copy, now_ms: int, where: str) -> None:
        last = copy.delivery
        if last is not None and last.is_held(now_ms):
            state = (
                "its settlement is not answered"
                if last.settling is not None
                else f"until {last.until_ms - now_ms} ms from now"
            )
            self.violation(f"locked twice: {where} is handed out, and {last.client} holds it, {state}")

    def _is_back(self, copy: Copy) -> None:
        copy.is_doubtful = False
        if copy.doubt is not None:
            copy.doubt.back.append(copy)
            copy.doubt = None

    def locked(self, copy: Copy, token: bytes, until_ms: int, hold: Hold | None, client: str) -> Delivery:
        copy.deliveries += 1
        if copy.delivery is not None:
            self.end(copy.delivery)
        copy.delivery = Delivery(copy, token, until_ms, copy.is_dead, hold, client)
        self._deliveries[copy.delivery] = None
        return copy.delivery

    def end(self, delivery: Delivery) -> None:
        """The receiver does not hold it any more."""
        delivery.is_over = True
        self._deliveries.pop(delivery, None)

    # ── receive and delete ──

    def taking(self, path: str, session_id: str | None) -> None:
        self._takings[path, session_id] += 1

    def taken_now(self, path: str, session_id: str | None) -> int:
        """Messages that are being taken at this moment."""
        return self._takings[path, session_id]

    def took(self, path: str, session_id: str | None, copy: Copy | None) -> None:
        """A message was received and deleted; None: the store failed, and it waits again."""
        self._takings[path, session_id] -= 1
        if copy is None:
            self.sessions.disordered(path, session_id)
            return
        if copy.delivery is not None:
            self.end(copy.delivery)
        self._went(copy)

    def deleting(self, copies: list[Copy]) -> Doubt:
        """Deferred messages are received and deleted."""
        deletion = Doubt(copies)
        self._deletions[deletion] = None
        return deletion

    def deleted(self, deletion: Doubt, is_done: bool) -> None:
        del self._deletions[deletion]
        for copy in deletion.copies if is_done else ():
            self._went(copy)

    def _went(self, copy: Copy) -> None:
        copy.is_gone = True
        self.gone[copy.home, copy.text] += 1

    # ── settling ──

    def settling(self, deliveries: list[Delivery], outcome: Outcome, now_ms: int) -> None:
        """A receiver asks for a settlement of messages whose locks it holds, or no longer holds."""
        held = [each for each in deliveries if each.is_held(now_ms)]
        for delivery in deliveries:
            delivery.was_held = delivery in held
            delivery.settling, delivery.outcome = held, outcome

    def settled(self, delivery: Delivery, refusal: str | None) -> None:
        """`refusal`: the condition that the client is told."""
        was_held = delivery.was_held
        copy, outcome, delivery.settling = delivery.copy, delivery.outcome, None
        who = f"{copy.text} ({copy.path} {copy.seq}) by {delivery.client}"
        if refusal is not None:
            if was_held and "lock-lost" in refusal:
                self.violation(f"lost lock: {who}, who holds it")
            if not was_held:
                self.end(delivery)
            return
        if not was_held or copy.delivery is not delivery:
            self.violation(f"settled twice: {who}, whose lock had ended")
        self.end(delivery)
        if outcome is Outcome.COMPLETE:
            self._went(copy)
        elif outcome is Outcome.DEFER:
            copy.is_deferred = True
        elif outcome is Outcome.DEAD_LETTER:
            copy.is_dead, copy.is_deferred = True, False

    # ── the kill ──

    def killed(self) -> None:
        """Note that the broker was killed: open calls will never be answered."""
        for call in self.calls:
            if call.told is Told.NOTHING:
                call.told = Told.UNKNOWN
        doubts = {id(each.settling): each for each in self._deliveries if each.settling}
        for one in doubts.values():
            copies = [each.copy for each in one.settling or ()]
            if one.outcome is Outcome.COMPLETE:
                self._doubt(Doubt(copies))
            for copy in copies:
                copy.is_doubtful = True
        for deletion in self._deletions:
            self._doubt(deletion)
        for delivery in list(self._deliveries):
            self.end(delivery)
        for (path, session_id), count in self._takings.items():
            if count:
                self.taken_unseen[path] += count
                self.sessions.started_anew(path, session_id)
        self._takings.clear()
        self._deletions.clear()
        self.sessions.killed()

    def _doubt(self, doubt: Doubt) -> None:
        self.doubts.append(doubt)
        for copy in doubt.copies:
            copy.doubt = doubt
            copy.is_doubtful = True
