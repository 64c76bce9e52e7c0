"""The nemesis for tests that block: on its own thread, its switches thrown from this one; the genuine sync SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError

from pairbus.testing import NemesisThread
from tests.brokers import BrokerProcess


@pytest.fixture
def nemesis(broker: BrokerProcess) -> Iterator[NemesisThread]:
    with NemesisThread("127.0.0.1", broker.ports["contoso"]) as nemesis:
        yield nemesis


@pytest.fixture
def client(broker: BrokerProcess, nemesis: NemesisThread) -> Iterator[ServiceBusClient]:
    connection_string = nemesis.connection_string(broker.connection_string())
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
        yield client


def received(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        return [str(message) for message in receiver.receive_messages(max_message_count=10, max_wait_time=2)]


def test_the_sync_sdk_meets_a_lost_answer(nemesis: NemesisThread, client: ServiceBusClient, queue_name: str) -> None:
    """A blocked caller cannot switch anything, so the switches must work from wherever a test stands."""
    with client.get_queue_sender(queue_name) as sender:
        nemesis.drop_answers(queue_name, count=1)
        with pytest.raises(OperationTimeoutError):
            sender.send_messages(ServiceBusMessage("unknown"), timeout=1)
        sender.send_messages(ServiceBusMessage("known"), timeout=5)
    nemesis.wait_until(lambda: nemesis.counts.of(queue_name).answers_dropped == 1)
    assert received(client, queue_name) == ["unknown", "known"]


def test_the_sync_sdk_meets_a_refused_port_and_finds_it_again(
    nemesis: NemesisThread, client: ServiceBusClient, queue_name: str
) -> None:
    """The port stays ours while nobody listens on it: no other process can be given it."""
    with client.get_queue_sender(queue_name) as sender:
        nemesis.refuse()
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("lost"), timeout=5)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("lost"), timeout=5)
        nemesis.heal()
        sender.send_messages(ServiceBusMessage("again"), timeout=5)
    assert received(client, queue_name) == ["again"]
