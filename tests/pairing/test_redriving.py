"""Dead letters on their way back to entities that detect duplicates."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Int, Long, Symbol, Timestamp
from pairbus.backlog.envelope import ORIGINAL_ID, REMEMBERED, Home, Spoiled
from pairbus.syphon.decide.redriving import CLOCKS_APART_S, WINDOW_MAX_S, Redriving, queue_of_dead_letters

CAME_MS = 1_800_000_000_000
WINDOW_S = 600.0
LONGEST_S = WINDOW_MAX_S + CLOCKS_APART_S


def letter(message_id: object = "m1", number: int = 7, came_ms: int | None = CAME_MS, own: Any = None) -> bytes:
    annotations: dict[Symbol, object] = {Symbol("x-opt-sequence-number"): Long(number)}
    if came_ms is not None:
        annotations[Symbol("x-opt-enqueued-time")] = Timestamp(came_ms)
    return Message(
        annotations=annotations,
        properties=Properties(message_id=message_id, subject="label"),
        application_properties={**(own or {}), "DeadLetterReason": "test"},
        data=[b"body"],
    ).encode()


def opened(payload: bytes, age_s: float = 0.0, window_s: float | None = WINDOW_S, *, origin: str = "a/b") -> Message:
    """Return the letter as it is sent, with new ids."""
    letters = Redriving("orders", origin, window_s, new_ids=True)
    home = letters.open(payload, CAME_MS + int(age_s * 1000))
    assert isinstance(home, Home)
    return Message.decode(home.payload)


@pytest.mark.parametrize(
    ("window_s", "age_s", "goes"),
    [
        (0.0, 0.0, True),  # no duplicate detection
        (WINDOW_S, 0.0, False),
        (WINDOW_S, WINDOW_S + CLOCKS_APART_S - 0.001, False),  # the clocks of two hosts may differ
        (WINDOW_S, WINDOW_S + CLOCKS_APART_S, True),
        (WINDOW_S, -30.0, False),  # the time of arrival is in the future
        (None, LONGEST_S - 0.001, False),  # the window is not known
        (None, LONGEST_S, True),
    ],
)
def test_a_letter_goes_under_its_own_id_only_when_nobody_remembers_it(
    window_s: float | None, age_s: float, goes: bool
) -> None:
    """Otherwise the dead letter stays, or gets a new id when that was asked for."""
    home = Redriving("orders", "a/b", window_s).open(letter(), CAME_MS + int(age_s * 1000))
    if goes:
        assert isinstance(home, Home) and home.message_id == "m1"
    else:
        assert isinstance(home, Spoiled) and (home.reason, home.message_id) == (REMEMBERED, "m1")
        assert re.search(r"for \d{1,3} more (minutes|hours),", home.description)
    got = opened(letter(), age_s, window_s)
    assert got.properties is not None and (got.properties.message_id == "m1") is goes


def test_letter_needs_a_time_of_arrival_but_no_id() -> None:
    """Without a time of arrival the age is unknown; without an id the destination has no id to remember."""
    letters = Redriving("orders", "a/b", WINDOW_S)
    assert isinstance(letters.open(letter(came_ms=None), CAME_MS), Spoiled)
    assert isinstance(letters.open(letter(message_id=None), CAME_MS), Home)


@pytest.mark.parametrize("message_id", ["m1", "ü" * 100, b"raw", UUID(int=5)])
def test_the_old_id_becomes_a_property_and_nothing_else_changes(message_id: object) -> None:
    """An id that is not a string becomes a property too."""
    got = opened(letter(message_id, own={"own": Int(1)}))
    assert got.application_properties == {"own": Int(1), ORIGINAL_ID: message_id}
    assert got.properties == Properties(message_id=got.properties and got.properties.message_id, subject="label")
    assert got.data == [b"body"]
    assert opened(letter(message_id)).application_properties == {ORIGINAL_ID: message_id}


@pytest.mark.parametrize("own", [None, {"own": Int(1)}])
def test_letter_without_marks_of_the_service_gets_only_the_old_id(own: Any) -> None:
    """Another program may have put the letter there: its arrival time is unknown, so the old id may be remembered."""
    plain = Message(properties=Properties(message_id="m1"), application_properties=own, data=[b"body"]).encode()
    got = opened(plain)
    assert got.application_properties == {**(own or {}), ORIGINAL_ID: "m1"}
    assert got.properties is not None and got.properties.message_id != "m1"
    forgotten = Redriving("orders", "a/b", 0.0).open(plain, CAME_MS)
    assert isinstance(forgotten, Home) and forgotten.payload == plain, "where nobody remembers, it goes as it is"


def test_second_redrive_keeps_the_first_id() -> None:
    """The property has the id that the application gave, however often the message was renamed."""
    got = opened(letter("second", own={ORIGINAL_ID: "first"}))
    assert got.application_properties == {ORIGINAL_ID: "first"}


def test_new_id_is_the_same_for_one_letter_only() -> None:
    """Sent twice, because it could not be completed, it is stored once. The copies of two subscriptions are two."""
    ids = [
        opened(payload, origin=origin).properties
        for payload, origin in [
            (letter(), "a/b"),
            (letter(), "A/B"),
            (letter(), "a/c"),
            (letter(number=8), "a/b"),
            (letter("m2"), "a/b"),
            (letter(came_ms=CAME_MS + 1), "a/b"),
        ]
    ]
    assert ids[0] == ids[1]
    assert len({str(each) for each in ids}) == 5


@pytest.mark.parametrize(
    ("path", "queue"),
    [
        ("orders", "orders"),
        ("orders/$DeadLetterQueue", "orders"),
        ("Orders/$deadletterqueue/", "Orders"),
        ("events/Subscriptions/audit/$DeadLetterQueue", "events/Subscriptions/audit"),
        ("orders/$Transfer/$DeadLetterQueue", "orders/$Transfer"),
    ],
)
def test_a_dead_letter_queue_may_be_named_by_its_own_path(path: str, queue: str) -> None:
    """The path may be in upper or lower case, as the service takes it."""
    assert queue_of_dead_letters(path) == queue
