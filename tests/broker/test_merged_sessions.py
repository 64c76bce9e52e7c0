"""A peek over all sessions of a queue: a page costs as much as it returns, however many messages wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.boxes import merged_sessions
from pairbus.broker.boxes.due import SLACK
from pairbus.broker.boxes.merged_sessions import MergedSessions
from pairbus.broker.boxes.row_numbers import Numbers
from pairbus.broker.boxes.sessions import MessageSession
from pairbus.broker.entities.queue import Outcome
from tests.broker.test_sessions import MINUTE_MS, SessionWorld

SESSIONS, EACH = 500, 4


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld(lock_duration_ms=MINUTE_MS, max_delivery_count=3)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count how often somebody looks into the messages of one session."""
    looks: list[int] = []
    has, since = Numbers.__contains__, Numbers.since

    def counting_has(numbers: Numbers, n: int) -> bool:
        looks.append(n)
        return has(numbers, n)

    def counting_since(numbers: Numbers, n: int, count: int) -> list[int]:
        looks.append(n)
        return since(numbers, n, count)

    with patch.object(Numbers, "__contains__", counting_has), patch.object(Numbers, "since", counting_since):
        yield looks


def test_a_page_of_a_peek_over_many_sessions_looks_at_its_own_messages(world: SessionWorld) -> None:
    """Each page asked every session for its numbers, and gathered them all."""
    for place in range(EACH):
        for number in range(SESSIONS):
            world.put(f"s{number}", b"%d" % (place * SESSIONS + number + 1))
    main, now = world.queue.main, world.now
    assert len(world.queue.peek(main, 1, 10, now)) == 10
    with counted() as looks:
        for first in (11, 900, 1990):
            page = world.queue.peek(main, first, 10, now)
            assert [int(message.body) for message in page] == list(range(first, first + 10))
    assert len(looks) < 3 * (10 + 15)  # the messages, and the halvings that find the first


def test_a_walk_over_sessions_sees_what_comes_and_goes_between_its_pages(world: SessionWorld) -> None:
    world.put("a", b"1", b"2")
    world.put("b", b"3")
    assert world.peeked() == [b"1", b"2", b"3"]
    hold = world.accept("a")
    first, second = world.next(hold), world.next(hold)
    world.queue.complete_many(world.queue.main, [first.token], world.now, lambda *_: None)
    assert world.peeked() == [b"2", b"3"]
    world.store.commit()
    world.put("c", b"4")
    world.settled(second, Outcome.ABANDON)
    world.store.commit()
    assert world.peeked() == [b"2", b"3", b"4"]


def test_a_walk_that_nobody_goes_on_with_leaves_nothing(world: SessionWorld) -> None:
    assert world.peeked() == []
    sessions = world.queue.main.sessions
    assert sessions is not None and sessions._merged is not None
    for number in range(2 * SLACK + 2):
        world.put(f"{number % 7}", b"x")
    assert sessions._merged is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 40)),
        st.tuples(st.just("return"), st.integers(0, 40)),
        st.tuples(st.just("page"), st.integers(0, 45)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0, 2, SLACK]))
def test_a_walk_finds_what_a_scan_of_all_sessions_finds(steps: list[tuple[str, int]], slack: int) -> None:
    """Row numbers and sequence numbers have one order; rows of messages that have left cannot be read."""
    sessions = [MessageSession(str(number)) for number in range(4)]
    for n, session in enumerate(sessions, 1):
        session.line.add(n)
    waiting = dict(enumerate(sessions, 1))
    away: dict[int, MessageSession] = {}
    last_n = len(sessions)
    with patch.object(merged_sessions, "SLACK", slack):
        merged = MergedSessions(sessions)
        for verb, number in steps:
            if verb == "put":
                last_n += 1
                sessions[number].line.add(last_n)
                waiting[last_n] = sessions[number]
                merged.add(last_n, sessions[number])
            elif verb == "leave" and number in waiting:
                away[number] = waiting.pop(number)
                away[number].line.discard(number)
            elif verb == "return" and number in away:
                waiting[number] = away.pop(number)
                waiting[number].line.add(number)
                merged.add(number, waiting[number])
            elif verb == "page":
                ordered = sorted(waiting)
                assert merged.numbers_from(number, 3) == [n for n in ordered if n >= number][:3]
                seq_of = {n: 2 * n for n in ordered}.__getitem__
                assert merged.first_from(number, seq_of) == next((n for n in ordered if 2 * n >= number), 0)
