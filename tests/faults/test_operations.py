"""Faults of operations, as the genuine SDK meets them; and the namespace is whole when they end."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
)

from pairbus.auth.sas import sign
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY
from pairbus.broker.wire.server import Port
from tests.faults.conftest import OPTIONS, World, running, until

ERRORS = {
    "throttle": (ServiceBusServerBusyError, r"namespace contoso is being throttled. Error code : 50009."),
    "disable": (MessagingEntityDisabledError, "'orders' is in status SendDisabled"),
    "quota": (ServiceBusQuotaExceededError, "The maximum entity size has been reached"),
    "unauthorized": (ServiceBusAuthorizationError, r"'Send' claim\(s\) are required"),
    "internal-error": (ServiceBusError, "The service was unable to process the request"),
    "time-out": (OperationTimeoutError, "did not complete within the allotted timeout"),
}


@pytest.mark.parametrize("kind", ERRORS)
async def test_send_is_refused_and_nothing_is_stored(world: World, kind: str) -> None:
    """On an open link; after the fault the same link sends again."""
    sender = await world.sender()
    world.faults.add(kind, entity="Orders", direction="send")
    error, text = ERRORS[kind]
    with pytest.raises(error, match=text):
        await sender.send_messages(ServiceBusMessage("refused"), timeout=5)
    assert world.waiting() == 0
    world.faults.clear()
    await world.check_whole()


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "quota"])
async def test_sender_cannot_be_opened(world: World, kind: str) -> None:
    """The link itself is refused; other entities and directions are not met."""
    world.faults.add(kind, entity="orders", direction="send")
    error, text = ERRORS[kind]
    with pytest.raises(error, match=text):
        await world.sender()
    assert await world.sender("other")
    assert await world.receiver()
    world.faults.clear()
    await world.check_whole()


RECEIVE_ERRORS = {
    "throttle": ServiceBusServerBusyError,
    "disable": MessagingEntityDisabledError,
    "unauthorized": ServiceBusAuthorizationError,
    "internal-error": ServiceBusError,
    "time-out": OperationTimeoutError,
}


@pytest.mark.parametrize("kind", RECEIVE_ERRORS)
async def test_receiver_meets_the_error(world: World, kind: str) -> None:
    """A new link is refused with it; an open one is detached before it gets a message."""
    receiver = await world.receiver()
    sender = await world.sender()
    world.faults.add(kind, entity="orders", direction="receive")
    await sender.send_messages(ServiceBusMessage("kept"), timeout=5)
    with pytest.raises(RECEIVE_ERRORS[kind]):
        await world.receiver()
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=2)
    assert world.waiting() == 1
    world.faults.clear()
    await world.check_whole()
    assert world.waiting() == 0


@pytest.mark.parametrize("kind", ["throttle", "internal-error", "unauthorized"])
async def test_settlement_is_refused_and_the_lock_stays(world: World, kind: str) -> None:
    """A client whose link survives its own reaction can settle again with the same lock."""
    sender, receiver = await world.sender(), await world.receiver()
    await sender.send_messages(ServiceBusMessage("one"), timeout=5)
    [message] = await receiver.receive_messages(max_wait_time=5)
    world.faults.add(kind, direction="receive", count=1)
    with pytest.raises(RECEIVE_ERRORS[kind]):
        await receiver.complete_message(message)
    assert world.waiting() == 1
    if kind == "throttle":  # after the other faults the SDK closes its receiver
        await receiver.complete_message(message)
        assert world.waiting() == 0
    await world.check_whole()


# ── stalls ──


async def test_stalled_send_is_answered_when_the_stall_ends(world: World) -> None:
    """Links open, nothing answers, and a sender that still waits is told then."""
    world.faults.add("stall", entity="orders", direction="send")
    sender = await world.sender()
    sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("late"), timeout=5))
    await until(world.faults.held.owns_any)
    assert (world.waiting(), sending.done()) == (0, False)
    world.faults.clear()
    await sending
    assert world.waiting() == 1
    await world.check_whole()


async def test_stalled_send_of_a_closed_link_is_not_stored(world: World) -> None:
    """The client gave up and closed: nobody waits for an answer, and nothing is kept for it."""
    sender = await world.sender()
    world.faults.add("stall", entity="orders", direction="send")
    with pytest.raises(OperationTimeoutError):
        await sender.send_messages(ServiceBusMessage("gone"), timeout=0.2)
    await sender.close()
    await until(lambda: not world.faults.held.owns_any())
    world.faults.clear()
    assert world.waiting() == 0
    await world.check_whole()


async def test_stall_takes_as_many_as_its_count(world: World) -> None:
    """Messages that it holds are held until it is cleared; those that come later pass."""
    first, second = await world.sender(), await world.sender()
    world.faults.add("stall", direction="send", count=1)
    stalled = asyncio.create_task(first.send_messages(ServiceBusMessage("one"), timeout=5))
    await until(world.faults.held.owns_any)
    await second.send_messages(ServiceBusMessage("two"), timeout=5)
    assert (world.waiting(), stalled.done()) == (1, False)
    world.faults.clear()
    await stalled
    assert world.waiting() == 2
    await world.check_whole()


async def test_stalled_receiver_gets_nothing_until_the_end(world: World) -> None:
    """The receiver's link stays open: the queue looks empty."""
    sender, receiver = await world.sender(), await world.receiver()
    world.faults.add("stall", direction="receive")
    await sender.send_messages(ServiceBusMessage("one"), timeout=5)
    assert await receiver.receive_messages(max_wait_time=0.3) == []
    world.faults.clear()
    [message] = await receiver.receive_messages(max_wait_time=5)
    world.faults.add("stall", direction="receive")
    settling = asyncio.create_task(receiver.complete_message(message))
    await until(world.faults.held.owns_any)
    assert not settling.done()
    world.faults.clear()
    await settling
    assert world.waiting() == 0
    await world.check_whole()


