"""Names of backlog queues, and the laws of the rotation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed
from pairbus.pairing.rotation import Rotation, primary_of, queue_index, queue_path

QUEUES = ["a", "b", "c"]


def rotation(retry_interval_s: float = 60.0) -> Rotation:
    return Rotation(list(QUEUES), retry_interval_s, lambda count: count - 1)


def test_names_are_those_of_the_original() -> None:
    assert queue_path("contoso", 3) == "contoso/x-servicebus-transfer/3"


@pytest.mark.parametrize(
    ("path", "index"),
    [
        ("contoso/x-servicebus-transfer/0", 0),
        ("Contoso/X-ServiceBus-Transfer/12", 12),
        ("contoso/x-servicebus-transfer/07", None),
        ("contoso/x-servicebus-transfer/", None),
        ("contoso/x-servicebus-transfer/-1", None),
        ("contoso/x-servicebus-transfer/1/2", None),
        ("contoso/x-servicebus-transfer/٣", None),
        ("contoso/x-servicebus-transfer/1a", None),
        ("contosa/x-servicebus-transfer/1", None),
        ("orders", None),
    ],
)
def test_backlog_paths_are_recognised_without_case(path: str, index: int | None) -> None:
    assert queue_index("contoso", path) == index


@given(st.integers(0, 9999))
def test_every_name_is_recognised_again(index: int) -> None:
    assert queue_index("Contoso", queue_path("contoso", index)) == index


def test_a_sender_keeps_its_queue_while_that_works() -> None:
    """Clients that do not know each other spread over the queues by their first pick alone."""
    dice = iter([1])
    spread = Rotation(list(QUEUES), 60.0, lambda count: next(dice))
    assert spread.pick(None, 0.0) == ("b", [])
    assert spread.pick("b", 1.0) == ("b", [])
    assert next(dice, None) is None, "the random choice was made once"


def test_a_queue_that_fails_is_out_for_everybody_and_told_once() -> None:
    turn = rotation()
    assert turn.failed("c", "lost", 0.0) == [BacklogQueueFailed("c", "lost", 60.0)]
    assert turn.failed("c", "lost again", 1.0) == []
    assert not turn.has("c")
    assert turn.pick("c", 2.0) == ("b", [])
    assert turn.pick(None, 2.0) == ("b", [])


def test_with_every_queue_out_there_is_none() -> None:
    turn = rotation()
    for queue in QUEUES:
        turn.failed(queue, "lost", 0.0)
    assert turn.pick("a", 59.9) == (None, [])
    assert repr(turn) == "<Rotation 0/3>"


def test_a_queue_comes_back_after_the_retry_interval() -> None:
    """The original never tried one again, and ended without any."""
    turn = rotation(60.0)
    turn.failed("b", "lost", 10.0)
    assert turn.pick("b", 69.9) == ("c", [])
    assert turn.pick("b", 70.0) == ("b", [BacklogQueueBack("b")])


def test_queue_that_fails_again_stays_out_longer() -> None:
    turn = rotation(60.0)
    turn.failed("b", "lost", 0.0)
    turn.failed("b", "lost", 30.0)
    assert turn.pick("b", 60.0) == ("c", [])
    assert turn.pick("b", 90.0) == ("b", [BacklogQueueBack("b")])


def test_sends_at_the_same_time_meet_one_silence() -> None:
    """Many sends may be in flight on one link: their silences are not longer together than one of them."""
    turn = rotation()
    for now in (10.0, 10.0, 10.1, 10.2):
        assert turn.fell_silent("b", 0.75, 3.0, "silent", now) == []
    assert turn.fell_silent("b", 2.0, 3.0, "silent", 12.1) == []
    assert turn.fell_silent("b", 2.0, 3.0, "silent", 12.3) == [BacklogQueueFailed("b", "silent", 60.0)]


def test_accepted_send_in_flight_brings_the_queue_back() -> None:
    turn = rotation()
    turn.failed("a", "lost", 0.0)
    assert turn.accepted("a") == [BacklogQueueBack("a")]
    assert turn.accepted("a") == []
    assert turn.has("a")


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.floats(0, 200), st.booleans()), max_size=20))
def test_no_queue_stays_out_longer_than_the_interval_after_its_last_failure(
    history: list[tuple[str, float, bool]],
) -> None:
    """An interval after the last failure all queues are in the rotation, after any history."""
    turn, now = rotation(60.0), 0.0
    for queue, pause_s, fails in history:
        now += pause_s
        if fails:
            turn.failed(queue, "lost", now)
        else:
            turn.accepted(queue)
        picked, _ = turn.pick(queue, now)
        assert picked is None or turn.has(picked)
    turn.pick(None, now + 60.0)
    assert all(turn.has(queue) for queue in QUEUES)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("contoso/x-servicebus-transfer/0", "contoso"),
        ("Contoso/X-ServiceBus-Transfer/12", "Contoso"),
        ("contoso/x-servicebus-transfer/01", None),
        ("contoso/x-servicebus-transfer/", None),
        ("/x-servicebus-transfer/0", None),
        ("orders", None),
    ],
)
def test_the_primary_of_a_backlog_queue_stands_in_its_path(path: str, name: str | None) -> None:
    """The path may be in upper or lower case."""
    assert primary_of(path) == name
