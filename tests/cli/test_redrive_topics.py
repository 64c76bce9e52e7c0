"""`pairbus redrive` with the dead letters of a subscription."""

from __future__ import annotations

import uuid

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.brokers import BrokerProcess
from tests.cli.command import Command


def test_dead_letters_of_a_subscription_go_back_through_its_topic(
    broker: BrokerProcess, admin: ServiceBusAdministrationClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named by the subscription or by its dead-letter queue; or to another entity, here a queue with sessions.

    The topic is asked for its duplicate detection, which a path that might be a queue's must not prevent.
    """
    topic, cases = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("news", "cases"))
    admin.create_topic(topic)
    admin.create_subscription(topic, "audit")
    admin.create_queue(cases, requires_session=True)
    command, connection_string = Command(capsys), broker.connection_string()
    with ServiceBusClient.from_connection_string(connection_string) as client:
        client.get_topic_sender(topic).send_messages(ServiceBusMessage("pill", session_id="s"))
        for words in (
            [f"{topic}/Subscriptions/audit/$DeadLetterQueue"],
            [f"{topic}/Subscriptions/audit", "--to", cases],
        ):
            with client.get_subscription_receiver(topic, "audit") as receiver:
                [message] = receiver.receive_messages(max_wait_time=5)
                assert (str(message), message.dead_letter_reason) == ("pill", None)
                receiver.dead_letter_message(message, reason="test", error_description="on purpose")
            done = command("redrive", *words, "--connection-string", connection_string)
            assert (done.code, done.out) == (0, "moved 1 message\n"), done.err
        with client.get_queue_receiver(cases, session_id="s", receive_mode="receiveanddelete") as receiver:
            assert list(map(str, receiver.receive_messages(max_wait_time=5))) == ["pill"]
