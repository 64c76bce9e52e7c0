"""The tools for tests that block: on their own threads, their switches thrown from this one; the genuine sync SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusServerBusyError

from pairbus.amqp.message import Message
from pairbus.testing import NemesisThread
from tests.brokers import BrokerProcess
from tests.scripted import Detach, Reject, ScriptedThread

pytestmark = pytest.mark.slow


@pytest.fixture
def nemesis(broker: BrokerProcess) -> Iterator[NemesisThread]:
    with NemesisThread.before(broker.connection_string()) as nemesis:
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


def test_the_sync_sdk_hangs_in_a_black_hole_until_it_is_reset(
    nemesis: NemesisThread, client: ServiceBusClient, queue_name: str
) -> None:
    """No timeout of its own ends this: a client that stands on it must never let it meet an unproven endpoint."""
    nemesis.black_hole(open_connections=False)
    errors: list[Exception] = []

    def send() -> None:
        try:
            client.get_queue_sender(queue_name).send_messages(ServiceBusMessage("hangs"), timeout=0.5)
        except ServiceBusConnectionError as error:
            errors.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(2)
    assert sending.is_alive(), "the time-out of half a second has not helped"
    nemesis.heal()
    sending.join(10)
    assert len(errors) == 1


def test_the_sync_sdk_meets_a_scripted_endpoint() -> None:
    """The same script as for the aio flavour, told from the thread of the test."""
    with (
        ScriptedThread() as endpoint,
        ServiceBusClient.from_connection_string(endpoint.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("first"), timeout=5)
        endpoint.on("transfer", Reject("com.microsoft:server-busy"), times=1)
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("refused"), timeout=5)
        endpoint.on("transfer", Detach(), times=1)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("cut off"), timeout=5)
        sender.send_messages(ServiceBusMessage("last"), timeout=5)
        endpoint.wait_until(lambda: len(endpoint.received) == 4)
        assert [Message.decode(payload).body for payload in endpoint.stored("orders")] == [b"first", b"last"]