async def test_session_receiver_is_stalled_too(world: World) -> None:
    sender = await world.sender("talks")
    await sender.send_messages(ServiceBusMessage("one", session_id="s"), timeout=5)
    world.faults.add("stall", entity="talks", direction="receive")
    receiver = await world.receiver("talks", session_id="s")
    assert await receiver.receive_messages(max_wait_time=0.3) == []
    world.faults.clear()
    [message] = await receiver.receive_messages(max_wait_time=5)
    await receiver.complete_message(message)
    assert world.waiting("talks") == 0


async def test_unanswered_token_request(world: World) -> None:
    """`$cbs` is no entity: it is met when it is named."""
    world.faults.add("stall", direction="manage")
    assert await world.sender()
    world.faults.add("stall", entity="$cbs", for_s=0.4)
    began = time.monotonic()
    assert await world.sender()
    assert time.monotonic() - began > 0.3
    world.faults.clear()
    await world.check_whole()


async def test_refused_token_request(world: World) -> None:
    world.faults.add("unauthorized", entity="$cbs", count=1)
    with pytest.raises(ServiceBusAuthenticationError):
        await world.sender()
    await world.check_whole()


# ── answers that are lost ──


async def test_lost_answer_makes_a_duplicate(world: World) -> None:
    """The message is stored, the client hears a broken connection and sends again."""
    sender = await world.sender()
    world.faults.add("drop-answer", direction="send", count=1)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("twice"), timeout=5)
    assert world.waiting() == 1
    again = await world.sender()
    await again.send_messages(ServiceBusMessage("twice"), timeout=5)
    assert world.waiting() == 2
    await world.check_whole()


async def test_lost_answer_of_a_settlement(world: World) -> None:
    """The message is gone although the client was never told."""
    sender, receiver = await world.sender(), await world.receiver()
    await sender.send_messages(ServiceBusMessage("one"), timeout=5)
    [message] = await receiver.receive_messages(max_wait_time=5)
    world.faults.add("drop-answer", direction="receive", count=1)
    with pytest.raises(ServiceBusError):
        await receiver.complete_message(message)
    assert world.waiting() == 0
    await world.check_whole()


async def test_lost_answer_of_a_schedule_request(world: World) -> None:
    """A schedule is a send, although it is a request."""
    sender = await world.sender()
    world.faults.add("drop-answer", direction="send", count=1)
    later = datetime.now(UTC) + timedelta(hours=1)
    with pytest.raises(ServiceBusError):
        await sender.schedule_messages(ServiceBusMessage("one"), later, timeout=5)
    assert world.namespace.queue_info("orders").scheduled == 1
    await world.check_whole()


# ── requests ──


