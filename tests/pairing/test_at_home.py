"""Memory of messages that are at home and still in their backlog queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import Message
from pairbus.amqp.types import Long, Symbol
from pairbus.backlog.envelope import Home
from pairbus.syphon.decide.at_home import AtHome, HomeIdentity, sequence_number_of
from pairbus.syphon.decide.batch import open_batch
from tests.pairing.test_envelope import as_delivered

NUMBER = Symbol("x-opt-sequence-number")


def identity(number: int, came_ms: int = 5) -> HomeIdentity:
    return number, "m", came_ms


def test_a_message_is_known_by_its_place_and_not_by_its_id() -> None:
    """An application may use an id twice: a second message of the same id must still be moved."""
    memory = AtHome()
    memory.remember("b/0", [identity(1)])
    assert memory.knows("b/0", identity(1))
    assert not any(
        memory.knows(queue, message)
        for queue, message in [("b/1", identity(1)), ("b/0", identity(2)), ("b/0", identity(1, came_ms=6))]
    )


def test_messages_are_counted_once_for_each_queue() -> None:
    """A pump waits for what is at home: a count that is too high would keep it from ever being done."""
    memory = AtHome()
    memory.remember("b/0", [identity(1), identity(2)])
    memory.remember("b/0", [identity(2), identity(3)])
    memory.remember("b/1", [identity(1)])
    assert (memory.count("b/0"), memory.count("b/1"), memory.count("b/2")) == (3, 1, 0)
    memory.forget("b/0", [identity(1), identity(1), identity(9)])
    memory.forget("b/1", [identity(1)])
    assert (memory.count("b/0"), memory.count("b/1")) == (2, 0)
    assert not memory.knows("b/0", identity(1)) and memory.knows("b/0", identity(2))


def test_full_memory_forgets_the_oldest() -> None:
    """A day of failed completions must not fill the memory; a message that is forgotten may be copied, never lost."""
    memory = AtHome(most=3)
    for number in range(5):
        memory.remember(f"b/{number % 2}", [identity(number)])
    assert [number for number in range(5) if memory.knows(f"b/{number % 2}", identity(number))] == [2, 3, 4]
    assert (memory.count("b/0"), memory.count("b/1")) == (2, 1)
    assert repr(memory) == "<AtHome 3 of at most 3>"


def test_message_at_home_is_only_completed_although_its_time_to_live_is_over() -> None:
    """It was delivered in time: as a dead letter it would be sent again by whoever re-drives it. Nor does its old mark
    say that its destination is missing."""
    message: Any = SimpleNamespace(delivery_id=7, payload=as_delivered(Message(data=[b"x"]).encode()))
    home = Home("orders", b"payload", ttl_ms=1000, enqueued_ms=0, missing_since_ms=0)
    opened = open_batch([message], lambda payload: home, "deduct", 60_000, lambda identity: True)
    assert [item.place for item in opened.at_home] == [7]
    assert (opened.spoiled, opened.items, opened.marked) == ([], [], [])


@pytest.mark.parametrize(
    ("payload", "number"),
    [
        (as_delivered(Message(data=[b"x"]).encode()), 7 + (1 << 40)),
        (Message(annotations={NUMBER: Long(5)}).encode(), 5),  # the short form of a number
        (Message(annotations={Symbol("own"): "x" * 600, NUMBER: Long(1 << 40)}).encode(), 1 << 40),
        (Message(annotations={NUMBER: "seven"}).encode(), None),
        (Message(data=[b"x"]).encode(), None),
    ],
    ids=["as the service writes it", "a small number", "behind a long annotation", "a text", "no number"],
)
def test_sequence_number_is_found_in_any_form(payload: bytes, number: int | None) -> None:
    """A number that is read wrongly would take one message for another."""
    assert sequence_number_of(payload) == number


def test_bytes_that_are_no_message_have_no_sequence_number() -> None:
    """The caller is told, not given a number of bytes that only look like one."""
    with pytest.raises(ProtocolError):
        sequence_number_of(b"\xff")
