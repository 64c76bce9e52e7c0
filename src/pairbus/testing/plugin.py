"""Fixtures for pytest, found by the entry point `pytest11`: a Service Bus namespace for each test, on this machine.

Loading this file is cheap: a fixture imports its modules when a test first uses it. Every process of `pytest -n` has a
broker of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pairbus.testing.broker_thread import BrokerThread, PairClock, ServiceBusNamespace, ThreadClock
    from pairbus.testing.outages import Outage
    from pairbus.testing.pairs import ServiceBusPair

_numbers = count(1)


@pytest.fixture(scope="session")
def servicebus_broker() -> Iterator[BrokerThread]:
    """A Service Bus broker in memory for the whole run, in a thread of this process."""
    try:
        from pairbus.testing.broker_thread import BrokerThread
    except ModuleNotFoundError as error:
        pytest.fail(f"the fixtures of pairbus need {error.name}: pip install 'pairbus[broker]'", pytrace=False)

    with BrokerThread(["session"]) as broker:
        yield broker


@pytest.fixture
def servicebus_namespace(servicebus_broker: BrokerThread) -> Iterator[ServiceBusNamespace]:
    """An empty Service Bus namespace for this test, with a port and a clock of its own."""
    namespace = servicebus_broker.add_namespace(f"test-{next(_numbers)}")
    yield namespace
    servicebus_broker.remove_namespace(namespace.name)


@pytest.fixture
def servicebus_pair(servicebus_broker: BrokerThread) -> Iterator[ServiceBusPair]:
    """Two empty namespaces for this test, `.primary` and `.secondary`, and `.client()` that pairs them."""
    from pairbus.testing.pairs import ServiceBusPair

    number = next(_numbers)
    names = [f"test-{number}-{side}" for side in ("primary", "secondary")]
    pair = ServiceBusPair(*[servicebus_broker.add_namespace(name) for name in names])
    yield pair
    for side in (pair.primary, pair.secondary):
        side.faults.clear()  # so that clients can close their connections properly
    pair.close()
    for name in names:
        servicebus_broker.remove_namespace(name)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> ThreadClock | PairClock:
    """The clock of `servicebus_namespace`: locks, times to live and schedules end when the test moves it.

    In a test that has `servicebus_pair` and no `servicebus_namespace`, it moves both namespaces of the pair.
    """
    moved_clock: ThreadClock | PairClock = _of_test(request).clock
    return moved_clock


@pytest.fixture
def outage(request: pytest.FixtureRequest) -> Callable[..., Outage]:
    """Trouble of `servicebus_namespace` until the end of a block: `with outage("refuse"):`.

    In a test that has `servicebus_pair` and no `servicebus_namespace`, it is trouble of the pair's primary.
    """
    fixture = _of_test(request)
    begin: Callable[..., Outage] = getattr(fixture, "primary", fixture).outage
    return begin


def _of_test(request: pytest.FixtureRequest) -> Any:
    """Return the pair of a test that has only a pair, or else its namespace."""
    is_pair = "servicebus_pair" in request.fixturenames and "servicebus_namespace" not in request.fixturenames
    return request.getfixturevalue("servicebus_pair" if is_pair else "servicebus_namespace")
