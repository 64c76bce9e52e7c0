"""Sends on two broker processes: which failures count, where a message goes then, and what it looks like there."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusAuthenticationError, ServiceBusError

from pairbus.client.errors import PartlySent, SendAvailabilityBacklogError
from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed, FailedOver, Recovered, Suspected
from pairbus.pairing.failover import State
from pairbus.pairing.policy import REACTIONS, FailurePolicy, Kind, Reaction
from tests.client.both import both_flavours
from tests.client.messages import id_of
from tests.client.test_content import LIMIT
from tests.client.world import Client, Sender, Stage, World, message, until
from tests.limits import slowness
from tests.scripted.script import Reject
from tests.sdk.flavours import Flavour, in_thread

pytestmark = pytest.mark.slow


async def sent_by(world: World, flavour: Flavour, **options: Any) -> tuple[str, Sender]:
    """A queue of the primary and a sender that has used it, through proxies on both sides."""
    queue = world.namespaces.make_queue()
    world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, **options)
    sender = client.sender(queue)
    await sender.send(message("first"))
    return queue, sender


# ── what an application accepts ──


async def received(client: Client, receiver: Any, count: int, wait_s: float) -> list[str]:
    """Receive and complete messages; return their ids."""
    if client.flavour == "aio":
        async with receiver:
            found = await receiver.receive_messages(count, max_wait_time=wait_s)
            for one in found:
                await receiver.complete_message(one)
    else:

        def use() -> Any:
            with receiver:
                found = receiver.receive_messages(count, max_wait_time=wait_s)
                for one in found:
                    receiver.complete_message(one)
                return found

        found = await in_thread(use)
    return [one.message_id for one in found]


@both_flavours
async def test_receivers_are_the_primarys_and_never_see_what_is_diverted(world: World, flavour: Flavour) -> None:
    """Receivers of every sub-queue are the primary's, also while the entity is failed over."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message(message_id="home"))
    client.client.force_failover(queue)
    await sender.send(message(message_id="away"))
    receiver = client.client.get_queue_receiver(queue)
    assert receiver.fully_qualified_namespace in world.connection_string("primary")
    assert await received(client, receiver, 5, 1.0) == ["home"]
    dead = client.client.get_queue_receiver(queue, sub_queue="deadletter")
    assert dead.fully_qualified_namespace in world.connection_string("primary")
    assert await received(client, dead, 5, 0.5) == []
    assert world.in_backlog() == 1


