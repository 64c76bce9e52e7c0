"""The differences from the plain SDK on docs/differences.md that no other test shows: both clients do the same call."""

from __future__ import annotations

import asyncio
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusServerBusyError

from tests.client.plain import Caller, Who
from tests.client.world import Stage, until
from tests.scripted import Delay, Reject
from tests.sdk.flavours import Flavour

QUEUE = "orders"
WHO: tuple[Who, ...] = ("plain", "paired")


@pytest.fixture(params=WHO)
def who(request: pytest.FixtureRequest) -> Who:
    return "plain" if request.param == "plain" else "paired"


async def done(caller: Caller, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a new sender; the plain client is closed afterwards, the paired one by the stage."""
    try:
        return await caller.call(getattr(caller.client.get_queue_sender(QUEUE), method), *args, **kwargs)
    finally:
        if caller.who == "plain":
            await caller.close()


async def test_generator_without_messages_sends_nothing(stage: Stage, flavour: Flavour, who: Who) -> None:
    """The plain SDK sends a batch with nothing in it, as an empty list does not."""
    await done(Caller(stage, who, flavour), "send_messages", (ServiceBusMessage("x") for _ in range(0)))
    assert [received.payload for received in stage.primary.received] == ([b""] if who == "plain" else [])


async def test_message_beyond_the_limit_of_the_link_is_not_transmitted(
    stage: Stage, flavour: Flavour, who: Who
) -> None:
    """The plain SDK transmits it, and raises what the service says; the class is the same."""
    size = stage.primary.max_message_size + 2048
    with pytest.raises(MessageSizeExceededError, match="larger than" if who == "plain" else f"takes {size - 2048}"):
        await done(Caller(stage, who, flavour), "send_messages", ServiceBusMessage(bytes(size)))


async def test_unknown_keyword_of_a_call_is_refused(stage: Stage, flavour: Flavour, who: Who) -> None:
    """The plain SDK warns and sends: a time-out that is misspelt would be lost."""
    sending = done(Caller(stage, who, flavour), "send_messages", ServiceBusMessage("x"), time_out=5)
    if who == "plain":
        with pytest.warns(UserWarning, match="time_out"):
            await sending
    else:
        with warnings.catch_warnings(), pytest.raises(TypeError, match="time_out"):
            await sending
    assert len(stage.primary.received) == (1 if who == "plain" else 0)


async def test_message_that_is_scheduled_is_not_changed(stage: Stage, flavour: Flavour, who: Who) -> None:
    """The plain SDK writes the time into the caller's message."""
    message, due = ServiceBusMessage("x"), datetime.now(UTC) + timedelta(hours=1)
    await done(Caller(stage, who, flavour), "schedule_messages", message, due)
    assert (message.scheduled_enqueue_time_utc is None) is (who == "paired")


async def test_binary_property_of_a_message_is_not_changed(stage: Stage, flavour: Flavour, who: Who) -> None:
    """The plain SDK turns it into text in the caller's dictionary; both send text."""
    properties: dict[str | bytes, Any] = {"p": b"v"}
    await done(Caller(stage, who, flavour), "send_messages", ServiceBusMessage("x", application_properties=properties))
    assert properties == {"p": "v" if who == "plain" else b"v"}


async def test_throttled_send_without_ten_seconds_left_raises_at_once(stage: Stage, flavour: Flavour, who: Who) -> None:
    """With more, the paired client waits the ten seconds that the service asks for; the plain one has its retries."""
    stage.primary.on("transfer", Reject("com.microsoft:server-busy", "Slow down."), path=QUEUE)
    with pytest.raises(ServiceBusServerBusyError, match="Slow down"):
        await done(Caller(stage, who, flavour), "send_messages", ServiceBusMessage("x"), timeout=8)


async def test_batch_can_be_made_while_the_primary_is_away(stage: Stage, flavour: Flavour) -> None:
    """The plain SDK raises: it asks the link for its limit. The limit of the Standard tier is taken here."""
    caller = Caller(stage, "paired", flavour)
    sender = caller.client.get_queue_sender(QUEUE)
    if flavour == "aio":
        await caller.client.pair()
        caller.client.force_failover(QUEUE)
    else:
        await caller.call(caller.client.force_failover, QUEUE)
    batch = await caller.call(sender.create_message_batch)
    assert batch.max_size_in_bytes == 262_144


async def test_two_sends_of_one_sender_are_under_way_at_once(stage: Stage, flavour: Flavour) -> None:
    """The plain SDK has one at a time for each sender."""
    stage.primary.on("transfer", Delay(1.5), path=QUEUE, times=2)
    caller = Caller(stage, "paired", flavour)
    sender = caller.client.get_queue_sender(QUEUE)
    sends = [asyncio.create_task(caller.call(sender.send_messages, ServiceBusMessage("x"))) for _ in range(2)]
    await until(lambda: len(stage.primary.received) == 2, "both were transmitted")
    assert not any(received.stored for received in stage.primary.received)
    await asyncio.gather(*sends)
