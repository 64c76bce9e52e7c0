"""Errors that are no outage: throttling, wrong keys, connections closed while idle, and sends that are wrong in
themselves.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk_errors
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import EntityStatus

from pairbus.pairing.failover import State
from tests.client.world import Client, Stage, World, message, until
from tests.limits import slowness
from tests.scripted import Close, Detach, Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
BUSY = "com.microsoft:server-busy"


def assert_nothing_happened(client: Client, path: str) -> None:
    """Check that nothing was suspected: with a failover interval of 0 a suspicion would be a failover."""
    assert [str(event) for event in client.events[1:]] == [], "no event after the pairing"
    assert client.state(path) is State.HEALTHY


# ── throttling ──


async def test_throttling_that_lasts_is_waited_for_step_by_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service asks for patience, and a whole outage's worth of it must not divert anything.

    A step lasts ten seconds (`tests/pairing/test_sending.py`), and one here.
    """
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 1.0)
    clients = [stage.client("sync"), stage.client("aio")]
    senders = [client.sender(f"orders-{client.flavour}") for client in clients]
    rule = stage.primary.on("transfer", Reject(BUSY))
    sends = [asyncio.create_task(sender.send(message(), within_s=60)) for sender in senders]
    paths = [f"orders-{client.flavour}" for client in clients]
    await until(lambda: all(len(stage.primary.received_by(path)) >= 3 for path in paths), "three refusals of each")
    stage.primary.remove(rule)
    for client, took_s in zip(clients, await asyncio.gather(*sends), strict=True):
        path = f"orders-{client.flavour}"
        *refused, stored = [each.stored for each in stage.primary.received_by(path)]
        assert stored and not any(refused)
        assert took_s >= len(refused) >= 3, "a second for each refusal"
        assert_nothing_happened(client, path)
    assert stage.secondary.received == []


@pytest.mark.parametrize("step", ["transfer", "attach", "token"])
async def test_a_throttled_send_is_repeated_after_the_wait(
    stage: Stage, flavour: Flavour, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the service says it: to the message, to the link, or to the token."""
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.3)
    client = stage.client(flavour)
    rule = stage.primary.on(step, Reject(BUSY, status=503), path="orders", times=2)
    await client.sender("orders").send(message("at last"))
    assert rule.hits == 2
    assert len(stage.primary.stored("orders")) == 1
    assert_nothing_happened(client, "orders")


ENDED = [(step, kind) for step in ("token", "attach", "transfer") for kind in (Detach, Close)] + [("open", Close)]


@pytest.mark.parametrize(("step", "ends"), ENDED, ids=[f"{step} {kind.__name__}" for step, kind in ENDED])
async def test_throttling_that_ends_the_link_or_the_connection_is_throttling(
    stage: Stage, flavour: Flavour, step: Any, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the SDK that is a lost connection, and its words are lost with it; with no patience left it is the error."""
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.3)
    client = stage.client(flavour, attempt_timeout=1)
    path = None if step == "open" else "orders"
    rule = stage.primary.on(step, ends(BUSY), path=path, times=2)
    sender = client.sender("orders")
    await sender.send(message("at last"))
    assert rule.hits == 2
    for _ in range(2):  # first on a link that has worked, then on one that the peer has ended
        stage.primary.on(step, ends(BUSY), path=path, times=1)
        if step != "transfer":
            stage.primary.close_connections()
        monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 10.0)
        assert BUSY in str(await sender.error(message(), timeout=9))
        await sender.send(message())
    assert len(stage.primary.stored("orders")) == 3
    assert stage.secondary.received == []
    assert_nothing_happened(client, "orders")