@both_flavours
async def test_sends_after_recovery_overtake_the_backlog_which_keeps_order(world: World, flavour: Flavour) -> None:
    """The primary takes new messages before the backlog has been moved home."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    client.client.force_failover(queue)
    diverted = [f"diverted-{number}" for number in range(5)]
    for one in diverted:
        await sender.send(message(message_id=one))
    client.client.force_healthy(queue)
    await sender.send(message(message_id="after"))
    await world.bring_home()
    assert [id_of(payload) for payload in await world.take(queue, 6)] == ["after", *diverted]


async def test_session_state_is_set_in_the_primary_only(stage: Stage, flavour: Flavour) -> None:
    """A backlog queue has no sessions, so the state is set in the primary also while the queue is failed over."""
    client = stage.client(flavour)
    await client.pair()
    client.client.force_failover("orders")
    await client.sender("orders").send(message())
    receiver = client.client.get_queue_receiver("orders", session_id="s1")
    if flavour == "aio":
        async with receiver:
            await receiver.session.set_state(b"paid")
    else:

        def use() -> None:
            with receiver:
                receiver.session.set_state(b"paid")

        await in_thread(use)
    operations = [operation for _, operation, _ in stage.primary.requests]
    assert "com.microsoft:set-session-state" in operations
    assert stage.secondary.requests == []


# ── which failures count ──


@both_flavours
async def test_an_authentication_that_gets_no_answer_counts(world: World, flavour: Flavour) -> None:
    """An authentication that is refused does not count: the client is misconfigured, and diverting would not help."""
    queue = world.namespaces.make_queue()
    world.nemesis().cut_links("$cbs", "stall")
    client = await world.client(flavour)
    took_s = await client.sender(queue).send(message())
    assert took_s < 5.0 * slowness()
    assert client.state(queue) is State.FAILED_OVER and world.in_backlog() == 1


@both_flavours
async def test_an_attempt_that_times_out_is_not_repeated(world: World, flavour: Flavour) -> None:
    """A single attempt that runs into its time-out has cost the caller enough."""
    queue, sender = await sent_by(world, flavour, attempt_timeout=2, ping_primary_interval=60)
    world.nemesis().stall_transfers(queue)
    took_s = await sender.send(message())
    assert 2.0 <= took_s < 3.5 * slowness()
    assert world.nemesis().counts.of(queue).transfers_held == 1
    assert world.in_backlog() == 1


@both_flavours
async def test_the_primary_gets_a_third_of_the_callers_time(world: World, flavour: Flavour) -> None:
    """Two thirds are left for the backlog, however long an attempt may take."""
    queue, sender = await sent_by(world, flavour, attempt_timeout=60, ping_primary_interval=60)
    world.nemesis().stall_transfers(queue)
    took_s = await sender.send(message(), timeout=4.5)
    assert 1.5 <= took_s < 3.0 * slowness()
    assert world.in_backlog() == 1


async def test_a_send_that_names_no_time_out_gives_the_primary_twenty_seconds(world: World) -> None:
    """A third of sixty, where attempts may take that long; both flavours wait at the same time."""
    senders = [await sent_by(world, flavour, attempt_timeout=60) for flavour in ("sync", "aio")]
    for queue, _ in senders:
        world.nemesis().stall_transfers(queue)
    for took_s in await asyncio.gather(*(sender.send(message()) for _, sender in senders)):
        assert 20.0 <= took_s < 20.0 + 6.0 * slowness()
    assert world.in_backlog() == 2


@both_flavours
async def test_a_row_of_the_failure_policy_can_be_replaced(world: World, flavour: Flavour) -> None:
    """An application that recreates its queues at night: a missing queue is an outage, other rows are unchanged."""
    policy = FailurePolicy({**REACTIONS, Kind.NOT_FOUND: Reaction.COUNT})
    usual, replaced = await world.client(flavour), await world.client(flavour, policy=policy)
    assert isinstance(await usual.sender("not-there").error(message()), ServiceBusAuthenticationError)
    assert usual.told(FailedOver) == []
    await replaced.sender("not-there").send(message())
    assert replaced.state("not-there") is State.FAILED_OVER and world.in_backlog() == 1
    queue = world.namespaces.make_queue()
    assert isinstance(await replaced.sender(queue).error(ServiceBusMessage(bytes(1_200_000))), MessageSizeExceededError)
    assert replaced.state(queue) is State.HEALTHY


# ── the state machine ──


@both_flavours
async def test_a_healthy_send_is_one_message_to_the_primary_and_nothing_else(world: World, flavour: Flavour) -> None:
    """The secondary is not even connected to."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = world.new_client(flavour, create_backlog_queues=False)
    await client.pair()
    sender = client.sender(queue)
    for _ in range(5):
        await sender.send(message())
    await sender.send([message(), message()])
    assert (nemeses[0].counts.of(queue).attaches, nemeses[0].counts.of(queue).transfers) == (1, 6)
    assert nemeses[1].counts.connections == 0
    assert world.count(queue) == 7


@both_flavours
async def test_one_success_ends_suspicion_and_restarts_the_clock(world: World, flavour: Flavour) -> None:
    """The interval runs from the first failure of a row, not from each."""
    queue, sender = await sent_by(world, flavour, failover_interval=4)
    client, nemesis = sender.client, world.nemesis()
    for _ in range(2):
        nemesis.cut_links(queue, "detach")
        for _ in range(2):
            assert isinstance(await sender.error(message()), ServiceBusError)
            assert client.state(queue) is State.SUSPECT
        nemesis.heal()
        await sender.send(message())
        assert client.state(queue) is State.HEALTHY
    assert len(client.told(Suspected)) == len(client.told(Recovered)) == 2
    assert [event.by for event in client.told(Recovered)] == ["a send"] * 2
    assert client.told(FailedOver) == [] and world.in_backlog() == 0


# ── which backlog queue ──


@both_flavours
async def test_a_sender_keeps_the_backlog_queue_that_it_has_picked(world: World, flavour: Flavour) -> None:
    """Picked at random, once."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    client.client.force_failover(queue)
    sender = client.sender(queue)
    for _ in range(10):
        await sender.send(message())
    assert sorted(world.count(one, "secondary") for one in world.backlog) == [0, 10]


async def test_each_sender_picks_its_backlog_queue_by_chance(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that do not know each other spread over the queues; here the dice are told what to show."""
    queue, shown = world.namespaces.make_queue(), iter([1, 0, 1, 1])
    monkeypatch.setattr("pairbus.client.state.random", SimpleNamespace(randrange=lambda sides: next(shown)))
    client = await world.client(flavour)
    client.client.force_failover(queue)
    for expected in ((0, 1), (1, 1), (1, 2), (1, 3)):
        await client.sender(queue).send(message())
        assert tuple(world.count(one, "secondary") for one in world.backlog) == expected


