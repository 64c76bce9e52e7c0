"""A broker in a thread: for code that blocks, with the genuine sync SDK."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from pairbus.broker import Broker, NamespaceOptions
from pairbus.errors import ConfigError, EntityExists, InvalidDescription
from pairbus.settings import SETTINGS
from pairbus.testing import BrokerThread, ServiceBusPair

FURTHER_S = 0.05  # CPU time that one more namespace may cost
ROUNDS = 20


def send(connection_string: str, entity: str, *bodies: str) -> None:
    client = ServiceBusClient.from_connection_string(connection_string)
    with client, client.get_queue_sender(entity) as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def receive(connection_string: str, entity: str) -> str:
    client = ServiceBusClient.from_connection_string(connection_string)
    with client, client.get_queue_receiver(entity) as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=5)
        receiver.complete_message(message)
        return str(message)


def test_blocking_code_uses_a_broker_in_a_thread() -> None:
    """Send, look, receive, move the clock, reset; afterwards no thread is left."""
    before = set(threading.enumerate())
    with BrokerThread() as broker:
        assert broker.create_queue("orders", dead_lettering_on_message_expiration=True) == "orders"
        send(broker.connection_string(), "orders", "one", "two")
        assert receive(broker.connection_string(), "orders") == "one"
        assert [str(one) for one in broker.namespace().sent("orders")] == ["one", "two"]
        assert broker.clock().advance(60) >= broker.clock().now() - timedelta(seconds=30)
        assert broker.clock().offset == timedelta(seconds=60)
        broker.reset("delete")
        broker.create_queue("orders")
        with pytest.raises(EntityExists):
            broker.create_queue("orders")
    assert not [one for one in set(threading.enumerate()) - before if one.name == "pairbus-broker"]
    with pytest.raises(ConfigError, match="not running"):
        broker.connection_string()


def test_namespaces_have_their_own_entities_and_clocks() -> None:
    """A namespace that was added later has its own too, until it is removed."""
    with BrokerThread(["contoso", NamespaceOptions("fabrikam")]) as broker:
        third = broker.add_namespace("northwind")
        for name in ("contoso", "fabrikam", "Northwind"):
            broker.create_queue("orders", namespace=name)
        broker.clock("fabrikam").advance(60)
        assert [broker.clock(name).offset.seconds for name in ("contoso", "fabrikam")] == [0, 60]
        send(third.connection_string, "orders", "one")
        assert [len(broker.namespace(name).sent("orders")) for name in ("contoso", "northwind")] == [0, 1]
        with pytest.raises(ConfigError, match="already"):
            broker.add_namespace("CONTOSO")
        broker.remove_namespace("northwind")
        with pytest.raises(ConfigError, match="there are: contoso, fabrikam"):
            broker.namespace("northwind")
        with pytest.raises(ConfigError):
            broker.remove_namespace("northwind")


def test_removed_namespace_leaves_its_data(tmp_path: Path) -> None:
    """The namespace has its messages again when it is added again."""
    with BrokerThread(["contoso"], data=tmp_path) as broker:
        first = broker.add_namespace("fabrikam")
        first.create_queue("orders")
        send(first.connection_string, "orders", "kept")
        broker.remove_namespace("fabrikam")
        again = broker.add_namespace("fabrikam")
        assert receive(again.connection_string, "orders") == "kept"


def test_topics_subscriptions_and_filters_are_created() -> None:
    """The genuine administration client sees the settings that were given in its own words."""
    with BrokerThread() as broker:
        namespace = broker.namespace()
        namespace.create_topic("news", default_message_time_to_live=timedelta(hours=1))
        assert namespace.create_subscription("news", "red", sql_filter="colour = 'red'", lock_duration=30) == "red"
        namespace.create_subscription("news", "all", requires_session=True)
        with ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=str(namespace.ca_file)
        ) as admin:
            assert admin.get_topic("news").default_message_time_to_live == timedelta(hours=1)
            assert admin.get_subscription("news", "red").lock_duration == timedelta(seconds=30)
            assert admin.get_subscription("news", "all").requires_session
            [rule] = admin.list_rules("news", "red")
            assert isinstance(rule.filter, SqlRuleFilter) and rule.filter.sql_expression == "colour = 'red'"


def test_every_setting_of_the_kit_is_a_word_of_the_sdk() -> None:
    """Users look the names up in the SDK's own documentation."""
    with BrokerThread() as broker:
        broker.create_queue("orders")
        broker.create_topic("news")
        broker.create_subscription("news", "all")
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string(), connection_verify=str(broker.namespace().ca_file)
        ) as admin:
            found: set[str] = set()
            for one in (admin.get_queue("orders"), admin.get_topic("news"), admin.get_subscription("news", "all")):
                found |= set(vars(one))
    assert {setting.sdk for setting in SETTINGS} <= found | {"filtering_messages_before_publishing"}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"lock_duration_ms": 1}, TypeError),
        ({"lock_duration": "PT1M"}, TypeError),
        ({"lock_duration": timedelta(hours=1)}, InvalidDescription),
        ({"forward_to": "nowhere"}, InvalidDescription),
        ({"lock_duration": timedelta.max}, InvalidDescription),
        ({"max_delivery_count": None}, InvalidDescription),
        ({"max_delivery_count": "10"}, TypeError),
        ({"requires_session": "no"}, TypeError),
        ({"user_metadata": 5}, TypeError),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], error: type[Exception]) -> None:
    """No queue is created when a setting is wrong."""
    with BrokerThread() as broker:
        with pytest.raises(error, match="|".join(settings) + "|lock_duration"):
            broker.create_queue("orders", **settings)
        assert broker.create_queue("orders") == "orders"


