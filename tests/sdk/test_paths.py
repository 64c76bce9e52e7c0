"""Names of queues: slashes, length, case; and the ping message, which is accepted and never seen."""

from __future__ import annotations

import datetime
import uuid

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.conftest import MakeQueue
from tests.sdk.flavours import Sdk, assert_empty, number, receive, receive_one, text, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
DEAD = ServiceBusSubQueue.DEAD_LETTER
SECOND = datetime.timedelta(seconds=1)


def _unique(pattern: str) -> str:
    return pattern.format(uuid.uuid4().hex[:10])


async def _use_every_link(sdk: Sdk, path: str) -> None:
    """Send, receive, manage and dead-letter: each addresses the queue in a way of its own."""
    sender, receiver = await sdk.pair(path)
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    [peeked] = await receiver.peek_messages(1, timeout=10)
    message = await receive_one(receiver)
    assert number(peeked) == number(message)
    await receiver.dead_letter_message(message, reason="r")
    dead = await sdk.receiver(path, sub_queue=DEAD)
    [peeked] = await dead.peek_messages(1, timeout=10)
    letter = await receive_one(dead)
    assert number(peeked) == number(letter) == number(message)
    await dead.complete_message(letter)


@pytest.mark.parametrize("pattern", ["contoso-{}/x-servicebus-transfer/0", "a.b-c_d/{}/E", "{}"])
async def test_a_path_may_have_slashes_dots_dashes_and_underscores(
    sdk: Sdk, make_queue: MakeQueue, admin: ServiceBusAdministrationClient, pattern: str
) -> None:
    """Backlog queues are named like the first one; every address and URL must cope."""
    path = make_queue(_unique(pattern))
    assert admin.get_queue(path).name == path
    await _use_every_link(sdk, path)


async def test_a_path_may_have_260_characters(
    sdk: Sdk, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    """The longest legal one, also with the suffixes of the dead-letter queue and of management."""
    path = make_queue(_unique("{}/").ljust(260, "x"))
    assert len(path) == 260
    assert admin.get_queue(path).name == path
    await _use_every_link(sdk, path)


async def test_paths_compare_without_case(
    sdk: Sdk, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    """All spellings mean one queue; the creator's spelling is kept."""
    path = make_queue(_unique("Orders/{}/New"))
    sender, receiver = await sdk.sender(path.upper()), await sdk.receiver(path.lower())
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    assert text(await receive_one(receiver)) == "hello"
    assert path in [queue.name for queue in admin.list_queues()]


def _ping() -> ServiceBusMessage:
    return ServiceBusMessage(
        None,
        content_type="application/vnd.ms-servicebus-ping",
        time_to_live=SECOND,
        session_id=uuid.uuid4().hex,
    )


async def test_a_ping_is_accepted_and_never_seen(
    sdk: Sdk, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    """An accepted ping says that the queue takes sends; no receiver, peek, count or dead letter ever shows it."""
    queue = make_queue(dead_lettering_on_message_expiration=True)
    sender, receiver = await sdk.pair(queue)
    dead = await sdk.receiver(queue, sub_queue=DEAD)
    await sender.send_messages(_ping(), timeout=10)
    assert await receiver.peek_messages(10, timeout=10) == []
    assert admin.get_queue_runtime_properties(queue).total_message_count == 0

    # The ping has expired by now: an ordinary message, sent later with the same time to live, is dead-lettered.
    await sender.send_messages(ServiceBusMessage("ordinary", time_to_live=SECOND), timeout=10)
    assert text(await receive_one(dead)) == "ordinary"
    await assert_empty(dead)
    await assert_empty(receiver)


async def test_a_ping_among_messages_disappears_and_the_messages_stay(sdk: Sdk, queue_name: str) -> None:
    """The ping is in a list, and a receiver waits."""
    sender, receiver = await sdk.pair(queue_name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    await sender.send_messages([ServiceBusMessage("a"), _ping(), ServiceBusMessage("b")], timeout=10)
    assert [text(message) for message in await receive(receiver, 2)] == ["a", "b"]
    await assert_empty(receiver)


async def test_a_queue_that_is_deleted_takes_its_messages_along(
    sdk: Sdk, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    """A queue made again under the same name is a new one: empty."""
    queue = make_queue()
    sender = await sdk.sender(queue)
    await sender.send_messages([ServiceBusMessage(f"{i}") for i in range(3)], timeout=10)
    admin.delete_queue(queue)
    make_queue(queue)
    receiver = await sdk.receiver(queue)

    async def empty() -> bool:
        return not await receiver.peek_messages(10, sequence_number=1, timeout=10)

    await until(empty, "the new queue is empty")
    await assert_empty(receiver)
