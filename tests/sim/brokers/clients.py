"""Clients of a simulated broker: each does one thing at a time, chosen by dice, and records its answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.broker.boxes.holds import Hold as CoreHold
from pairbus.broker.boxes.locks import Lock
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import StoredMessage
from tests.sim.brokers.ledger import Copy, Delivery, Doubt, Ledger
from tests.sim.brokers.process import BrokerProcess
from tests.sim.brokers.sessions import Hold
from tests.sim.brokers.topology import SESSIONS

if TYPE_CHECKING:
    from tests.sim.brokers.world import World

OUTCOMES = (
    *(Outcome.COMPLETE,) * 4,
    *(Outcome.ABANDON,) * 2,
    *(Outcome.DEFER,) * 2,
    Outcome.DEAD_LETTER,
    Outcome.RELEASE,
)


class SessionReceiver:
    """A link that holds a session."""

    def __init__(self, client: Client, core: CoreHold | None = None) -> None:
        self._client = client
        self.core = core
        self.hold: Hold | None = None

    def session_lost(self) -> None:
        """The broker has ended the hold."""
        if self.hold is not None:
            self._client.ledger.sessions.lost(self.hold, self._client.world.now_ms())
        self._client.drop(self)


class Client:
    """Client that receives and settles messages."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ledger: Ledger = world.ledger
        self._dice = world.dice
        self.deliveries: list[Delivery] = []
        self.receiver: SessionReceiver | None = None

    def trace(self, text: str) -> None:
        self.world.trace(f"{self.name} {text}")

    @property
    def broker(self) -> BrokerProcess:
        assert self.world.process is not None
        return self.world.process

    def disconnected(self) -> None:
        """The broker was killed."""
        self.deliveries.clear()
        self.receiver = None

    def drop(self, receiver: SessionReceiver) -> None:
        if self.receiver is receiver:
            self.receiver = None

    # ── receiving ──

    def receive(self) -> None:
        """Receive a few messages, under locks or for good."""
        path = self._dice.choice(self.world.topology.leaves)
        is_dead = self._dice.random() < 0.15
        if self.receiver is not None and self.receiver.hold is not None and self._dice.random() < 0.5:
            path, is_dead = self.receiver.hold.path, False
        if self.world.topology.places[path].has_sessions and not is_dead:
            self._receive_session(path)
        else:
            self.take(path, is_dead, self._dice.choice((1, 1, 2, 5)), for_good=self._dice.random() < 0.2)

    def _receive_session(self, path: str) -> None:
        if self.receiver is None:
            is_there = self.accept(path, self._dice.choice((None, None, *SESSIONS)))
            if not is_there or self._dice.random() < 0.3:
                return
        if self.receiver is not None and self.receiver.hold is not None:
            path, count = self.receiver.hold.path, self._dice.choice((1, 1, 2, 5))
            self.take(path, False, count, for_good=self._dice.random() < 0.2)

    def accept(self, path: str, session_id: str | None) -> bool:
        """Accept a session, the next one where none is named."""
        sessions, now_ms = self.broker.receivable(path).sessions, self.world.now_ms()
        assert sessions is not None
        receiver = SessionReceiver(self)
        try:
            core = sessions.accept(session_id, receiver, now_ms)
        except Refusal:
            assert session_id is not None
            self.trace(f"does not get {session_id} of {path}")
            self.ledger.sessions.refused(path, session_id, self.name, now_ms)
            return False
        self.broker.used(path)
        if core is None:
            return False
        self.trace(f"holds {core.session.id} of {path}")
        receiver.core = core
        receiver.hold = self.ledger.sessions.taken(path, core.session.id, self.name, core.until_ms, now_ms)
        self.receiver = receiver
        return True

    def take(self, path: str, is_dead: bool, count: int, *, for_good: bool) -> int:
        """Receive up to `count` messages; how many."""
        taken = 0
        while taken < count and (more := self._take_some(path, is_dead, count - taken, for_good)):
            taken += more
        self.broker.used(path)
        return taken

    def _take_some(self, path: str, is_dead: bool, count: int, for_good: bool) -> int:
        """Receive one message for good, or lock a run of them."""
        box, now_ms = self.broker.box(path, is_dead), self.world.now_ms()
        receiver = self.receiver if box.sessions is not None else None
        session = None if receiver is None or receiver.core is None else receiver.core.session
        hold = None if receiver is None else receiver.hold
        if for_good:
            after = self.ledger.sessions.last_seq(path, None if session is None else session.id)
            if not box.take_next(now_ms, partial(self._taken, path, is_dead, hold, after), session):
                return 0
            self.trace(f"takes a message of {path}{' (dead)' * is_dead}")
            self.ledger.taking(path, None if session is None else session.id)
            return 1
        locks = box.lock_next(count, now_ms, session)
        for lock in locks:
            self._locked(self.ledger.delivered(self.name, path, is_dead, lock.message, now_ms, hold), lock, hold)
        return len(locks)

    def _locked(self, copy: Copy | None, lock: Lock, hold: Hold | None) -> None:
        if copy is not None:
            where = f"{copy.path} {copy.seq}{' (dead)' * copy.is_dead}{' (deferred)' * copy.is_deferred}"
            self.trace(f"locks {copy.text} ({where})")
            self.deliveries.append(self.ledger.locked(copy, lock.token, lock.until_ms, hold, self.name))

    def _taken(self, path: str, is_dead: bool, hold: Hold | None, after: int, message: StoredMessage | None) -> None:
        copy, session_id = None, None if hold is None else hold.session_id
        if message is not None:
            now_ms = self.world.now_ms()
            copy = self.ledger.delivered(self.name, path, is_dead, message, now_ms, hold, after=after)
        self.trace(f"took {'nothing' if copy is None else copy.text} from {path}")
        self.ledger.took(path, session_id, copy)
        self.broker.used(path)

    def receive_deferred(self) -> None:
        """Receive a deferred message by its number, under a lock or for good."""
        known = [copy for copy in self.ledger.copies.values() if copy.is_deferred and not copy.is_gone]
        if self.receiver is not None and self.receiver.hold is not None:
            mine = self.receiver.hold
            known = [each for each in known if self._is_of(each, mine)]
        else:
            known = [each for each in known if each.is_dead or not self._has_sessions(each)]
        if known:
            copy = self._dice.choice(known)
            self.take_deferred(copy.path, copy.is_dead, [copy.seq], for_good=self._dice.random() < 0.3)

    def _has_sessions(self, copy: Copy) -> bool:
        return self.world.topology.places[copy.path].has_sessions

    def _is_of(self, copy: Copy, hold: Hold) -> bool:
        session_id = self.ledger.sent[copy.text].session_id
        return not copy.is_dead and (copy.path, session_id) == (hold.path, hold.session_id)

    def take_deferred(self, path: str, is_dead: bool, seqs: list[int], *, for_good: bool) -> None:
        """Ask for deferred messages by number."""
        copies = [self.ledger.copies[path, seq] for seq in seqs]
        receiver = self.receiver if self.world.topology.places[path].has_sessions and not is_dead else None
        if not is_dead and receiver is None and self.world.topology.places[path].has_sessions:
            return
        deletion = self.ledger.deleting(copies) if for_good else None
        self.trace(f"asks for {[copy.text for copy in copies]}, deferred in {path}")
        answered = partial(self._deferred, path, is_dead, None if receiver is None else receiver.hold, deletion)
        entity = self.broker.receivable(path)
        entity.receive_deferred(self.broker.box(path, is_dead), seqs, self.world.now_ms(), not for_good, answered)
        self.broker.used(path)

    def _deferred(
        self, path: str, is_dead: bool, hold: Hold | None, deletion: Doubt | None, answer: Refusal | list[Lock]
    ) -> None:
        if isinstance(answer, Refusal):
            self.trace(f"is refused deferred messages: {answer.condition}")
        for lock in () if isinstance(answer, Refusal) else answer:
            copy = self.ledger.delivered_deferred(self.name, path, is_dead, lock.message, self.world.now_ms())
            if deletion is None:
                self._locked(copy, lock, hold)
        if deletion is not None:
            self.ledger.deleted(deletion, not isinstance(answer, Refusal))

    def peek(self) -> None:
        path, is_dead = self._dice.choice(self.world.topology.leaves), self._dice.random() < 0.2
        for message in self.peeked(path, is_dead, 10):
            self.ledger.seen(path, is_dead, message)

    def peeked(self, path: str, is_dead: bool, count: int) -> list[StoredMessage]:
        entity = self.broker.receivable(path)
        return entity.peek(self.broker.box(path, is_dead), 0, count, self.world.now_ms())

    # ── settling ──

    def settle(self) -> None:
        """Settle a message, or complete several in one call."""
        mine = [each for each in self.deliveries if each.settling is None and not each.is_over]
        if not mine:
            self.deliveries.clear()
            return
        one = self._dice.choice(mine)
        outcome = self._dice.choice(OUTCOMES)
        if outcome is Outcome.DEAD_LETTER and one.is_dead:
            outcome = Outcome.ABANDON
        if outcome is Outcome.COMPLETE:
            together = [each for each in mine if (each.copy.path, each.is_dead) == (one.copy.path, one.is_dead)]
            self.complete(self._dice.choice((together, [one])))
        else:
            self._settle(one, outcome)

    def _settle(self, one: Delivery, outcome: Outcome) -> None:
        path, now_ms = one.copy.path, self.world.now_ms()
        self.trace(f"settles {one.copy.text} of {path}: {outcome.name}")
        answered = partial(self._settled, one)
        self.deliveries.remove(one)
        self.ledger.settling([one], outcome, now_ms)
        self.broker.receivable(path).settle(self.broker.box(path, one.is_dead), one.token, outcome, now_ms, answered)
        self.broker.used(path)

    def leave(self) -> None:
        """Give a message back and close the links, without waiting for the answer."""
        mine = [each for each in self.deliveries if each.settling is None and not each.is_over]
        if mine:
            self._settle(self._dice.choice(mine), self._dice.choice((Outcome.ABANDON, Outcome.DEFER)))
        self.close()

    def _settled(self, one: Delivery, refusal: Refusal | None) -> None:
        self.trace(f"hears of {one.copy.text}: {'done' if refusal is None else refusal.condition}")
        self.ledger.settled(one, None if refusal is None else refusal.condition)
        if refusal is not None and not one.is_over:
            self.deliveries.append(one)

    def complete(self, together: list[Delivery]) -> None:
        """Complete messages of one box in one write."""
        one, now_ms = together[0], self.world.now_ms()
        self.trace(f"completes {[each.copy.text for each in together]} of {one.copy.path}")
        for each in together:
            self.deliveries.remove(each)
        self.ledger.settling(together, Outcome.COMPLETE, now_ms)
        box, entity = self.broker.box(one.copy.path, one.is_dead), self.broker.receivable(one.copy.path)
        entity.complete_many(box, [each.token for each in together], now_ms, partial(self._completed, together))
        self.broker.used(one.copy.path)

    def _completed(self, together: list[Delivery], lost: list[bytes], refusal: Refusal | None) -> None:
        for each in together:
            condition = "lock-lost" if refusal is None else refusal.condition
            self.trace(f"hears of {each.copy.text}: {condition if each.token in lost else 'completed'}")
            self.ledger.settled(each, condition if each.token in lost else None)
            if not each.is_over:
                self.deliveries.append(each)

    def renew(self) -> None:
        """Renew a lock of a message, or of a session."""
        now_ms = self.world.now_ms()
        if self.receiver is not None and self.receiver.hold is not None and self.receiver.core is not None:
            hold, sessions = self.receiver.hold, self.broker.receivable(self.receiver.hold.path).sessions
            if sessions is not None and hold.is_held(now_ms):
                hold.until_ms = sessions.renew(self.receiver.core, now_ms)
                self.trace(f"renews {hold.session_id} of {hold.path}")
                self.broker.used(hold.path)
            return
        mine = [each for each in self.deliveries if each.settling is None and each.hold is None and not each.is_over]
        if not mine:
            return
        one = self._dice.choice(mine)
        box = self.broker.box(one.copy.path, one.is_dead)
        try:
            [until_ms] = self.broker.receivable(one.copy.path).renew(box, [one.token], now_ms)
        except Refusal:
            if one.is_held(now_ms):
                self.ledger.violation(f"lost lock: {one.copy.text} of {one.copy.path} cannot be renewed by {self.name}")
            return
        self.trace(f"renews {one.copy.text} of {one.copy.path}")
        if not one.is_held(now_ms):
            self.ledger.violation(f"late: {one.copy.text} of {one.copy.path} is renewed, and its lock had ended")
        one.until_ms = until_ms
        self.broker.used(one.copy.path)

    # ── sessions ──

    def state(self) -> None:
        """Read or write the state of the session that is held."""
        receiver, now_ms = self.receiver, self.world.now_ms()
        if receiver is None or receiver.hold is None or receiver.core is None or not receiver.hold.is_held(now_ms):
            return
        hold, sessions = receiver.hold, self.broker.receivable(receiver.hold.path).sessions
        assert sessions is not None
        if self._dice.random() < 0.5:
            self.ledger.sessions.read(hold, sessions.state(receiver.core))
            return
        state = self._dice.choice((None, b"state %d" % self.ledger.step()))
        self.trace(f"sets the state of {hold.session_id} of {hold.path}: {state!r}")
        self.ledger.sessions.writes(hold, state)
        sessions.set_state(receiver.core, state, now_ms, partial(self._stated, hold, state))

    def _stated(self, hold: Hold, state: bytes | None, refusal: Refusal | None) -> None:
        self.ledger.sessions.written(hold, state, refusal is None)

    def close(self) -> None:
        """Close all links: a session is released at once, other messages stay locked until their locks end."""
        self.deliveries.clear()
        if self.receiver is not None and self.receiver.hold is not None and self.receiver.core is not None:
            hold, sessions = self.receiver.hold, self.broker.receivable(self.receiver.hold.path).sessions
            assert sessions is not None
            self.trace(f"releases {hold.session_id} of {hold.path}")
            hold.is_over = True
            sessions.release(self.receiver.core)
            self.receiver = None
            self.broker.used(hold.path)
