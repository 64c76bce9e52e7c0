"""Outages of the tester's kit: faults that blocking code switches on, and that end with the test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from pairbus.errors import FaultNotFound, InvalidFault
from pairbus.testing import BrokerThread, ServiceBusNamespace
from tests.kit.test_plugin import run_pytest

THREADS = 8
EACH = 10


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        broker.create_queue("orders")
        yield broker


@pytest.fixture
def namespace(broker: BrokerThread) -> Iterator[ServiceBusNamespace]:
    """The same for all tests here: each leaves it without faults."""
    yield broker.namespace()
    left = broker.namespace().faults.list()
    broker.reset()
    assert left == []


def send(namespace: ServiceBusNamespace, body: str = "a book") -> None:
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(body))


def test_faults_are_switched_from_blocking_code(broker: BrokerThread, namespace: ServiceBusNamespace) -> None:
    """The words are those of the broker's own switches; the fault has begun, or ended, when the call returns."""
    number = namespace.faults.add("throttle", entity="orders", direction="send", for_s="1m", count=5)
    [shown] = broker.faults().list()
    assert (shown["id"], shown["kind"], shown["for_s"], shown["left"]) == (number, "throttle", 60, 5)
    with pytest.raises(ServiceBusServerBusyError):
        send(namespace)
    assert namespace.faults.clear(number) == 1
    send(namespace)
    assert len(namespace.sent("orders")) == 1
    assert namespace.faults.clear() == 0


def test_wrong_fault_is_named_in_the_thread_of_the_caller(namespace: ServiceBusNamespace) -> None:
    """No fault is switched on."""
    with pytest.raises(InvalidFault, match="earthquake"):
        namespace.faults.add("earthquake")
    with pytest.raises(InvalidFault, match="takes no entity"):
        namespace.outage("refuse", entity="orders")
    with pytest.raises(FaultNotFound):
        namespace.faults.clear(10_000)


def test_many_threads_switch_faults(namespace: ServiceBusNamespace) -> None:
    """Each thread gets numbers of its own, and clears the faults that it added."""

    def switch(number: int) -> list[int]:
        added = [namespace.faults.add("quota", entity=f"q{number}") for _ in range(EACH)]
        assert set(added) <= {one["id"] for one in namespace.faults.list()}
        assert sum(namespace.faults.clear(one) for one in added) == EACH
        return added

    with ThreadPoolExecutor(THREADS) as threads:
        numbers = [one for added in threads.map(switch, range(THREADS)) for one in added]
    assert len(set(numbers)) == THREADS * EACH


def test_outage_ends_with_its_block(namespace: ServiceBusNamespace) -> None:
    """The outage ends also when the block raises, as a failing test does."""
    with pytest.raises(ServiceBusConnectionError), namespace.outage("refuse"):
        send(namespace)
    assert namespace.faults.list() == []
    send(namespace)
    assert len(namespace.sent("orders")) == 1


def test_outage_begins_without_a_block(namespace: ServiceBusNamespace) -> None:
    """A test that forgets `with` still runs in the outage; `end` ends it, and a second `end` harms nothing."""
    outage = namespace.outage("refuse")
    assert [one["id"] for one in namespace.faults.list()] == [outage.number]
    outage.end()
    outage.end()
    assert namespace.faults.list() == []


def test_outages_end_one_by_one(namespace: ServiceBusNamespace) -> None:
    """The end of an inner block leaves the outer one alone."""
    with namespace.outage("throttle", direction="send"):
        with namespace.outage("stall", direction="receive"):
            assert [one["kind"] for one in namespace.faults.list()] == ["throttle", "stall"]
        assert [one["kind"] for one in namespace.faults.list()] == ["throttle"]


@pytest.mark.parametrize("how", ["count", "time", "clear", "reset"])
def test_block_of_an_outage_that_is_over_ends_quietly(namespace: ServiceBusNamespace, how: str) -> None:
    """The outage's count is used up, its time is over, or a call has cleared it."""
    ends_by_itself: dict[str, dict[str, Any]] = {"count": {"count": 1}, "time": {"for_s": 0.01}}
    with namespace.outage("throttle", direction="send", **ends_by_itself.get(how, {})):
        if how == "count":
            with pytest.raises(ServiceBusServerBusyError):
                send(namespace)
        elif how == "clear":
            namespace.faults.clear()
        elif how == "reset":
            namespace.reset()
        deadline_s = time.monotonic() + 5
        while namespace.faults.list():
            assert time.monotonic() < deadline_s, namespace.faults.list()


USERS_TESTS = """
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError


def send(namespace):
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    with client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("a book"))


def test_outage_is_that_of_the_namespace(servicebus_namespace, outage):
    servicebus_namespace.create_queue("orders")
    with outage("refuse"):
        with pytest.raises(ServiceBusConnectionError):
            send(servicebus_namespace)
    send(servicebus_namespace)


def test_outage_is_that_of_the_primary(servicebus_pair, outage):
    servicebus_pair.primary.create_queue("orders")
    with outage("refuse"):
        assert len(servicebus_pair.primary.faults.list()) == 1
        assert servicebus_pair.secondary.faults.list() == []


def test_outage_of_a_test_with_both_is_that_of_the_namespace(servicebus_pair, servicebus_namespace, outage):
    outage("refuse")
    assert [len(one.faults.list()) for one in (servicebus_namespace, servicebus_pair.primary)] == [1, 0]


def test_that_fails_in_an_outage(servicebus_namespace, outage):
    with outage("black-hole"):
        assert False, "as planned"


def test_that_leaves_everything_on(servicebus_pair, outage):
    servicebus_pair.primary.create_queue("orders")
    client = servicebus_pair.client(backlog_queue_count=1)
    client.get_queue_sender("orders").send_messages(ServiceBusMessage("a book"))
    outage("black-hole")
    servicebus_pair.secondary.faults.add("stall")


def test_next_one_is_whole(servicebus_namespace, servicebus_pair):
    for namespace in (servicebus_namespace, servicebus_pair.primary, servicebus_pair.secondary):
        assert namespace.faults.list() == []
    servicebus_namespace.create_queue("orders")
    send(servicebus_namespace)
"""


@pytest.mark.slow
def test_users_tests_need_no_clean_up_after_outages(tmp_path: Path) -> None:
    """A test that fails or forgets leaves the next one a whole namespace, and the run ends."""
    printed = run_pytest(tmp_path, [USERS_TESTS], code=1)
    assert "1 failed, 5 passed" in printed and "as planned" in printed, printed