@pytest.mark.parametrize(("step", "ends"), ENDED, ids=[f"{step} {kind.__name__}" for step, kind in ENDED])
async def test_denied_right_that_ends_the_link_is_no_outage(
    stage: Stage, flavour: Flavour, step: Any, ends: Any
) -> None:
    client = stage.client(flavour, attempt_timeout=1)
    rule = stage.primary.on(step, ends("amqp:unauthorized-access"), path=None if step == "open" else "orders")
    sender = client.sender("orders")
    began = time.monotonic()
    assert "amqp:unauthorized-access" in str(await sender.error(message()))
    assert time.monotonic() - began < 1.0 + slowness()
    assert rule.hits == 1, "it is not repeated"
    assert_nothing_happened(client, "orders")
    stage.primary.heal()
    await sender.send(message())
    assert stage.secondary.received == []


async def test_a_refused_negotiation_is_no_outage(stage: Stage, flavour: Flavour) -> None:
    """Refused for who the client is; the SDK says "Handler failed", as it does for a dead connection."""
    client = stage.client(flavour)
    stage.primary.on("sasl", Reject(), times=1)
    sender = client.sender("orders")
    assert "SASL" in str(await sender.error(message()))
    await sender.send(message())
    assert stage.secondary.received == []
    assert_nothing_happened(client, "orders")


async def test_a_throttled_send_without_ten_seconds_left_gets_the_error_at_once(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour)
    sender = client.sender("orders")
    stage.primary.on("transfer", Reject(BUSY), times=1)
    began = time.monotonic()
    assert type(await sender.error(message(), timeout=9.9)) is sdk_errors.ServiceBusServerBusyError
    assert time.monotonic() - began < 8.0, "a throttled send waits for ten seconds"
    await sender.send(message())
    assert_nothing_happened(client, "orders")


# ── connections that the service closed ──


@pytest.mark.parametrize("what", ["links", "links for tokens", "connections", "reset"])
async def test_connection_closed_while_idle_is_opened_again(stage: Stage, flavour: Flavour, what: str) -> None:
    """The service closes idle connections after ten minutes, every night: the next send finds a dead connection,
    and must not divert.
    """
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message("first"))
    for number in range(3):
        if what == "links":
            assert stage.primary.close_idle_links() == 1
        elif what == "links for tokens":
            assert stage.primary.close_idle_links("$cbs") or number, (
                "links for tokens are opened again when a token is due"
            )
        elif what == "connections":
            stage.primary.close_connections()
        else:
            stage.primary.reset()
        await sender.send(message("next"))
        await sender.send(message("and the one after it"), timeout=1.2 * slowness())
    assert len(stage.primary.stored("orders")) == 7
    assert_nothing_happened(client, "orders")


