"""Random lives of messages against a naive model: each one is always in exactly one place, and it is the right one.

The model keeps one record per message and moves it by hand. Operations stay uncommitted until the machine commits,
fails or kills; then the model applies to each what its end says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pairbus.broker.boxes import box, due, line
from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.entities import overdue, schedule
from pairbus.broker.entities.entity import RETRY_PAUSE_MS
from pairbus.broker.entities.queue import Outcome
from pairbus.broker.refusal import Refusal
from tests.broker.locking import lock_next
from tests.broker.queue_world import DISK_FULL, Answer, World

WAITING, LOCKED, DEFERRED, SCHEDULED, GONE, UNDER_WAY = (
    "waiting",
    "locked",
    "deferred",
    "scheduled",
    "gone",
    "under way",
)
DELIVERIES_MAX = 3
LIMITS = [
    (line, "READY_MAX"),
    (box, "CHUNK_MAX"),
    (line, "SLACK"),
    (due, "SLACK"),
    (schedule, "CHUNK_MAX"),
    (overdue, "CHUNK_MAX"),
]


@dataclass
class Record:
    body: bytes
    seq: int
    place: str = GONE
    dead: bool = False
    home: str = WAITING
    "State of the message when it is unlocked: WAITING or DEFERRED."
    deliveries: int = 0
    ttl_ms: int = 0
    expires_ms: int = 0
    at_ms: int = 0
    lock: Lock | None = None


@dataclass
class Step:
    """Change of one record by an uncommitted operation."""

    record: Record
    committed: dict[str, Any]
    failed: dict[str, Any]
    expiry: bool = False


class QueueMachine(RuleBasedStateMachine):
    @initialize(dead_letter=st.booleans())
    def begin(self, dead_letter: bool) -> None:
        self.dead_letter = dead_letter
        self.world = World(
            lock_duration_ms=5_000, max_delivery_count=DELIVERIES_MAX, dead_letter_on_expiration=dead_letter
        )
        self.records: list[Record] = []
        self.steps: list[Step] = []
        self.answers: list[tuple[Answer, bool]] = []
        "(answer, whether a failed commit refuses it)"
        self.paused_until_ms = 0
        # Small limits, so that a dozen messages are enough to reach each of them.
        self.patch = pytest.MonkeyPatch()
        for module, name in LIMITS:
            self.patch.setattr(module, name, 2)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()

    # ── the model's own moves ──

    def under(self, record: Record, committed: dict[str, Any], failed: dict[str, Any], expiry: bool = False) -> None:
        record.place = UNDER_WAY
        self.steps.append(Step(record, committed, failed, expiry))

    def at(self, place: str, dead: bool | None = None) -> list[Record]:
        return [each for each in self.records if each.place == place and dead in (None, each.dead)]

    def delivered(self, record: Record) -> dict[str, Any]:
        if record.dead:
            return {"place": record.home}
        count = record.deliveries + 1
        if count >= DELIVERIES_MAX:
            return self.dead_lettered() | {"deliveries": count}
        return {"place": record.home, "deliveries": count}

    def dead_lettered(self) -> dict[str, Any]:
        return {"place": WAITING, "home": WAITING, "dead": True, "expires_ms": 0}

    def expired(self) -> dict[str, Any]:
        return self.dead_lettered() if self.dead_letter else {"place": GONE}

    def is_over(self, record: Record) -> bool:
        return 0 < record.expires_ms <= self.world.now

    def apply(self, failed: bool) -> None:
        for step in self.steps:
            for name, value in (step.failed if failed else step.committed).items():
                setattr(step.record, name, value)
            if failed and step.expiry:
                self.paused_until_ms = self.world.now + RETRY_PAUSE_MS
        self.steps.clear()

    def do_what_is_due(self) -> None:
        if self.world.now < self.paused_until_ms:
            return
        for record in self.at(LOCKED):
            assert record.lock is not None
            if record.lock.until_ms <= self.world.now:
                for name, value in self.delivered(record).items():
                    setattr(record, name, value)
        for record in self.at(WAITING):
            if self.is_over(record):
                for name, value in self.expired().items():
                    setattr(record, name, value)
        numbers = {message.body: message.seq for message in self.world.queue.peek(self.world.queue.main, 1, 9999, 0)}
        highest = max((each.seq for each in self.records), default=0)
        for record in self.at(SCHEDULED):
            if record.at_ms <= self.world.now:
                assert numbers[record.body] > highest
                record.seq, record.place = numbers[record.body], WAITING
                record.expires_ms = record.ttl_ms and self.world.now + record.ttl_ms

    # ── operations ──

    @rule(
        count=st.integers(1, 3),
        ttl_ms=st.sampled_from([0, 0, 3_000, 30_000]),
        after_ms=st.sampled_from([0, 0, 0, 2_000, 20_000]),
    )
    def send(self, count: int, ttl_ms: int, after_ms: int) -> None:
        world, number = self.world, len(self.records)
        at_ms = world.now + after_ms if after_ms else 0
        first = world.queue.last_seq + 1
        assert first > max((each.seq for each in self.records), default=0)
        bodies = [b"message %d" % (number + n) for n in range(count)]
        self.answers.append((world.offer(*bodies, ttl_ms=ttl_ms, scheduled_ms=at_ms), True))
        for n, body in enumerate(bodies):
            record = Record(body, first + n, ttl_ms=ttl_ms, at_ms=at_ms)
            record.expires_ms = world.now + ttl_ms if ttl_ms and not at_ms else 0
            self.records.append(record)
            # No client has seen the sequence number of a failed send: after a restart another message may get it.
            self.under(record, {"place": SCHEDULED if at_ms else WAITING}, {"place": GONE, "seq": 0})

    def next_in(self, dead: bool) -> Record | None:
        """The one that a receiver must get; those before it that have expired are removed on the way."""
        for record in sorted(self.at(WAITING, dead), key=lambda each: each.seq):
            if not self.is_over(record):
                return record
            self.under(record, self.expired(), {"place": WAITING}, expiry=True)
        return None

    @rule(dead=st.sampled_from([False, False, True]), count=st.integers(1, 3))
    def lock(self, dead: bool, count: int) -> None:
        for _ in range(count):
            lock = lock_next(self.box(dead), self.world.now)
            expected = self.next_in(dead)
            assert (lock and lock.message.body) == (expected and expected.body)
            if lock is None or expected is None:
                return
            assert (lock.message.seq, lock.message.delivery_count) == (expected.seq, expected.deliveries)
            lock.message.drop_body()  # as a receiver does that has it
            expected.place, expected.lock = LOCKED, lock

    @rule(dead=st.booleans())
    def take(self, dead: bool) -> None:
        answer = Answer()
        taken = self.box(dead).take_next(self.world.now, answer)
        expected = self.next_in(dead)
        assert (taken is None) is (expected is None)
        if expected is not None:
            self.under(expected, {"place": GONE}, {"place": WAITING})

    def box(self, dead: bool) -> Box:
        return self.world.queue.dead if dead else self.world.queue.main

    @precondition(lambda self: self.at(LOCKED))
    @rule(data=st.data(), outcome=st.sampled_from(Outcome))
    def settle(self, data: st.DataObject, outcome: Outcome) -> None:
        record = data.draw(st.sampled_from(self.at(LOCKED)))
        assert record.lock is not None
        if record.lock.until_ms <= self.world.now or (outcome is Outcome.DEAD_LETTER and record.dead):
            return
        self.answers.append((self.world.settle(record.lock, outcome, dead=record.dead), outcome is not Outcome.RELEASE))
        committed: dict[str, Any] = {
            Outcome.COMPLETE: {"place": GONE},
            Outcome.ABANDON: self.delivered(record),
            Outcome.DEFER: {"place": DEFERRED, "home": DEFERRED, "deliveries": record.deliveries + 1},
            Outcome.DEAD_LETTER: self.dead_lettered(),
            Outcome.RELEASE: {"place": record.home},
        }[outcome]
        self.under(record, committed, committed if outcome is Outcome.RELEASE else {"place": LOCKED})

    @rule(dead=st.booleans())
    def complete_all(self, dead: bool) -> None:
        records, answer, now = self.at(LOCKED, dead), Answer(), self.world.now
        tokens = [each.lock.token for each in records if each.lock]
        self.world.queue.complete_many(self.box(dead), tokens, now, lambda lost, refusal: answer(refusal))
        held = [record for record in records if record.lock and record.lock.until_ms > now]
        self.answers.append((answer, bool(held)))
        for record in held:
            self.under(record, {"place": GONE}, {"place": LOCKED})

    @precondition(lambda self: self.at(LOCKED))
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.at(LOCKED)))
        if record.lock and record.lock.until_ms > self.world.now:
            assert self.world.queue.renew(self.box(record.dead), [record.lock.token], self.world.now) == [
                self.world.now + 5_000
            ]

    @precondition(lambda self: self.at(DEFERRED))
    @rule(data=st.data(), lock=st.booleans())
    def receive_deferred(self, data: st.DataObject, lock: bool) -> None:
        record = data.draw(st.sampled_from(self.at(DEFERRED)))
        answer = self.world.receive_deferred(record.seq, lock=lock, dead=record.dead)
        self.answers.append((answer, not lock))
        if not lock:
            self.under(record, {"place": GONE}, {"place": DEFERRED})
            return
        record.lock = next(each for each in self.box(record.dead).locks if each.message.seq == record.seq)
        record.place = LOCKED

    @precondition(lambda self: self.at(SCHEDULED))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.at(SCHEDULED)))
        self.answers.append((self.world.cancel(record.seq), True))
        self.under(record, {"place": GONE}, {"place": SCHEDULED})

    # ── ends ──

    def check_answers(self, failed: bool) -> None:
        for answer, refusable in self.answers:
            assert isinstance(answer.value, Refusal) is (failed and refusable), answer.value
        self.answers.clear()

    @rule()
    def commit(self) -> None:
        self.world.store.commit()
        self.check_answers(failed=False)
        self.apply(failed=False)
        self.world.settle_down()
        self.do_what_is_due()

    @rule()
    def fail(self) -> None:
        self.world.store.fail_next(DISK_FULL)
        self.world.store.commit()
        self.check_answers(failed=True)
        self.apply(failed=True)

    @rule(ms=st.sampled_from([1_000, 2_500, 5_000, 20_000]))
    def pass_time(self, ms: int) -> None:
        self.commit()
        self.world.pass_ms(ms)
        self.do_what_is_due()

    @rule(ms=st.sampled_from([1_000, 2_500, 5_000, 20_000]))
    def pass_time_on_a_full_disk(self, ms: int) -> None:
        self.commit()
        self.world.now += ms
        now = self.world.now
        self.world.queue.run_due(now)
        # One call handles a limited number of due messages; the others are still in their place.
        real = self.places(dead=False)
        for record in self.at(WAITING) + self.at(SCHEDULED):
            is_due = self.is_over(record) or (record.place == SCHEDULED and record.at_ms <= now)
            if is_due and record.seq not in real[record.place]:
                self.under(record, {}, {"place": record.place}, expiry=True)
        for record in self.at(LOCKED):
            is_held = record.seq in self.places(record.dead)[LOCKED]
            if record.lock and record.lock.until_ms <= now and not is_held:
                self.under(record, {}, {"place": record.home})
        self.fail()

    @rule()
    def kill_and_restart(self) -> None:
        for record in self.at(LOCKED):
            record.place = record.home
        for step in self.steps:
            step.failed["place"] = step.record.home if step.failed["place"] == LOCKED else step.failed["place"]
        self.apply(failed=True)
        self.answers.clear()
        self.paused_until_ms = 0
        self.world.restart()
        self.do_what_is_due()

    # ── what must always hold ──

    @invariant()
    def every_message_is_in_its_one_place(self) -> None:
        if not hasattr(self, "world"):
            return
        for dead in (False, True):
            for place, seqs in self.places(dead).items():
                assert Counter(seqs) == Counter(each.seq for each in self.at(place, dead)), place

    def places(self, dead: bool) -> dict[str, list[int]]:
        """The sequence numbers that the box really has in each place."""
        real = self.box(dead)
        waiters = real._line
        assert isinstance(waiters, line.Line)
        numbers = [*waiters._returned, *(message.n for message in waiters._ready)]
        numbers += [n for n in waiters._waiting if n not in waiters._gone]
        return {
            WAITING: [self.world.store.seq_of(real.number, n) for n in numbers],
            DEFERRED: list(real.deferred),
            LOCKED: [lock.message.seq for lock in real.locks],
            SCHEDULED: [] if dead else list(self.world.queue._schedule._waiting),
        }

    @invariant()
    def memory_agrees_with_the_store_when_nothing_is_under_way(self) -> None:
        if not hasattr(self, "world") or self.steps:
            return
        real = self.world.queue
        assert real.size_bytes == self.world.stored_bytes()
        locked = self.at(LOCKED, False)
        assert self.world.counts() == (
            len(self.at(WAITING, False)) + sum(each.home == WAITING for each in locked),
            len([each for each in self.records if each.dead and each.place != GONE]),
            len(self.at(SCHEDULED)),
            len(self.at(DEFERRED, False)) + sum(each.home == DEFERRED for each in locked),
        )
        stored = [message.body for each in (real.main, real.dead) for message in real.peek(each, 1, 9999, 0)]
        assert Counter(stored) == Counter(each.body for each in self.records if each.place != GONE)


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,  # to search for new failures, remove this line and raise max_examples
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
