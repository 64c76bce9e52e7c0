"""Takes all messages out of a queue into a history: active, deferred, scheduled and dead-lettered ones."""

from __future__ import annotations

import time

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from tests.brokers import BrokerProcess
from tests.history.events import Place
from tests.history.record import Recorder

PAGE = 200
_DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


def drain(
    broker: BrokerProcess, queue: str, recorder: Recorder, *, namespace: str = "contoso", within_s: float = 60.0
) -> None:
    """Empty the queue into the recorder; an AssertionError when it is not empty in time.

    Messages that are still locked come when their locks expire, so `within_s` must exceed the lock duration.
    """
    with (
        ServiceBusClient.from_connection_string(broker.connection_string(namespace), retry_total=1) as client,
        broker.admin(namespace) as admin,
        client.get_queue_receiver(queue, receive_mode=_DELETE) as receiver,
        client.get_queue_receiver(queue, receive_mode=_DELETE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead,
        client.get_queue_sender(queue) as sender,
    ):
        deadline = time.monotonic() + within_s
        waiting = _peek_all(receiver, deadline)
        scheduled = [message for message in waiting if message.state is ServiceBusMessageState.SCHEDULED]
        for page in _pages(scheduled):
            # Cancel first, record afterwards: a message that becomes active in between is received instead.
            sender.cancel_scheduled_messages([message.sequence_number or 0 for message in page], timeout=30)
            for message in page:
                recorder.drained(queue, message, Place.SCHEDULED)
        for page in _pages([m for m in waiting if m.state is ServiceBusMessageState.DEFERRED]):
            numbers = [message.sequence_number or 0 for message in page]
            for message in receiver.receive_deferred_messages(numbers, timeout=30):
                recorder.drained(queue, message, Place.DEFERRED)
        while (total := admin.get_queue_runtime_properties(queue).total_message_count) != 0:
            assert time.monotonic() < deadline, f"{queue} still holds {total} messages after {within_s} s"
            for source, place in ((receiver, Place.QUEUE), (dead, Place.DEAD_LETTER)):
                while batch := source.receive_messages(max_message_count=PAGE, max_wait_time=0.2):
                    for message in batch:
                        recorder.drained(queue, message, place)


def _peek_all(receiver: ServiceBusReceiver, deadline: float) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    next_number = 1
    while page := receiver.peek_messages(PAGE, sequence_number=next_number, timeout=30):
        found += page
        next_number = (page[-1].sequence_number or 0) + 1
        assert time.monotonic() < deadline, f"peeking is not done; {len(found)} messages so far"
    return found


def _pages(messages: list[ServiceBusReceivedMessage]) -> list[list[ServiceBusReceivedMessage]]:
    return [messages[i : i + PAGE] for i in range(0, len(messages), PAGE)]
