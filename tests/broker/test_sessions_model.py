"""Random lives of sessions against a naive model: who holds which, and which message comes next."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.broker.boxes import box, due, line, sessions
from pairbus.broker.boxes.box import Lock
from pairbus.broker.boxes.holds import Hold
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.refusal import Refusal
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL
from tests.broker.test_sessions import Receiver, SessionWorld

WAITING, LOCKED, DEFERRED, GONE = "waiting", "locked", "deferred", "gone"
NAMES = ("a", "b", "c")
LOCK_MS = 5_000
DELIVERIES_MAX = 3


@dataclass
class Record:
    body: bytes
    seq: int
    session: str
    place: str = WAITING
    home: str = WAITING
    deliveries: int = 0
    lock: Lock | None = None


class SessionMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = SessionWorld(lock_duration_ms=LOCK_MS, max_delivery_count=DELIVERIES_MAX)
        self.records: list[Record] = []
        self.holds: dict[str, Hold] = {}
        self.states: dict[str, bytes] = {}
        self.sent = 0
        # Small limits, so that a dozen messages are enough to reach each of them.
        self.patch = pytest.MonkeyPatch()
        for module, name in (
            (sessions, "READY_MAX"),
            (sessions, "SLACK"),
            (box, "CHUNK_MAX"),
            (due, "SLACK"),
            (line, "SLACK"),
        ):
            self.patch.setattr(module, name, 2)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    def at(self, place: str, session: str | None = None) -> list[Record]:
        return [each for each in self.records if each.place == place and session in (None, each.session)]

    def end(self, fails: bool) -> None:
        if fails:
            self.world.store.fail_next(DISK_FULL)
        self.world.store.commit()
        self.world.settle_down()

    def delivered(self, record: Record) -> None:
        record.deliveries += 1
        record.place = GONE if record.deliveries >= DELIVERIES_MAX else record.home

    @rule(session=st.sampled_from(NAMES), count=st.integers(1, 3), fails=st.sampled_from([False, False, True]))
    def send(self, session: str, count: int, fails: bool) -> None:
        bodies = [b"message %d" % (self.sent + n) for n in range(count)]
        self.sent += count
        first = self.world.queue.last_seq + 1
        self.world.offer(*bodies, session_id=session)
        self.end(fails)
        if not fails:
            self.records += [Record(body, first + n, session) for n, body in enumerate(bodies)]

    @rule(session=st.sampled_from([None, None, *NAMES]))
    def accept(self, session: str | None) -> None:
        free = [each for each in self.at(WAITING) if each.session not in self.holds]
        oldest = min(free, key=lambda each: each.seq).session if free else None
        try:
            hold = self.world.service.accept(session, Receiver(), self.world.now)
        except Refusal:
            assert session in self.holds
            return
        assert session not in self.holds
        assert (hold and hold.session.id) == (session or oldest)
        if hold is not None:
            self.holds[hold.session.id] = hold

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.holds)))
        lock = lock_next(self.world.queue.main, self.world.now, self.holds[name].session)
        expected = min(self.at(WAITING, name), key=lambda each: each.seq, default=None)
        assert (lock and lock.message.body) == (expected and expected.body)
        if lock is not None and expected is not None:
            assert lock.message.delivery_count == expected.deliveries
            lock.message.drop_body()  # as a receiver does that has it
            expected.place, expected.lock = LOCKED, lock

    @precondition(lambda self: self.at(LOCKED))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), fails=st.sampled_from([False, False, True]))
    def settle(self, data: st.DataObject, outcome: Outcome, fails: bool) -> None:
        record = data.draw(st.sampled_from(self.at(LOCKED)))
        assert record.lock is not None
        answer = self.world.settle(record.lock, outcome)
        fails = fails and outcome is not Outcome.RELEASE
        self.end(fails)
        if fails:
            assert isinstance(answer.value, Refusal)
            return
        assert answer.value is None
        if outcome is Outcome.ABANDON:
            self.delivered(record)
        elif outcome is Outcome.RELEASE:
            record.place = record.home
        elif outcome is Outcome.DEFER:
            record.place = record.home = DEFERRED
            record.deliveries += 1
        else:
            record.place = GONE

    @precondition(lambda self: any(each.session in self.holds for each in self.at(DEFERRED)))
    @rule(data=st.data())
    def receive_deferred(self, data: st.DataObject) -> None:
        possible = [each for each in self.at(DEFERRED) if each.session in self.holds]
        record = data.draw(st.sampled_from(possible))
        answer = self.world.receive_deferred(record.seq)
        self.end(False)
        [record.lock] = answer.value
        record.place = LOCKED

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), state=st.sampled_from([None, b"x", b"state"]), fails=st.booleans())
    def set_state(self, data: st.DataObject, state: bytes | None, fails: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.holds)))
        self.world.set_state(self.holds[name], state)
        self.end(fails)
        if not fails:
            self.states.pop(name, None)
            if state is not None:
                self.states[name] = state

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        hold = self.holds[data.draw(st.sampled_from(sorted(self.holds)))]
        assert self.world.service.renew(hold, self.world.now) == self.world.now + LOCK_MS

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.holds)))
        self.world.service.release(self.holds.pop(name))
        for record in self.at(LOCKED, name):
            record.place = record.home

    @rule(ms=st.sampled_from([1_000, 4_000, 6_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_ms(ms)
        for name, hold in list(self.holds.items()):
            if hold.until_ms <= self.world.now:
                assert isinstance(hold.holder, Receiver) and hold.holder.has_lost
                del self.holds[name]
                for record in self.at(LOCKED, name):
                    self.delivered(record)

    @rule()
    def kill(self) -> None:
        self.world.restart()
        self.holds.clear()
        for record in self.at(LOCKED):
            record.place = record.home

    @invariant()
    def every_session_has_its_messages_and_its_state(self) -> None:
        if not hasattr(self, "world"):
            return
        world, here = self.world, [each for each in self.records if each.place != GONE]
        for name in NAMES:
            seen = world.queue.peek(world.queue.main, 1, 9999, world.now, session_id=name)
            assert [each.body for each in seen] == [each.body for each in here if each.session == name]
            if name in self.holds:
                assert world.service.state(self.holds[name]) == self.states.get(name)
        assert world.queue.active_count + world.queue.deferred_count == len(here)
        listed = {each.session for each in here} | self.states.keys()
        assert world.service.page(None, 0, 99) == sorted(listed)
        assert world.queue.main.sessions is not None
        assert {each.id for each in world.queue.main.sessions} == listed | self.holds.keys()


TestSessionModel = SessionMachine.TestCase
TestSessionModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
