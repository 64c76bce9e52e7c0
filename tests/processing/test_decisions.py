"""The decisions of a processor: the end of a handler, delays, locks, room, turns of sessions, copies."""

from __future__ import annotations

import itertools
import math

import pytest

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.types import Long, Symbol, Timestamp
from pairbus.client.processing.decide.backoff import Backoff
from pairbus.client.processing.decide.copies import ATTEMPTS, FIRST_ID, copy_of, facts_of, locked_until_ms, shown
from pairbus.client.processing.decide.endings import (
    ACTS,
    Act,
    DeadLetter,
    Defer,
    Ending,
    HandlerEnd,
    NextAttempt,
    Retry,
    decide,
    ending_of,
)
from pairbus.client.processing.decide.locks import ASSUMED_S, HeldLocks, ServiceClock, rest_s
from pairbus.client.processing.decide.room import AHEAD_MAX, Room
from pairbus.client.processing.decide.turns import PAUSE_S, SessionTurns

# ── ends of handlers ──


def test_every_end_of_a_handler_has_its_row() -> None:
    assert set(ACTS) == set(itertools.product(HandlerEnd, NextAttempt))


@pytest.mark.parametrize(
    ("error", "attempt", "delay_s", "act"),
    [
        (ValueError("no"), 1, 2.0, Act.RETRY),
        (ValueError("no"), 1, None, Act.ABANDON),
        (ValueError("no"), 3, 2.0, Act.DEAD_LETTER),
        (Retry(), 1, 2.0, Act.RETRY),
        (Retry(), 1, None, Act.ABANDON),
        (Retry(after=5), 1, None, Act.RETRY),
        (Retry(after=5), 3, 2.0, Act.DEAD_LETTER),
        (DeadLetter("Bad"), 1, 2.0, Act.DEAD_LETTER),
        (Defer(), 3, 2.0, Act.DEFER),
    ],
)
def test_exception_decides_about_the_message(error: Exception, attempt: int, delay_s: float | None, act: Act) -> None:
    decision = decide(ending_of(error), attempt=attempt, max_attempts=3, delay_s=delay_s)
    assert decision.act is act


def test_lost_lock_leaves_the_message_alone_whatever_the_attempt() -> None:
    for attempt in (1, 99):
        assert decide(Ending(HandlerEnd.LOCK_LOST), attempt=attempt, max_attempts=3, delay_s=1.0).act is Act.NOTHING


def test_dead_letter_says_what_happened() -> None:
    failed = decide(ending_of(KeyError("x" * 5000)), attempt=3, max_attempts=3, delay_s=1.0)
    assert failed.reason == "KeyError"
    assert failed.description.startswith("attempt 3: ") and len(failed.description) == 1024
    asked = decide(ending_of(DeadLetter("NoStock", "empty")), attempt=1, max_attempts=3, delay_s=1.0)
    assert (asked.reason, asked.description) == ("NoStock", "empty")


def test_without_max_attempts_the_entity_decides() -> None:
    assert decide(ending_of(ValueError()), attempt=1000, max_attempts=None, delay_s=None).act is Act.ABANDON


@pytest.mark.parametrize("after", [-1.0, math.inf, math.nan])
def test_retry_refuses_a_delay_that_is_none(after: float) -> None:
    with pytest.raises(ValueError, match="after is"):
        Retry(after=after)


# ── delays ──


def test_delays_grow_to_their_maximum() -> None:
    backoff = Backoff(first=1, factor=2, max=300, jitter=0)
    assert [backoff.delay_s(attempt, 0.5) for attempt in (1, 2, 3, 9, 10, 100_000)] == [1, 2, 4, 256, 300, 300]


def test_jitter_takes_off_a_share_at_most() -> None:
    backoff = Backoff(first=10, jitter=0.2)
    assert backoff.delay_s(1, 0.0) == 10
    assert backoff.delay_s(1, 1.0) == pytest.approx(8)


@pytest.mark.parametrize("fields", [{"first": -1}, {"factor": 0.5}, {"jitter": 2}, {"max": math.inf}, {"first": "1"}])
def test_wrong_backoff_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        Backoff(**fields)


# ── locks ──


def test_lock_is_renewed_at_half_of_its_rest_and_again_after_a_failure() -> None:
    locks: HeldLocks[str] = HeldLocks()
    locks.add("a", 60.0, 100.0)
    assert locks.next_at == 130.0
    assert locks.due(129.9).renew == []
    assert locks.due(130.0).renew == ["a"]
    assert locks.due(131.0).renew == [], "a renewal is under way"
    locks.not_renewed("a", 140.0)
    assert locks.next_at == 150.0
    assert locks.due(150.0).renew == ["a"]
    locks.renewed("a", 60.0, 151.0)
    assert locks.due(160.0).renew == []
    assert locks.next_at == 181.0


def test_lock_that_is_not_renewed_in_time_is_lost() -> None:
    locks: HeldLocks[str] = HeldLocks()
    locks.add("a", 60.0, 100.0)
    locks.due(130.0)
    due = locks.due(160.0)
    assert due.lost == ["a"]
    assert "a" not in locks


