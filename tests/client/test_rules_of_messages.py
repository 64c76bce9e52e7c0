"""A message in a backlog queue of a real secondary, and at home again: aliases, ids, order, and whose object it is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.message import Message
from pairbus.backlog.aliases import RESERVED
from pairbus.client.errors import ReservedPropertyError
from pairbus.transport import connect
from tests.client.both import both_flavours
from tests.client.messages import id_of
from tests.client.test_content import snapshot
from tests.client.test_rules_of_sending import sent_by
from tests.client.world import World, message
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


@both_flavours
async def test_aliases_exist_in_the_backlog_and_not_at_home(world: World, flavour: Flavour) -> None:
    """Session, time to live and schedule would act in a backlog queue, so they travel as aliases; a time to live
    without end has no alias.
    """
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    client.client.force_failover(queue)
    sender = client.sender(queue)
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    mine = {"own": "value"}
    await sender.send(
        message(
            message_id="full",
            session_id="s",
            time_to_live=timedelta(minutes=5),
            scheduled_enqueue_time_utc=due,
            application_properties=mine,
        )
    )
    await sender.send(message(message_id="bare", application_properties=mine))
    [kept] = [path for path in world.backlog if world.count(path, "secondary")]
    away = {id_of(payload): Message.decode(payload) for payload in await world.take(kept, 2, "secondary")}
    full = away["full"]
    assert full.properties is not None and full.properties.group_id is None
    assert full.header is None or full.header.ttl is None
    assert full.application_properties == {
        **mine,
        "x-ms-sessionid": "s",
        "x-ms-timetolive": 300_000,
        "x-ms-scheduledenqueuetimeutc": int(due.timestamp() * 1000),
        "x-ms-path": queue,
    }
    assert away["bare"].application_properties == {**mine, "x-ms-path": queue}
    async with await connect(world.namespaces.connection_string("secondary")) as connection:
        back = await connection.sender(kept)
        for one in (full, away["bare"]):
            one.annotations = one.delivery_annotations = None
            await back.send(one.encode())
    await world.bring_home()
    home = {id_of(payload): Message.decode(payload) for payload in await world.take(queue, 2)}
    assert [home[name].application_properties for name in ("full", "bare")] == [mine, mine]
    properties, header = home["full"].properties, home["full"].header
    assert properties is not None and properties.group_id == "s"
    assert header is not None and header.ttl == 300_000
    assert home["bare"].header is None or home["bare"].header.ttl is None


@pytest.mark.parametrize("is_away", [False, True])
@both_flavours
async def test_a_reserved_property_is_refused_on_the_first_day(world: World, flavour: Flavour, is_away: bool) -> None:
    """Healthy or not, and nothing is stored anywhere."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    if is_away:
        client.client.force_failover(queue)
    for name in sorted(RESERVED):
        error = await client.sender(queue).error(message(application_properties={name: "mine"}))
        assert isinstance(error, ReservedPropertyError) and name in str(error)
    assert (world.count(queue), world.in_backlog()) == (0, 0)


@both_flavours
async def test_the_callers_messages_are_as_they_were_after_an_outage(world: World, flavour: Flavour) -> None:
    """Messages sent one by one and as a list may be sent again, to another queue, by any sender."""
    queue, sender = await sent_by(world, flavour)
    sender.client.client.force_failover(queue)
    given = [
        message(session_id="s", time_to_live=timedelta(hours=1), application_properties={"a": 1}),
        ServiceBusMessage("without an id"),
    ]
    before = [snapshot(one) for one in given]
    for one in given:
        await sender.send(one)
    await sender.send(given)
    assert [snapshot(one) for one in given] == before
    assert (world.count(queue), world.in_backlog()) == (1, 4)


@both_flavours
async def test_a_message_without_an_id_gets_one_that_every_copy_has(world: World, flavour: Flavour) -> None:
    """The primary stored it and could not say so: the copy that comes home is known again by its id."""
    queue, sender = await sent_by(world, flavour, attempt_timeout=2)
    await world.take(queue, 1)
    world.nemesis().drop_answers(queue, count=1)
    nameless = AmqpAnnotatedMessage(data_body=b"x")
    await sender.send(nameless)
    assert nameless.properties is None or nameless.properties.message_id is None
    assert world.in_backlog() == 1
    await world.bring_home()
    first, second = [id_of(payload) for payload in await world.take(queue, 2)]
    assert first == second and len(first) >= 32


@both_flavours
async def test_diverted_messages_of_an_ordered_session_keep_their_order(world: World, flavour: Flavour) -> None:
    """`ordered=True`, while the sender has to change its backlog queue on the way."""
    queue, sender = await sent_by(world, flavour, ordered=True, backlog_retry_interval=60)
    await world.take(queue, 1)
    world.nemesis().refuse()
    sent = [f"{number:02}" for number in range(12)]
    for number, one in enumerate(sent):
        if number == 6:
            [kept] = [path for path in world.backlog if world.count(path, "secondary")]
            world.nemesis("secondary").cut_links(kept, "detach")
        await sender.send(message(message_id=one, session_id="s"))
    assert sender.client.diverted_ids == sent
    assert sorted(world.count(path, "secondary") for path in world.backlog) == [6, 6]
    await world.bring_home()
    home = [Message.decode(payload) for payload in await world.take(queue, 12)]
    assert [one.properties and one.properties.message_id for one in home] == sent
    assert {one.properties and one.properties.group_id for one in home} == {"s"}
    assert all(not one.application_properties for one in home), "the counter of the lane is gone as well"