@both_flavours
async def test_failed_backlog_queue_is_out_for_all_senders_until_its_retry(world: World, flavour: Flavour) -> None:
    """The message is stored in another one within the same call."""
    queue, sender = await sent_by(world, flavour, backlog_retry_interval=6)
    client, nemesis = sender.client, world.nemesis("secondary")
    client.client.force_failover(queue)
    await sender.send(message())
    [kept] = [one for one in world.backlog if world.count(one, "secondary")]
    [other] = [one for one in world.backlog if one != kept]
    nemesis.cut_links(kept, "detach")
    began = time.monotonic()
    await sender.send(message())
    for _ in range(3):
        await client.sender(queue).send(message())
    assert [world.count(one, "secondary") for one in (kept, other)] == [1, 4]
    assert [event.queue for event in client.told(BacklogQueueFailed)] == [kept]
    nemesis.heal()
    while not client.told(BacklogQueueBack):
        await sender.send(message())
        assert time.monotonic() - began < 11.0 * slowness()
        await asyncio.sleep(0.1)
    assert time.monotonic() - began >= 6.0


@both_flavours
async def test_send_without_a_backlog_queue_left_raises_and_stores_nothing(world: World, flavour: Flavour) -> None:
    queue, sender = await sent_by(world, flavour)
    sender.client.client.force_failover(queue)
    for one in world.backlog:
        world.nemesis("secondary").cut_links(one, "detach")
    error = await sender.error(message())
    assert isinstance(error, SendAvailabilityBacklogError) and isinstance(error, ServiceBusError)
    assert queue in str(error) and error.outcome_unknown is False
    assert {event.queue for event in sender.client.told(BacklogQueueFailed)} == set(world.backlog)
    assert (world.count(queue), world.in_backlog()) == (1, 0), "only the message that was sent before the outage"


@both_flavours
async def test_message_too_large_for_any_backlog_queue_fails_no_queue(world: World, flavour: Flavour) -> None:
    """Every queue would refuse such a message, until none is left for the good ones."""
    queue, sender = await sent_by(world, flavour)
    sender.client.client.force_failover(queue)
    assert isinstance(await sender.error(ServiceBusMessage(bytes(LIMIT))), MessageSizeExceededError)
    assert sender.client.told(BacklogQueueFailed) == []
    await sender.send(message())
    assert world.in_backlog() == 1


@both_flavours
async def test_partly_stored_list_raises_with_stored_and_unsent_ids(world: World, flavour: Flavour) -> None:
    """A backlog queue of one megabyte: messages stored before it was full come home, and no others."""
    queue = world.namespaces.make_queue()
    world.namespaces.make_queue("secondary", world.backlog[0], max_size_in_megabytes=1)
    client = await world.client(flavour, backlog_queue_count=1)
    client.client.force_failover(queue)
    messages = [message("x" * 90_000) for _ in range(20)]
    error = await client.sender(queue).error(messages)
    assert isinstance(error, PartlySent)
    assert error.stored_ids and error.unsent_ids
    assert [*error.stored_ids, *error.unsent_ids] == [one.message_id for one in messages]
    await world.take(world.backlog[0], len(error.stored_ids), "secondary")
    assert world.count(world.backlog[0], "secondary") == 0


@pytest.mark.parametrize("timeout_s", [1.0, 3.0])
@both_flavours
async def test_no_send_outlives_its_time_out_when_both_namespaces_fall_silent(
    world: World, flavour: Flavour, timeout_s: float
) -> None:
    """The caller's time-out is a promise, also on a bad network."""
    _, sender = await sent_by(world, flavour)
    world.nemesis().black_hole()
    world.nemesis("secondary").black_hole()
    began = time.monotonic()
    assert isinstance(await sender.error(message(), timeout=timeout_s), ServiceBusError)
    assert time.monotonic() - began < timeout_s + slowness()


async def test_throttling_that_lasts_is_waited_for_by_a_ping_as_well(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting rule holds everywhere: no second ping within the wait, and then the entity is healthy."""
    monkeypatch.setattr("pairbus.pairing.pair.BUSY_WAIT_S", 3.0)
    client = stage.client(flavour)
    rule = stage.primary.on("transfer", Reject("amqp:internal-error"))
    await client.sender("orders").send(message())
    stage.primary.remove(rule)
    busy = stage.primary.on("transfer", Reject("com.microsoft:server-busy"), times=1)
    began = time.monotonic()
    await until(lambda: busy.hits == 1, "a throttled ping", 4.0)
    await client.until_state("orders", State.HEALTHY, 8.0)
    assert time.monotonic() - began >= 3.0
