"""Causes and ways of unavailability: each of them played by the broker's own faults.

The causes: throttling, trouble in a dependency, one subsystem that restarts, a whole data centre that is lost. The
ways, each independent of the others: cannot send, cannot receive, cannot manage, cannot contact the service at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus.client.errors import SecondaryUnreachable
from pairbus.pairing.events import Diverted, FailedOver, Recovered, Suspected
from pairbus.pairing.failover import State
from pairbus.testing import ServiceBusNamespace, ServiceBusPair
from tests.client.losses import QUICK_S
from tests.client.outage import BACK_S, FLAVOURS
from tests.client.world import Client, message, new_client, until
from tests.limits import slowness
from tests.sdk.flavours import Flavour

ORDERS, INVOICES = "orders", "invoices"
BACKLOG = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
WAIT_S = 10.0
"Wait of a throttled send."
HASTE: dict[str, Any] = {"attempt_timeout": 0.6, "connect_timeout": 0.6}
"Options of a client that leaves a silent peer soon."


class Pair:
    """Two namespaces in this process, with `orders` and `invoices` at home, and clients that are closed at the end."""

    def __init__(self, pair: ServiceBusPair) -> None:
        self.primary: ServiceBusNamespace = pair.primary
        self.secondary: ServiceBusNamespace = pair.secondary
        self._clients: list[Client] = []
        for queue in (ORDERS, INVOICES):
            self.primary.create_queue(queue)

    def new_client(self, flavour: Flavour, **options: Any) -> Client:
        """Make a client that is not paired yet."""
        ends = self.primary.connection_string, self.secondary.connection_string
        client = new_client(flavour, *ends, primary_name="contoso", **options)
        self._clients.append(client)
        return client

    async def client(self, flavour: Flavour, **options: Any) -> Client:
        """Make a paired client that has sent a message to each queue, so that its links are open."""
        client = self.new_client(flavour, **options)
        await client.pair()
        for queue in (ORDERS, INVOICES):
            await client.sender(queue).send(message("first"))
        return client

    def at_home(self, queue: str = ORDERS) -> list[str]:
        """Bodies that the queue has accepted, in order."""
        return [str(one) for one in self.primary.sent(queue)]

    def in_backlog(self) -> list[tuple[Any, str]]:
        """Destination and body of everything that the backlog queues have accepted."""
        stored = [one for queue in BACKLOG for one in self.secondary.sent(queue)]
        return sorted((one.application_properties["x-ms-path"], str(one)) for one in stored)

    async def close(self) -> None:
        for side in (self.primary, self.secondary):
            side.faults.clear()
        await asyncio.gather(*(client.close() for client in self._clients))


@pytest.fixture
async def pair(servicebus_pair: ServiceBusPair) -> AsyncIterator[Pair]:
    pair = Pair(servicebus_pair)
    yield pair
    await pair.close()


def assert_nothing_counted(client: Client) -> None:
    assert [event for kind in (Suspected, FailedOver, Diverted) for event in client.told(kind)] == []


async def open_receiver(client: Client) -> Any:
    """Make a receiver of `orders` that has received and completed the first message, so that its link is open."""
    receiver = client.client.get_queue_receiver(ORDERS)
    [first] = await client.call(receiver.receive_messages, 1, 10)
    await client.call(receiver.complete_message, first)
    assert str(first) == "first"
    return receiver


async def until_healthy(client: Client, *queues: str) -> None:
    for queue in queues:
        await client.until_state(queue, State.HEALTHY, BACK_S)


# ── throttling ──


@pytest.mark.slow
async def test_throttled_sends_wait_ten_seconds_and_divert_nothing(pair: Pair) -> None:
    """Each call waits by itself: a send to another entity is not held up."""
    clients = [await pair.client(flavour) for flavour in FLAVOURS]
    pair.primary.faults.add("throttle", entity=ORDERS, direction="send", count=len(clients))
    sends = [asyncio.create_task(client.sender(ORDERS).send(message("patient"))) for client in clients]
    await until(lambda: pair.primary.faults.list() == [], "both sends were throttled")
    for client in clients:
        assert await client.sender(INVOICES).send(message("meanwhile")) < slowness()
    for took_s in await asyncio.gather(*sends):
        assert WAIT_S <= took_s < WAIT_S + 3 * slowness()
    for client in clients:
        assert_nothing_counted(client)
    assert pair.at_home() == ["first", "first", "patient", "patient"]
    assert pair.in_backlog() == []


async def test_throttled_send_without_time_to_wait_gets_the_error(pair: Pair, flavour: Flavour) -> None:
    """The error comes at once, and throttling of any length is no outage."""
    client = await pair.client(flavour)
    sender = client.sender(ORDERS)
    with pair.primary.outage("throttle", entity=ORDERS, direction="send"):
        for _ in range(3):
            assert isinstance(await sender.error(message(), timeout=9, within_s=5), ServiceBusServerBusyError)
    await sender.send(message("after"))
    assert_nothing_counted(client)
    assert (pair.at_home(), pair.in_backlog()) == (["first", "after"], [])


# ── trouble in a dependency ──


async def test_messages_that_become_receivable_late_are_no_outage(pair: Pair, flavour: Flavour) -> None:
    """Fifteen minutes late is the service's own remedy: sends go on to the primary, and nothing is sent twice."""
    client = await pair.client(flavour)
    receiver = await open_receiver(client)
    with pair.primary.outage("delay", entity=ORDERS, delay_s="15m"):
        await client.sender(ORDERS).send(message("late"))
        assert await client.call(receiver.receive_messages, 1, 0.3) == []
        assert_nothing_counted(client)
    pair.primary.clock.advance(timedelta(minutes=15))
    assert [str(one) for one in await client.call(receiver.receive_messages, 10, 10)] == ["late"]
    assert pair.in_backlog() == []