@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_a_broken_connection_is_no_outage(world: World, flavour: Flavour, how: str) -> None:
    """The same on a real broker, seen from the network."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    for _ in range(3):
        await sender.send(message())
        getattr(nemesis, how)()
    await sender.send(message())
    assert world.count(queue) == 4
    assert_nothing_happened(client, queue)


# ── the send itself is wrong ──


async def plain_error(connection_string: str, path: str, what: Any) -> BaseException:
    """Return the error that the plain SDK raises for the same send."""
    async with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
        sender = client.get_queue_sender(path)
        try:
            await sender.send_messages(what, timeout=8)
        except Exception as error:
            return error
        finally:
            await sender.close()
    raise AssertionError("the plain SDK sent it")


WRONG: list[tuple[str, Any]] = [
    ("wrong key", sdk_errors.ServiceBusAuthenticationError),
    ("not found", sdk_errors.ServiceBusAuthenticationError),
    ("disabled", sdk_errors.MessagingEntityDisabledError),
    ("too large", sdk_errors.MessageSizeExceededError),
    ("invalid", sdk_errors.ServiceBusError),
]


@pytest.mark.parametrize(("wrong", "kind"), WRONG, ids=[name for name, _ in WRONG])
async def test_a_wrong_send_gets_the_sdks_own_error_at_once(
    world: World, flavour: Flavour, wrong: str, kind: type[Exception]
) -> None:
    """In a backlog queue such a message would be parked for ever, and nobody told."""
    queue = world.namespaces.make_queue()
    primary = world.connection_string("primary")
    what = message()
    if wrong == "wrong key":
        primary = world.namespaces.process("primary").connection_string("primary", key="d3Jvbmc=")
    elif wrong == "not found":
        queue = "there-is-none"
    elif wrong == "disabled":
        admin = world.namespaces.admin("primary")
        properties = admin.get_queue(queue)
        properties.status = EntityStatus.DISABLED
        admin.update_queue(properties)
    elif wrong == "too large":
        what = ServiceBusMessage(bytes(1100 * 1024))
    else:
        what = message(application_properties={"x": object()})
    client = world.new_client(flavour, primary=primary)
    await client.pair()
    sender = client.sender(queue)
    began = time.monotonic()
    error = await sender.error(what)
    assert time.monotonic() - began < 2.0 * slowness()
    theirs = await plain_error(primary, queue, what)
    assert type(error) is type(theirs) is kind, f"ours {error!r}, the SDK's {theirs!r}"
    assert_nothing_happened(client, queue)


CONDITIONS = [
    ("attach", "amqp:unauthorized-access", sdk_errors.ServiceBusAuthorizationError),
    ("transfer", "amqp:unauthorized-access", sdk_errors.ServiceBusAuthorizationError),
    ("transfer", "com.microsoft:entity-disabled", sdk_errors.MessagingEntityDisabledError),
    ("transfer", "com.microsoft:argument-error", sdk_errors.ServiceBusError),
    ("transfer", "amqp:not-found", sdk_errors.MessagingEntityNotFoundError),
]


@pytest.mark.parametrize(("step", "condition", "kind"), CONDITIONS, ids=[f"{a} {b}" for a, b, _ in CONDITIONS])
async def test_a_refusal_that_would_be_the_same_elsewhere_reaches_the_caller(
    stage: Stage, flavour: Flavour, step: Any, condition: str, kind: type[Exception]
) -> None:
    client = stage.client(flavour)
    rule = stage.primary.on(step, Reject(condition), path="orders")
    sender = client.sender("orders")
    began = time.monotonic()
    assert type(await sender.error(message())) is kind
    assert time.monotonic() - began < 2.0 * slowness()
    assert rule.hits == 1, "it is not repeated"
    assert_nothing_happened(client, "orders")
    stage.primary.heal()
    await sender.send(message())
    assert stage.secondary.received == []


async def test_what_ended_an_idle_link_for_requests_does_not_hide_an_outage(stage: Stage, flavour: Flavour) -> None:
    """Sends go on without it. When the primary is lost afterwards, that is not what the service said then."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message())
    await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))
    assert stage.primary.close_idle_links("orders/$management", "amqp:unauthorized-access")
    await sender.send(message())
    stage.primary.on("transfer", Close("amqp:internal-error"))
    await sender.send(message())
    assert len(stage.in_backlog()) == 1


async def test_cancelling_a_message_that_is_gone_is_no_outage(world: World, flavour: Flavour) -> None:
    """A scheduled message may just have come due: the error is the SDK's, and says nothing about the primary."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    [number] = await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))
    await sender.cancel([number])
    with pytest.raises(sdk_errors.MessageNotFoundError):
        await sender.cancel([number])
    await sender.send(message())
    assert world.count(queue) == 1
    assert_nothing_happened(client, queue)


async def test_short_time_outs_say_nothing_about_either_namespace(world: World, flavour: Flavour) -> None:
    """An answer may take longer than that over a distance: the caller gets the error, and nobody else notices."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    nemeses[0].stall_transfers(queue)
    for _ in range(4):
        assert isinstance(await sender.error(message(), timeout=0.2), sdk_errors.OperationTimeoutError)
    assert_nothing_happened(client, queue)
    client.client.force_failover(queue)
    nemeses[1].stall()
    for _ in range(4):
        await sender.error(message(), timeout=0.2)
    assert "backlog=2/2" in repr(client.client)
