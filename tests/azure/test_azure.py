"""The ordinary calls of an application with a paired client, on two real namespaces.

Nothing here needs a fault that only a broker of ours can be told: an entity is failed over by hand, or is disabled by
its administrator while the failure policy counts that as an outage.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pairbus.pairing.events import Diverted, FailedOver, PingSent, Recovered
from pairbus.pairing.failover import State
from pairbus.pairing.policy import REACTIONS, FailurePolicy, Kind, Reaction
from tests.azure.conftest import Pair
from tests.client.world import Client, message
from tests.sdk.flavours import Flavour

HOME_S = 60.0
COUNTS_DISABLED = FailurePolicy(REACTIONS | {Kind.DISABLED: Reaction.COUNT})


async def test_a_healthy_primary_takes_messages_unchanged(pair: Pair, client: Client) -> None:
    """Body, ids and properties are the application's; nothing goes to the secondary."""
    queue = pair.make_queue()
    await client.sender(queue).send(message("hello", application_properties={"n": 7}, subject="greeting"))
    [found] = await pair.take(1, queue_name=queue)
    assert (str(found), found.application_properties, found.subject) == ("hello", {b"n": 7}, "greeting")
    assert client.told(Diverted) == []


async def test_lists_and_batches_arrive_whole(pair: Pair, client: Client) -> None:
    queue = pair.make_queue()
    sender = client.sender(queue)
    await sender.send([message(f"list {number}") for number in range(3)])
    batch = await sender.batch()
    for number in range(3):
        batch.add_message(message(f"batch {number}"))
    await sender.send(batch)
    bodies = sorted(str(found) for found in await pair.take(6, queue_name=queue))
    assert bodies == sorted(f"{kind} {number}" for kind in ("list", "batch") for number in range(3))


async def test_a_scheduled_message_can_be_cancelled(pair: Pair, client: Client) -> None:
    queue = pair.make_queue()
    sender, due = client.sender(queue), datetime.now(UTC) + timedelta(hours=1)
    numbers = await sender.schedule([message("goes"), message("stays")], due)
    await sender.cancel(numbers[:1])
    async with pair.plain() as plain, plain.get_queue_receiver(queue) as receiver:
        [left] = await receiver.peek_messages(10)
    assert (left.sequence_number, str(left)) == (numbers[1], "stays")


async def test_a_failover_by_hand_diverts_and_the_syphon_brings_home(pair: Pair, client: Client) -> None:
    """The messages wait in the secondary, and arrive in the primary as they were."""
    queue = pair.make_queue()
    sender = client.sender(queue)
    await sender.send(message("before"))
    client.client.force_failover(queue)
    await sender.send([message("one", message_id="1"), message("two", message_id="2")])
    await sender.send(message("three", message_id="3"))
    assert sorted(client.diverted_ids) == ["1", "2", "3"]
    client.client.force_healthy(queue)
    found = await pair.take(4, queue_name=queue)
    assert sorted(str(one) for one in found) == ["before", "one", "three", "two"]
    assert {one.message_id for one in found} >= {"1", "2", "3"}


async def test_a_topic_gets_direct_and_diverted_messages(pair: Pair, client: Client) -> None:
    topic = pair.make_topic()
    sender = client.topic_sender(topic)
    await sender.send(message("direct"))
    client.client.force_failover(topic)
    await sender.send(message("diverted"))
    found = await pair.take(2, topic_name=topic, subscription_name="all")
    assert sorted(str(one) for one in found) == ["direct", "diverted"]


async def test_a_session_keeps_its_id_on_the_way_home(pair: Pair, client: Client) -> None:
    queue = pair.make_queue(requires_session=True)
    sender = client.sender(queue)
    await sender.send(message("direct", session_id="s"))
    client.client.force_failover(queue)
    await sender.send(message("diverted", session_id="s"))
    found = await pair.take(2, queue_name=queue, session_id="s")
    assert sorted(str(one) for one in found) == ["direct", "diverted"]


async def test_a_ping_finds_that_an_outage_is_over(pair: Pair, flavour: Flavour) -> None:
    """Disabled, the queue fails over; enabled again, a ping is accepted; no receiver of the application sees one.

    Without a syphon: messages for a disabled queue would stay locked for a minute.
    """
    queue = pair.make_queue()
    client = pair.client(flavour, policy=COUNTS_DISABLED)
    try:
        sender = client.sender(queue)
        await sender.send(message("before"))
        pair.set_status(queue, "SendDisabled")
        await sender.send(message("meanwhile"), timeout=60, within_s=90)
        assert client.told(FailedOver) and client.told(Diverted)
        pair.set_status(queue, "Active")
        await client.until_event(Recovered, within_s=HOME_S)
        assert client.told(PingSent) and client.state(queue) is State.HEALTHY
        await sender.send(message("after"))
        receiver = client.client.get_queue_receiver(queue)
        bodies = set[str]()
        while len(bodies) < 2:
            page = await client.call(receiver.receive_messages, 2 - len(bodies), max_wait_time=20)
            assert page, bodies
            for one in page:
                bodies.add(str(one))
                await client.call(receiver.complete_message, one)
        assert bodies == {"before", "after"}
        assert await client.call(receiver.receive_messages, 1, max_wait_time=1) == []
        await client.call(receiver.close)
    finally:
        await client.close()