# ── one subsystem restarts ──


@pytest.mark.parametrize("kind", ["restart", "internal-error", "time-out"])
async def test_trouble_of_one_entity_fails_over_that_entity_only(pair: Pair, flavour: Flavour, kind: str) -> None:
    """Links that are detached and refused, messaging errors, the service's time-outs; and it comes back by itself."""
    client = await pair.client(flavour)
    with pair.primary.outage(kind, entity=ORDERS, for_s=60):
        assert await client.sender(ORDERS).send(message("diverted")) < QUICK_S * slowness()
        assert await client.sender(INVOICES).send(message("at home")) < slowness()
        assert (client.state(ORDERS), client.state(INVOICES)) == (State.FAILED_OVER, State.HEALTHY)
    await until_healthy(client, ORDERS)
    await client.sender(ORDERS).send(message("back"))
    assert pair.at_home(INVOICES) == ["first", "at home"]
    assert pair.at_home(ORDERS) == ["first", "back"]
    assert pair.in_backlog() == [(ORDERS, "diverted")]


async def test_restart_of_a_moment_is_retried_and_diverts_nothing(pair: Pair, flavour: Flavour) -> None:
    """A failure counts only after three attempts, even with a failover interval of 0."""
    client = await pair.client(flavour)
    pair.primary.faults.add("restart", entity=ORDERS, for_s=0.2)
    await client.sender(ORDERS).send(message("retried"))
    assert_nothing_counted(client)
    assert (pair.at_home(), pair.in_backlog()) == (["first", "retried"], [])


# ── a whole data centre is lost: the service cannot be contacted ──


