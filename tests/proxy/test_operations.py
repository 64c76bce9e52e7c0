"""Faults of operations at a proxy, as the genuine SDK meets them; and the endpoint is whole when they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tests.proxy.conftest import World, encoded, message, until

ERRORS = {
    "throttle": (ServiceBusServerBusyError, r"Error code : 50009."),
    "disable": (MessagingEntityDisabledError, "'orders' is in status SendDisabled"),
    "quota": (ServiceBusQuotaExceededError, "The maximum entity size has been reached"),
    "unauthorized": (ServiceBusAuthorizationError, r"'Send' claim\(s\) are required"),
    "internal-error": (ServiceBusError, "The service was unable to process the request"),
    "time-out": (OperationTimeoutError, "did not complete within the allotted timeout"),
}


@pytest.mark.parametrize("kind", ERRORS)
async def test_send_is_refused_and_nothing_is_stored(world: World, kind: str) -> None:
    """The link is detached with the error that the broker would answer with."""
    sender = await world.sender()
    world.faults.add(kind, entity="Orders", direction="send")
    error, text = ERRORS[kind]
    with pytest.raises(error, match=text):
        await sender.send_messages(message("refused"), timeout=5)
    assert world.waiting() == 0
    if kind != "quota":
        with pytest.raises(error, match=text):
            await world.sender()
    assert await world.sender("other")
    assert await world.receiver()
    world.faults.clear()
    await sender.send_messages(message("again"), timeout=5)
    await world.check_whole()


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "quota"])
async def test_receiver_is_refused_and_loses_nothing(world: World, kind: str) -> None:
    """New links and open ones; the message stays where it is."""
    sender, receiver = await world.sender(), await world.receiver()
    world.faults.add(kind, entity="orders", direction="receive")
    await sender.send_messages(message("kept"), timeout=5)
    with pytest.raises(ServiceBusError):
        await receiver.receive_messages(max_wait_time=2)
    with pytest.raises(ServiceBusError):
        await world.receiver()
    assert world.waiting() == 1
    world.faults.clear()
    await world.check_whole()
    assert world.waiting() == 0


async def test_request_is_refused(world: World) -> None:
    """A peek is a receive, a schedule a send."""
    sender, receiver = await world.sender(), await world.receiver()
    world.faults.add("throttle", direction="receive", count=1)
    with pytest.raises(ServiceBusError):
        await receiver.peek_messages(timeout=5)
    world.faults.clear()
    assert await (await world.receiver()).peek_messages(timeout=5) == []
    await sender.send_messages(message("one"), timeout=5)
    await world.check_whole()