@pytest.mark.parametrize(
    ("kind", "error"), [("throttle", ServiceBusServerBusyError), ("time-out", OperationTimeoutError)]
)
async def test_request_over_amqp_is_refused(world: World, kind: str, error: type[Exception]) -> None:
    """Peeking needs the right to receive, so it is met by that direction."""
    receiver = await world.receiver()
    world.faults.add(kind, entity="orders", direction="receive", count=1)
    with pytest.raises(error):
        await receiver.peek_messages()
    assert await receiver.peek_messages() == []
    await world.check_whole()


HTTP_ERRORS: dict[str, tuple[Any, int | None]] = {
    "throttle": (HttpResponseError, 503),
    "unauthorized": (ClientAuthenticationError, 401),
    "quota": (HttpResponseError, 403),
    "internal-error": (HttpResponseError, 500),
    "time-out": (HttpResponseError, 408),
    "drop-answer": (ServiceRequestError, None),
}


@pytest.mark.parametrize("kind", HTTP_ERRORS)
async def test_request_over_http_is_refused(world: World, kind: str) -> None:
    """Administration is cannot-manage: sends go on."""
    error, status = HTTP_ERRORS[kind]
    admin = await world.admin()
    world.faults.add(kind, direction="manage")
    with pytest.raises(error) as caught:
        await admin.create_queue("new")
    assert getattr(caught.value, "status_code", None) == status
    assert ("new" in world.namespace.queue_keys()) is (kind == "drop-answer")
    sender = await world.sender()
    await sender.send_messages(ServiceBusMessage("goes on"), timeout=5)
    world.faults.clear()
    assert (await admin.get_queue("orders")).name == "orders"
    await world.check_whole()


async def test_stalled_request_over_http_is_answered_at_the_end(world: World) -> None:
    admin = await world.admin()
    world.faults.add("stall", entity="orders", direction="manage", for_s=0.3)
    began = time.monotonic()
    assert (await admin.get_queue("orders")).name == "orders"
    assert time.monotonic() - began > 0.15
    assert (await admin.get_queue("other")).name == "other"
    await world.check_whole()


@pytest.mark.parametrize("fault", [{"kind": "stall", "direction": "manage"}, {"kind": "black-hole"}])
async def test_held_request_of_a_client_that_left_is_dropped(world: World, fault: dict[str, Any]) -> None:
    """A deletion must not happen minutes after its caller gave up, perhaps to an entity that was made anew."""
    port = int(world.connection_string.split(";")[0].rsplit(":", 1)[1])
    token = sign("sb://127.0.0.1/", ROOT_KEY_NAME, WELL_KNOWN_KEY, int(time.time()) + 60)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    listening = world.faults.connections.port
    assert isinstance(listening, Port) and listening._runner is not None and listening._runner.server is not None
    server = listening._runner.server
    await until(lambda: len(server.connections) == 1)
    [connection] = server.connections
    world.faults.add(**fault)
    writer.write(f"DELETE /orders HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n\r\n".encode())
    await until(lambda: any(isinstance(owner, asyncio.Future) for owner in held_by(world)))
    writer.close()
    await until(lambda: connection.transport is None)
    world.faults.clear()
    await asyncio.sleep(0.05)
    assert "orders" in world.namespace.queue_keys()
    await world.check_whole()


def held_by(world: World) -> list[object]:
    """Owners of the steps that faults hold back."""
    return [owner for owners in world.faults.held._steps.values() for owner in owners]


# ── restart and disable ──


async def test_restart_detaches_links_and_refuses_them(world: World) -> None:
    """Only those of its entity, and only for its time."""
    sender, other = await world.sender(), await world.sender("other")
    receiver = await world.receiver()
    world.faults.add("restart", entity="orders", for_s=60)
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("lost"), timeout=5)
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=1)
    with pytest.raises(ServiceBusError, match="unable to process the request"):
        await world.sender()
    await other.send_messages(ServiceBusMessage("goes on"), timeout=5)
    assert world.waiting() == 0
    world.faults.clear()
    await world.check_whole()


async def test_restart_refuses_a_receiver_that_waits_for_a_session(world: World) -> None:
    opening = asyncio.create_task(world.receiver("talks", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30))
    await until(lambda: bool(world.namespace.links))
    world.faults.add("restart", entity="talks")
    with pytest.raises(ServiceBusError):
        await opening
    world.faults.clear()
    sender = await world.sender("talks")
    await sender.send_messages(ServiceBusMessage("one", session_id="s"), timeout=5)
    receiver = await world.receiver("talks", session_id=NEXT_AVAILABLE_SESSION)
    assert len(await receiver.receive_messages(max_wait_time=5)) == 1