@pytest.mark.parametrize("kind", ["refuse", "black-hole"])
async def test_lost_data_centre_fails_over_entities_as_they_are_used(pair: Pair, flavour: Flavour, kind: str) -> None:
    """Entities fail over one by one: an entity without sends is not failed over."""
    client = await pair.client(flavour, **HASTE)
    with pair.primary.outage(kind):
        await client.sender(ORDERS).send(message("diverted"))
        assert (client.state(ORDERS), client.state(INVOICES)) == (State.FAILED_OVER, State.HEALTHY)
        await client.sender(INVOICES).send(message("diverted too"))
        assert client.state(INVOICES) is State.FAILED_OVER
        assert pair.in_backlog() == [(INVOICES, "diverted too"), (ORDERS, "diverted")]
    await until_healthy(client, ORDERS, INVOICES)
    await client.sender(ORDERS).send(message("back"))
    assert pair.at_home()[-1] == "back"


async def test_messages_come_home_when_contact_is_back(pair: Pair, flavour: Flavour) -> None:
    """A running syphon moves the backlog without an operator."""
    client = await pair.client(flavour, enable_syphon=True)
    bodies = [f"diverted {number}" for number in range(3)]
    with pair.primary.outage("refuse"):
        for body in bodies:
            await client.sender(ORDERS).send(message(body))
        assert len(pair.in_backlog()) == len(bodies)
    await until(lambda: len(pair.at_home()) == 1 + len(bodies), "everything is at home", 10 * slowness())
    assert sorted(pair.at_home()) == sorted(["first", *bodies])
    await client.until_event(Recovered, BACK_S)


# ── the other unavailabilities ──


async def test_entity_that_cannot_be_sent_to_is_received_from(pair: Pair, flavour: Flavour) -> None:
    """A full queue is emptied by its receivers while its sends are diverted."""
    client = await pair.client(flavour)
    with pair.primary.outage("quota", entity=ORDERS, direction="send"):
        await client.sender(ORDERS).send(message("diverted"))
        await open_receiver(client)
        assert client.state(ORDERS) is State.FAILED_OVER
    await until_healthy(client, ORDERS)
    assert pair.in_backlog() == [(ORDERS, "diverted")]


async def test_entity_that_cannot_be_received_from_is_sent_to(pair: Pair, flavour: Flavour) -> None:
    """Receivers are the primary's, and say nothing about sends; they go on when the trouble is over."""
    client = await pair.client(flavour)
    receiver = await open_receiver(client)
    with pair.primary.outage("stall", entity=ORDERS, direction="receive"):
        await client.sender(ORDERS).send(message("second"))
        assert await client.call(receiver.receive_messages, 1, 0.3) == []
        assert_nothing_counted(client)
    assert [str(one) for one in await client.call(receiver.receive_messages, 1, 10)] == ["second"]
    assert (pair.at_home(), pair.in_backlog()) == (["first", "second"], [])


async def test_namespaces_that_cannot_be_managed_are_sent_to(pair: Pair, flavour: Flavour) -> None:
    """A client that is paired needs no administration, to send home or to divert."""
    client = await pair.client(flavour)
    for side in (pair.primary, pair.secondary):
        side.faults.add("internal-error", direction="manage")
    await client.sender(ORDERS).send(message("at home"))
    assert_nothing_counted(client)
    with pair.primary.outage("refuse"):
        await client.sender(ORDERS).send(message("diverted"))
    assert pair.at_home() == ["first", "at home"]
    assert pair.in_backlog() == [(ORDERS, "diverted")]


async def test_pairing_with_a_secondary_that_cannot_be_managed_fails(pair: Pair, flavour: Flavour) -> None:
    """The error names the reason; a client that does not create backlog queues needs no administration."""
    await pair.client(flavour)
    with pair.secondary.outage("internal-error", direction="manage"):
        with pytest.raises(SecondaryUnreachable, match="backlog queues are not known"):
            await pair.new_client(flavour).pair()
        trusting = pair.new_client(flavour, create_backlog_queues=False)
        await trusting.pair()
        with pair.primary.outage("refuse"):
            await trusting.sender(ORDERS).send(message("diverted"))
    assert pair.in_backlog() == [(ORDERS, "diverted")]
