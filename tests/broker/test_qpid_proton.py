"""Messages of Qpid Proton, a foreign AMQP client; skipped where `python-qpid-proton` is not installed.

It logs in with SASL PLAIN and knows no `$cbs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace
from tests.limits import slowness

proton: Any = pytest.importorskip("proton", reason="python-qpid-proton is not installed")
reactor: Any = pytest.importorskip("proton.reactor")
utils: Any = pytest.importorskip("proton.utils")

WAIT_S = 10.0
SESSION_FILTER = "com.microsoft:session-filter"


@pytest.fixture(scope="module")
def namespace() -> Iterator[ServiceBusNamespace]:
    with BrokerThread() as broker:
        yield broker.namespace()


@pytest.fixture
def connection(namespace: ServiceBusNamespace) -> Iterator[Any]:
    parts = dict(part.split("=", 1) for part in namespace.connection_string.rstrip(";").split(";"))
    host = parts["Endpoint"].removeprefix("sb://")
    url = f"amqp://{parts['SharedAccessKeyName']}:{parts['SharedAccessKey']}@{host}"
    opened = utils.BlockingConnection(url, timeout=WAIT_S * slowness(), allowed_mechs="PLAIN")
    yield opened
    opened.close()


def test_message_of_proton_is_read_by_the_sdk(namespace: ServiceBusNamespace, connection: Any) -> None:
    """Each section that both know arrives, and Proton is told that the message is accepted."""
    namespace.create_queue("out")
    sender = connection.create_sender("out")
    sent = proton.Message(id="m1", subject="label", body="of Proton", properties={"number": 7})
    assert sender.send(sent).remote_state == proton.Delivery.ACCEPTED
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_receiver("out", max_wait_time=WAIT_S) as receiver,
    ):
        [message] = receiver.receive_messages(1)
        assert (message.message_id, message.subject) == ("m1", "label")
        assert message.application_properties == {b"number": 7}
        receiver.complete_message(message)


def test_proton_completes_releases_and_rejects(namespace: ServiceBusNamespace, connection: Any) -> None:
    """A released message comes again, a rejected one is a dead letter, an accepted one is gone."""
    namespace.create_queue("in")
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_sender("in") as sender,
    ):
        sender.send_messages([ServiceBusMessage(f"{number}", message_id=f"{number}") for number in range(2)])
    receiver = connection.create_receiver("in", credit=1)
    assert receiver.receive().id == "0"
    receiver.release(delivered=False)
    again = []
    for _ in range(2):  # Proton may have asked for the second message before it released the first
        again.append(receiver.receive().id)
        receiver.reject() if again[-1] == "0" else receiver.accept()
    assert sorted(again) == ["0", "1"]
    receiver.close()
    dead = connection.create_receiver("in/$DeadLetterQueue", credit=1)
    assert dead.receive().id == "0"
    dead.accept()


def test_proton_receives_a_session(namespace: ServiceBusNamespace, connection: Any) -> None:
    """The filter names the session; messages of another one stay."""
    namespace.create_queue("talks", requires_session=True)
    sender = connection.create_sender("talks")
    for number, group in enumerate(("b", "a", "a")):
        sender.send(proton.Message(id=f"{number}", group_id=group, body="x"))
    wanted = reactor.Filter({proton.symbol(SESSION_FILTER): "a"})
    receiver = connection.create_receiver("talks", credit=10, options=wanted)
    ids = []
    for _ in range(2):
        ids.append(receiver.receive().id)
        receiver.accept()
    assert ids == ["1", "2"]
    with pytest.raises(proton.Timeout):
        receiver.receive(timeout=0.3)


def test_refusals_have_their_condition(connection: Any) -> None:
    """A queue that does not exist."""
    with pytest.raises(utils.LinkDetached) as refused:
        connection.create_receiver("nowhere")
    assert refused.value.condition == "amqp:not-found"