@pytest.mark.parametrize("kind", ["restart", "disable"])
async def test_refused_session_receiver_leaves_no_link(world: World, kind: str) -> None:
    """A receiver that asks for a session of another is refused at once; a fault that ends links must not meet it."""
    holder = await world.receiver("talks", session_id="s")
    links = set(world.namespace.links)
    with pytest.raises(SessionCannotBeLockedError):
        await world.receiver("talks", session_id="s")
    assert set(world.namespace.links) == links
    world.faults.add(kind, entity="talks", direction="receive")
    with pytest.raises(ServiceBusError):
        await holder.receive_messages(max_wait_time=2)
    assert not world.namespace.links


async def test_disabled_entity_detaches_its_receivers(world: World) -> None:
    receiver = await world.receiver()
    world.faults.add("disable", entity="orders", direction="receive")
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=2)
    assert not [link for link in world.namespace.links if link.is_open]
    world.faults.clear()
    await world.check_whole()


# ── delay ──


async def test_delayed_message_becomes_receivable_later(world: World) -> None:
    """The send succeeds; the end of the fault does not make the message come earlier."""
    sender, receiver = await world.sender(), await world.receiver()
    world.faults.add("delay", entity="orders", delay_s=3)
    await sender.send_messages(ServiceBusMessage("late"), timeout=5)
    world.faults.clear()
    assert await receiver.receive_messages(max_wait_time=0.2) == []
    [message] = await receiver.receive_messages(max_wait_time=15)
    assert str(message) == "late"
    await receiver.complete_message(message)
    await world.check_whole()


async def test_delay_of_a_topic_reaches_its_subscriptions(world: World) -> None:
    sender, receiver = await world.sender("events"), await world.receiver("events")
    world.faults.add("delay", entity="events", delay_s="3000ms", count=1)
    await sender.send_messages(ServiceBusMessage("late"), timeout=5)
    await sender.send_messages(ServiceBusMessage("at once"), timeout=5)
    [first] = await receiver.receive_messages(max_wait_time=15)
    [second] = await receiver.receive_messages(max_wait_time=15)
    assert (str(first), str(second)) == ("at once", "late")


# ── chance, patterns, load ──


async def test_count_and_probability_are_drawn_for_each_message(world: World) -> None:
    sender = await world.sender()
    world.faults.faults.dice = iter([0.9, 0.1, 0.9]).__next__
    world.faults.add("throttle", direction="send", probability=0.5)
    outcomes = []
    for _ in range(3):
        try:
            await sender.send_messages(ServiceBusMessage("one"), timeout=5)
            outcomes.append("sent")
        except ServiceBusServerBusyError:
            outcomes.append("busy")
    assert outcomes == ["sent", "busy", "sent"]
    world.faults.clear()
    await world.check_whole()


async def test_subscription_is_met_by_its_own_path(world: World) -> None:
    world.faults.add("unauthorized", entity="events/Subscriptions/audit")
    assert await world.sender("events")
    with pytest.raises(ServiceBusAuthorizationError):
        await world.receiver("events")
    world.faults.clear()
    assert await world.receiver("events")


async def test_load_beyond_the_rate_is_throttled() -> None:
    """Partitioned entities have more budgets, so that the same load passes there."""
    async with running(replace(OPTIONS, operations_per_s=3)) as world:
        assert world.faults.load is not None
        # One budget after the other: at random, four sends may meet the same one.
        world.faults.load._dice = itertools.cycle(number / 16 for number in range(16)).__next__
        plain, spread = await world.sender(), await world.sender("spread")
        for _ in range(3):
            await plain.send_messages(ServiceBusMessage("one"), timeout=5)
        with pytest.raises(ServiceBusServerBusyError, match="Error code : 50009"):
            for _ in range(30):  # on a busy machine the budget grows by some sends meanwhile
                await plain.send_messages(ServiceBusMessage("one"), timeout=5)
        for _ in range(6):
            await spread.send_messages(ServiceBusMessage("one"), timeout=5)
        assert world.waiting("spread") == 6
        assert 3 <= world.waiting() < 33
