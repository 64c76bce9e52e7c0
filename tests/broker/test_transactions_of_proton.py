"""Transactions of Qpid Proton, a foreign AMQP client; skipped where `python-qpid-proton` is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace

proton: Any = pytest.importorskip("proton", reason="python-qpid-proton is not installed")
handlers: Any = pytest.importorskip("proton.handlers")
reactor: Any = pytest.importorskip("proton.reactor")


class Mover(handlers.MessagingHandler, handlers.TransactionHandler):  # type: ignore[misc]
    """Receive one message of `orders`, send one to `bills`, and end the transaction."""

    def __init__(self, url: str, *, aborts: bool, early: bool) -> None:
        super().__init__(prefetch=0, auto_accept=False)
        self.told: list[str] = []
        self._url, self._aborts, self._early = url, aborts, early
        self._transaction: Any = None

    def on_start(self, event: Any) -> None:
        self._connection = event.container.connect(self._url, allowed_mechs="PLAIN", reconnect=False)
        self._receiver = event.container.create_receiver(self._connection, "orders")
        self._sender = event.container.create_sender(self._connection, "bills")
        event.container.declare_transaction(self._connection, handler=self, settle_before_discharge=self._early)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        self._transaction.send(self._sender, proton.Message(id="bill", body="of Proton"))
        self._receiver.flow(1)

    def on_message(self, event: Any) -> None:
        self._transaction.accept(event.delivery)
        if self._aborts:
            self._transaction.abort()
        else:
            self._transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        self._end("committed")

    def on_transaction_aborted(self, event: Any) -> None:
        self._end("aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        self._end("commit failed")

    def on_transaction_declare_failed(self, event: Any) -> None:
        self._end("declare failed")

    def on_transport_error(self, event: Any) -> None:
        self.told.append(str(event.transport.condition))

    def _end(self, word: str) -> None:
        self.told.append(word)
        self._connection.close()


@pytest.fixture
def namespace() -> Iterator[ServiceBusNamespace]:
    with BrokerThread() as broker:
        namespace = broker.namespace()
        for path in ("orders", "bills"):
            namespace.create_queue(path)
        with (
            ServiceBusClient.from_connection_string(namespace.connection_string) as client,
            client.get_queue_sender("orders") as sender,
        ):
            sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        yield namespace


Run = Callable[..., list[str]]


@pytest.fixture
def run(namespace: ServiceBusNamespace) -> Run:
    """Run a mover to its end, and give what it was told."""
    parts = dict(part.split("=", 1) for part in namespace.connection_string.rstrip(";").split(";"))
    host = parts["Endpoint"].removeprefix("sb://")
    url = f"amqp://{parts['SharedAccessKeyName']}:{parts['SharedAccessKey']}@{host}"

    def move(*, aborts: bool = False, early: bool = False) -> list[str]:
        mover = Mover(url, aborts=aborts, early=early)
        reactor.Container(mover).run()
        return mover.told

    return move


def counts(namespace: ServiceBusNamespace) -> tuple[int, int]:
    """Messages in (orders, bills)."""
    with ServiceBusAdministrationClient.from_connection_string(
        namespace.connection_string, connection_verify=str(namespace.ca_file)
    ) as admin:
        orders, bills = [admin.get_queue_runtime_properties(path) for path in ("orders", "bills")]
    return orders.active_message_count or 0, bills.active_message_count or 0


@pytest.mark.parametrize("early", [False, True], ids=["settled by the broker", "settled before the discharge"])
def test_proton_commits(namespace: ServiceBusNamespace, run: Run, early: bool) -> None:
    """One message leaves a queue and another enters the other one."""
    assert run(early=early) == ["committed"]
    assert counts(namespace) == (1, 1)


def test_proton_rolls_back_and_releases(namespace: ServiceBusNamespace, run: Run) -> None:
    """Its client releases what it had accepted, so the next transaction gets the same message at once."""
    assert run(aborts=True) == ["aborted"]
    assert counts(namespace) == (2, 0)
    assert run() == ["committed"] and run() == ["committed"]
    assert counts(namespace) == (0, 2)