def test_wrong_use_is_told_at_once(tmp_path: Path) -> None:
    """The error is raised in the thread of the caller."""
    with pytest.raises(ConfigError, match="at least one"):
        BrokerThread([])
    broker = BrokerThread()
    with pytest.raises(ConfigError, match="not running"):
        broker.add_namespace("fabrikam")
    broker.stop()
    with broker:
        with pytest.raises(ConfigError, match="running already"):
            broker.start()
        with pytest.raises(ValueError, match="forward only"):
            broker.clock().advance(-1)
        with pytest.raises(ConfigError, match="there are: none"):
            broker.namespace().sent("orders")
    with BrokerThread(record_sends=False) as silent, pytest.raises(ConfigError, match="not recorded"):
        silent.namespace().sent("orders")


async def test_namespaces_are_added_to_a_running_broker_only() -> None:
    """A broker that has not started has no certificate to serve with."""
    broker = Broker([NamespaceOptions("contoso")], data=None)
    with pytest.raises(ConfigError, match="not running"):
        await broker.add_namespace(NamespaceOptions("fabrikam"))


async def test_namespace_that_cannot_be_served_is_not_there() -> None:
    """The namespace's port is taken; the name is free for another try."""
    async with Broker([NamespaceOptions("contoso")], data=None) as broker:
        port = int(broker.connection_string("contoso").split(";")[0].rpartition(":")[2])
        with pytest.raises(ConfigError, match="choose another port"):
            await broker.add_namespace(NamespaceOptions("fabrikam", port))
        assert broker.names() == ["contoso"]
        assert (await broker.add_namespace(NamespaceOptions("fabrikam"))).name == "fabrikam"


async def test_pair_has_a_client_for_asyncio() -> None:
    """The broker answers on its own thread, while the loop of the test waits."""
    with BrokerThread(["contoso", "fabrikam"]) as broker:
        pair = ServiceBusPair(broker.namespace("contoso"), broker.namespace("fabrikam"))
        pair.primary.create_queue("orders")
        async with pair.aio_client(backlog_queue_count=1) as client:
            await client.get_queue_sender("orders").send_messages(ServiceBusMessage("a book"))
        assert [str(one) for one in pair.primary.sent("orders")] == ["a book"]


def test_further_namespace_costs_little_and_waits_for_nobody() -> None:
    """Clients may be left open: a test needs no clean-up."""
    with BrokerThread() as broker:
        first = broker.add_namespace("first")
        first.create_queue("orders")
        client = ServiceBusClient.from_connection_string(first.connection_string)
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("a book"))
        began_s = time.process_time()
        broker.remove_namespace("first")
        for number in range(ROUNDS):
            broker.add_namespace(f"n{number}").create_queue("orders")
            broker.remove_namespace(f"n{number}")
        assert (time.process_time() - began_s) / ROUNDS < FURTHER_S
        sender.close()
        client.close()


def test_nothing_of_a_removed_namespace_stays_in_memory() -> None:
    """A run of ten thousand tests removes as many namespaces, with clients that were not closed."""
    with BrokerThread() as broker:
        namespace = broker.add_namespace("first")
        namespace.create_queue("orders")
        admin = ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=str(namespace.ca_file)
        )
        assert admin.get_queue("orders").name == "orders"
        client = ServiceBusClient.from_connection_string(namespace.connection_string)
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("a book"))
        left = weakref.ref(namespace._namespace)
        broker.remove_namespace("first")
        del namespace
        deadline_s = time.monotonic() + 10
        while left() is not None and time.monotonic() < deadline_s:
            time.sleep(0.05)  # time for the sockets to notice that the peer is gone
            gc.collect()
        assert left() is None
        for open_one in (sender, client, admin):
            open_one.close()