def test_lock_is_not_renewed_beyond_the_limit_of_its_handler() -> None:
    locks: HeldLocks[str] = HeldLocks()
    locks.add("a", 60.0, 100.0)
    locks.limit("a", 110.0)
    assert locks.due(130.0).renew == []
    assert locks.next_at == 160.0
    locks.limit("a", math.inf)
    assert locks.due(131.0).renew == ["a"], "its handler has ended"


@pytest.mark.parametrize(("left_s", "rest"), [(60.0, 60.0), (0.5, 0.5), (-5.0, ASSUMED_S), (4000.0, ASSUMED_S)])
def test_rest_that_no_lock_can_have_is_not_believed(left_s: float, rest: float) -> None:
    """The clocks of the service and of this machine differ."""
    assert rest_s(1_000_000.0 + left_s, 1_000_000.0) == rest


def test_clock_of_the_service_that_is_ahead_makes_no_lock_longer() -> None:
    """A message that was stored in our future tells by how much the service's clock is ahead."""
    clock = ServiceClock()
    clock.saw(990.0, 1000.0)
    assert clock.now(1000.0) == 1000.0
    clock.saw(1031.0, 1000.0)
    assert rest_s(1036.0, clock.now(1000.0)) == 5.0


# ── room ──


def test_slow_handlers_get_nothing_ahead_and_fast_ones_do() -> None:
    room = Room(4)
    assert room.credit == 4
    room.handled(10.0)
    assert room.ahead == 0
    for _ in range(200):
        room.handled(0.00001)
    assert room.ahead == AHEAD_MAX


def test_room_is_bounded_by_bytes() -> None:
    room = Room(1000, bytes_max=1_000_000)
    for _ in range(3):
        room.take(300_000)
    assert room.credit == 0
    room.free(300_000)
    assert room.credit == 1


def test_message_larger_than_the_room_still_comes_alone() -> None:
    room = Room(2, bytes_max=1000)
    room.take(5000)
    room.free(5000)
    assert room.credit == 1


# ── named sessions ──


def test_named_sessions_take_turns() -> None:
    turns = SessionTurns(["a", "b"])
    assert [turns.take(0.0), turns.take(0.0), turns.take(0.0)] == ["a", "b", None]
    assert turns.wait_s(0.0) == math.inf
    turns.give_back("b", 10.0)
    assert turns.take(10.0) is None
    assert turns.wait_s(10.0) == PAUSE_S
    assert turns.take(10.0 + PAUSE_S) == "b"


# ── copies ──


def received(**fields: object) -> bytes:
    return Message(
        header=Header(ttl=60_000, delivery_count=2),
        annotations={
            Symbol("x-opt-sequence-number"): Long(7),
            Symbol("x-opt-enqueued-time"): Timestamp(1_000),
            Symbol("x-opt-locked-until"): Timestamp(31_000),
            Symbol("x-opt-partition-key"): "k",
        },
        properties=Properties(message_id="order-1", subject="paid", group_id=None),
        application_properties={"a": 1},
        data=[b"body"],
        **fields,  # type: ignore[arg-type]
    ).encode()


def test_copy_is_the_message_with_another_id_and_a_due_time() -> None:
    payload = received()
    message_id, copy = copy_of(payload, facts_of(payload), attempts=3, due_ms=5_000)
    read = Message.decode(copy)
    assert read.properties is not None and read.header is not None and read.annotations is not None
    assert read.properties.message_id == message_id == "retry-7-3"
    assert read.properties.subject == "paid"
    assert read.annotations == {"x-opt-scheduled-enqueue-time": 5_000, "x-opt-partition-key": "k"}
    assert (read.header.ttl, read.header.delivery_count) == (56_000, None), "its life goes on"
    assert read.data == [b"body"]
    assert read.property("a") == 1
    assert (read.property(ATTEMPTS), read.property(FIRST_ID)) == (3, "order-1")


def test_copy_of_a_copy_remembers_the_first_message() -> None:
    payload = received()
    _, copy = copy_of(payload, facts_of(payload), attempts=3, due_ms=5_000)
    facts = facts_of(copy)
    assert (facts.attempt, facts.message_id, facts.first_sequence, facts.first_enqueued_ms) == (4, "order-1", 7, 1_000)
    message_id, again = copy_of(copy, facts, attempts=4, due_ms=9_000)
    assert message_id == "retry-7-4"
    assert facts_of(again).message_id == "order-1"


def test_handler_sees_the_first_id() -> None:
    payload = received()
    assert shown(payload) == payload
    _, copy = copy_of(payload, facts_of(payload), attempts=1, due_ms=5_000)
    properties = Message.decode(shown(copy)).properties
    assert properties is not None
    assert properties.message_id == "order-1"


def test_attempt_counts_deliveries_of_this_copy_and_attempts_before() -> None:
    facts = facts_of(received())
    assert (facts.delivery_count, facts.attempt) == (2, 3)
    assert locked_until_ms(received()) == 31_000


def test_message_without_any_section_has_a_copy() -> None:
    payload = Message(data=[b"x"]).encode()
    _, copy = copy_of(payload, facts_of(payload), attempts=1, due_ms=5_000)
    assert Message.decode(copy).data == [b"x"]
