"""The recorder classifies what the SDK raises and keeps every event; the digest sees every change."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from tests.history.check import check
from tests.history.events import Attempt, Outcome, Sent
from tests.history.record import Recorder, digest_of


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (ServiceBusQuotaExceededError(message="full"), Outcome.FAILED),
        (ServiceBusConnectionError(message="reset"), Outcome.UNKNOWN),
        (OperationTimeoutError(message="late"), Outcome.UNKNOWN),
        (ServiceBusError("anything else"), Outcome.UNKNOWN),
    ],
)
def test_a_send_is_recorded_with_what_is_known_of_its_outcome(error: ServiceBusError | None, outcome: Outcome) -> None:
    """Only an answer of the broker makes a send failed: silence leaves it unknown."""
    recorder = Recorder()
    message = ServiceBusMessage("x", message_id="a")
    with recorder.sending("orders", message):
        if error is not None:
            raise error
    assert recorder.history() == (Attempt("a", "orders", digest_of(message)), Sent("a", outcome))


def test_foreign_exception_passes_and_leaves_the_outcome_unknown() -> None:
    """A bug of the test must fail the test."""
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError), recorder.sending("orders", ServiceBusMessage("x", message_id="a")):
        _ = 1 // 0
    assert recorder.history()[-1] == Sent("a", Outcome.UNKNOWN)


def test_many_threads_record_into_one_history_and_one_file(tmp_path: Path) -> None:
    """Crash tests run several senders and receivers; a lost event would look like a fault of the broker."""
    file = tmp_path / "history.jsonl"
    recorder = Recorder(file)

    def send(thread: int) -> None:
        for i in range(50):
            with recorder.sending("orders", ServiceBusMessage("x", message_id=f"{thread}-{i}")):
                pass

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    recorder.close()
    assert check(recorder.history(), drain_ended_ms=0).accepted == 200
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()].count("Sent") == 200


CHANGES = [
    ServiceBusMessage("other", message_id="a", subject="s", application_properties={"k": 1}),
    ServiceBusMessage("body", message_id="b", subject="s", application_properties={"k": 1}),
    ServiceBusMessage("body", message_id="a", subject="t", application_properties={"k": 1}),
    ServiceBusMessage("body", message_id="a", subject="s", application_properties={"k": 2}),
    ServiceBusMessage("body", message_id="a", subject="s", application_properties={"k": "1"}),
    ServiceBusMessage("body", message_id="a", subject="s", application_properties={"k": 1}, session_id="x"),
    ServiceBusMessage("body", message_id="a", subject="s", application_properties={"k": 1}, correlation_id="x"),
    ServiceBusMessage("body", message_id="a", subject="s"),
]


@pytest.mark.parametrize("changed", CHANGES)
def test_the_digest_sees_a_change(changed: ServiceBusMessage) -> None:
    """An altered message must not pass as the one that was sent."""
    original = ServiceBusMessage("body", message_id="a", subject="s", application_properties={"k": 1})
    assert digest_of(changed) != digest_of(original)


def test_the_digest_tells_the_kinds_of_body_apart() -> None:
    """The same text as data, as a value and in a sequence are three different messages."""
    bodies = [
        AmqpAnnotatedMessage(data_body=b"x"),
        AmqpAnnotatedMessage(value_body="x"),
        AmqpAnnotatedMessage(sequence_body=["x"]),
    ]
    digests = set()
    for raw in bodies:
        message = ServiceBusMessage(None, message_id="a")
        message._raw_amqp_message = raw
        digests.add(digest_of(message))
    assert len(digests) == 3
