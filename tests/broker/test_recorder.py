"""Recorded sends of a queue: exactly the messages that its senders were told are accepted."""

from __future__ import annotations

import pytest

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.broker.entities.draft import Draft
from pairbus.broker.kit import recorder as recording
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.refusal import Refusal
from tests.broker.queue_world import DISK_FULL, World


def test_a_send_is_recorded_when_its_sender_hears_of_the_commit() -> None:
    """A test that looks earlier would assert a message that may never be stored."""
    world, recorder = World(), Recorder()
    world.queue.recorder = recorder
    failed = world.offer(b"1")
    world.store.fail_next(DISK_FULL)
    world.store.commit()
    assert isinstance(failed.value, Refusal)
    world.offer(b"2", b"3")
    world.schedule(b"later", at=world.now + 60_000)
    assert [(one.seq, one.draft.body) for one in recorder.of("ORDERS")] == [(2, b"2"), (3, b"3"), (4, b"later")]
    assert recorder.of("others") == []
    recorder.keep_only(())
    assert (len(recorder), recorder.of("orders")) == (0, [])


def test_duplicates_and_forwarded_messages_are_not_recorded() -> None:
    """The duplicate was dropped, and the forwarded message was recorded where the application had sent it."""
    world, recorder = World(requires_duplicate_detection=True), Recorder()
    world.queue.recorder = recorder
    world.send(b"1", b"again", message_id="a")
    world.send(b"forwarded", message_id="b", hops=1)
    assert world.bodies() == [b"1", b"forwarded"]
    assert [one.draft.body for one in recorder.of("orders")] == [b"1"]


def test_recorded_sends_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first, by count and by bytes; the last one stays, with any size."""
    monkeypatch.setattr(recording, "RECORDED_MAX", 3)
    monkeypatch.setattr(recording, "RECORDED_BYTES_MAX", 10)
    recorder, answers = Recorder(), list[object]()

    def send(*bodies: bytes, answer: object = None) -> list[bytes]:
        recorder.watched("q", 1, [Draft(body) for body in bodies], 1, 0, answers.append)(answer)
        return [one.draft.body for one in recorder.of("Q")]

    assert send(b"1", b"2", b"3", b"4") == [b"2", b"3", b"4"]
    assert send(b"12345678") == [b"3", b"4", b"12345678"]
    assert send(b"x" * 100) == [b"x" * 100]
    refusal = Refusal(RESOURCE_LIMIT_EXCEEDED, "full")
    assert send(b"no", answer=refusal) == [b"x" * 100]
    assert answers == [None, None, None, refusal]
