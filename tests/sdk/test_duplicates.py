"""Duplicate detection: a repeated message id within the window is accepted and dropped."""

from __future__ import annotations

import asyncio
import datetime

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, receive, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


async def test_a_repeated_id_is_accepted_and_dropped(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A sender may safely repeat a send whose answer it lost, also after the first message was consumed."""
    sender, receiver = await sdk.pair(make_queue(requires_duplicate_detection=True), receive_mode=DELETE)
    for body in ("first", "second"):
        await sender.send_messages(ServiceBusMessage(body, message_id="same"), timeout=10)
    assert text(await receive_one(receiver)) == "first"
    await assert_empty(receiver)
    await sender.send_messages(ServiceBusMessage("third", message_id="same"), timeout=10)
    await assert_empty(receiver)


async def test_duplicates_inside_one_list_are_dropped(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The ids of the members count, not the id of the envelope."""
    sender, receiver = await sdk.pair(make_queue(requires_duplicate_detection=True), receive_mode=DELETE)
    messages = [ServiceBusMessage(f"{i}", message_id=id) for i, id in enumerate(["a", "b", "a", "c", "b"])]
    await sender.send_messages(messages, timeout=10)
    assert [text(message) for message in await receive(receiver, 3)] == ["0", "1", "3"]
    await assert_empty(receiver)


async def test_scheduled_messages_count_as_sent(sdk: Sdk, make_queue: MakeQueue) -> None:
    """A message that waits for its time is there already."""
    sender, receiver = await sdk.pair(make_queue(requires_duplicate_detection=True), receive_mode=DELETE)
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    await sender.schedule_messages(ServiceBusMessage("scheduled", message_id="same"), due, timeout=10)
    await sender.send_messages(ServiceBusMessage("sent", message_id="same"), timeout=10)
    assert text(await receive_one(receiver)) == "scheduled"
    await assert_empty(receiver)


async def test_after_the_window_an_id_is_new_again(sdk: Sdk, make_queue: MakeQueue) -> None:
    """The memory of ids is bounded by time."""
    queue = make_queue(
        requires_duplicate_detection=True, duplicate_detection_history_time_window=datetime.timedelta(seconds=1)
    )
    sender, receiver = await sdk.pair(queue, receive_mode=DELETE)
    await sender.send_messages(ServiceBusMessage("first", message_id="same"), timeout=10)
    await asyncio.sleep(1.3)
    await sender.send_messages(ServiceBusMessage("second", message_id="same"), timeout=10)
    assert [text(message) for message in await receive(receiver, 2)] == ["first", "second"]


async def test_without_duplicate_detection_an_id_may_repeat(sdk: Sdk, queue_name: str) -> None:
    """The default."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=DELETE)
    await sender.send_messages([ServiceBusMessage(f"{i}", message_id="same") for i in range(2)], timeout=10)
    assert len(await receive(receiver, 2)) == 2
