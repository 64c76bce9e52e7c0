"""The drain finds messages in every place; recorder, drain and checker together judge a small history."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from tests.brokers import BrokerProcess
from tests.history.check import check
from tests.history.drain import drain
from tests.history.events import Drained, Kind, Place
from tests.history.record import Recorder, id_of

pytestmark = pytest.mark.slow  # opening and closing five links of the sync SDK takes five seconds
OPTIONS: dict[str, Any] = {"retry_total": 0, "try_timeout": 10}


def test_a_drain_finds_every_message_where_it_is(broker: BrokerProcess, queue_name: str) -> None:
    """Completed is gone; waiting, abandoned, deferred, scheduled and dead-lettered are found, each once."""
    recorder = Recorder()
    ids = ["complete", "abandon", "defer", "dead-letter", "waiting"]
    messages = [ServiceBusMessage(id, message_id=id, application_properties={"k": 1}) for id in ids]
    with (
        ServiceBusClient.from_connection_string(broker.connection_string(), **OPTIONS) as client,
        client.get_queue_sender(queue_name) as sender,
        client.get_queue_receiver(queue_name) as receiver,
    ):
        with recorder.sending(queue_name, *messages):
            sender.send_messages(messages, timeout=10)
        scheduled = ServiceBusMessage("s", message_id="scheduled")
        with recorder.sending(queue_name, scheduled):
            due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
            sender.schedule_messages(scheduled, due, timeout=10)
        settle = {
            "complete": (Kind.COMPLETE, receiver.complete_message),
            "abandon": (Kind.ABANDON, receiver.abandon_message),
            "defer": (Kind.DEFER, receiver.defer_message),
            "dead-letter": (Kind.DEAD_LETTER, receiver.dead_letter_message),
        }
        held: list[ServiceBusReceivedMessage] = []
        deadline = time.monotonic() + 10
        while len(held) < len(settle) and time.monotonic() < deadline:
            held += receiver.receive_messages(max_message_count=len(settle) - len(held), max_wait_time=5)
        for message in held:
            recorder.received(queue_name, message)
            kind, call = settle[id_of(message)]
            with recorder.settling(queue_name, message, kind):
                call(message)
    drain(broker, queue_name, recorder)
    found = {event.id: event.place for event in recorder.history() if isinstance(event, Drained)}
    assert found == {
        "abandon": Place.QUEUE,
        "waiting": Place.QUEUE,
        "defer": Place.DEFERRED,
        "dead-letter": Place.DEAD_LETTER,
        "scheduled": Place.SCHEDULED,
    }
    verdict = check(recorder.history(), drain_ended_ms=time.time_ns() // 1_000_000)
    assert verdict.ok, verdict
    assert (verdict.attempts, verdict.accepted) == (6, 6)


def test_a_queue_that_does_not_become_empty_is_an_error(broker: BrokerProcess, queue_name: str) -> None:
    """A drain that gave up silently would turn every fault into a clean verdict."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string(), **OPTIONS) as client,
        client.get_queue_sender(queue_name) as sender,
        client.get_queue_receiver(queue_name) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("held"), timeout=10)
        assert receiver.receive_messages(max_message_count=1, max_wait_time=5)
        with pytest.raises(AssertionError, match="still holds 1 messages"):
            drain(broker, queue_name, Recorder(), within_s=1)
