"""Errors tell the truth about their messages: each is compared with the messages that the namespaces have stored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusAuthorizationError

from pairbus.backlog.envelope import Envelope, overhead
from pairbus.client.errors import (
    BacklogMessageTooLarge,
    ClientClosed,
    PartlySent,
    ScheduleWhileFailedOver,
    SendAvailabilityBacklogError,
)
from pairbus.errors import SpoolFull
from pairbus.pairing.failover import State
from tests.client.messages import id_of
from tests.client.test_partly_stored import healed_when_a_queue_fails
from tests.client.world import Stage, World, message, until
from tests.scripted.script import Accept, LoseAnswer, Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


async def test_backlog_queues_that_stored_the_message_and_did_not_answer_are_named(
    world: World, flavour: Flavour
) -> None:
    """The primary is not named, because it was not tried."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis("secondary")
    client = await world.client(flavour, attempt_timeout=1)
    sender = client.sender(queue)
    client.client.force_failover(queue)
    for path in world.backlog:
        nemesis.drop_answers(path)
    error = await sender.error(message(), timeout=8)
    assert isinstance(error, SendAvailabilityBacklogError)
    assert error.outcome_unknown and sorted(error.may_be_in) == world.backlog
    assert world.in_backlog() == 2 and world.count(queue) == 0
    assert "the primary" not in str(error) and "neither namespace" not in str(error)


async def test_error_names_a_primary_that_may_have_the_message(world: World, flavour: Flavour) -> None:
    queue = world.namespaces.make_queue()
    home, away = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, attempt_timeout=1)
    sender = client.sender(queue)
    await sender.send(message())
    home.drop_answers(queue)
    away.refuse()
    error = await sender.error(message(), timeout=8)
    assert isinstance(error, SendAvailabilityBacklogError)
    assert error.may_be_in == ("the primary",)
    assert (world.count(queue), world.in_backlog()) == (2, 0)


async def test_message_refused_by_the_services_own_time_out_may_be_stored(stage: Stage, flavour: Flavour) -> None:
    """The service stopped waiting for its storage, which may have the message. A diverted copy tells that there may be
    another one."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    stage.primary.on("transfer", Reject("com.microsoft:timeout"))
    await sender.send(message())
    assert b"x-pairbus-first-attempt" in stage.in_backlog()[0]
    client.client.force_healthy("orders")
    stage.secondary.on("transfer", Reject("amqp:internal-error"))
    error = await sender.error(message(), timeout=8)
    assert isinstance(error, SendAvailabilityBacklogError)
    assert error.may_be_in == ("the primary",)


async def test_schedule_refused_by_the_services_own_time_out_may_have_happened(stage: Stage, flavour: Flavour) -> None:
    """A caller who schedules the message again must know that it may come twice."""
    sender = stage.client(flavour).sender("orders")
    stage.primary.on("request", Reject("com.microsoft:timeout", status=408))
    with pytest.raises(ScheduleWhileFailedOver, match="may have scheduled") as raised:
        await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=8)
    assert raised.value.outcome_unknown


async def test_error_says_that_neither_namespace_stored_the_message(world: World, flavour: Flavour) -> None:
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour)
    for nemesis in nemeses:
        nemesis.refuse()
    error = await client.sender(queue).error(message())
    assert isinstance(error, SendAvailabilityBacklogError)
    assert not error.outcome_unknown and "stored in neither namespace" in str(error)


async def test_error_does_not_call_possibly_stored_parts_lost(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour, attempt_timeout=1)
    client.client.force_failover("orders")
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", LoseAnswer())
    messages = [message("x" * 90_000) for _ in range(5)]
    error = await client.sender("orders").error(messages, timeout=8)
    assert isinstance(error, PartlySent)
    stored = {id_of(payload) for payload in stage.in_backlog()}
    assert (len(error.stored_ids), len(stored)) == (2, 4), "the second part was stored, and its answer was lost"
    assert error.outcome_unknown and set(error.may_be_in) == set(stage.BACKLOG)


async def test_schedule_without_an_answer_may_have_happened(world: World, flavour: Flavour) -> None:
    """A caller who sends the message again must know that it may come twice."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, attempt_timeout=1)
    sender = client.sender(queue)
    await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))
    nemesis.stall()
    with pytest.raises(ScheduleWhileFailedOver, match="may have scheduled") as raised:
        await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=8)
    assert raised.value.outcome_unknown
    assert client.state(queue) is State.FAILED_OVER
    with pytest.raises(ScheduleWhileFailedOver, match="Nothing was scheduled"):
        await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=8)


async def test_sdk_error_has_a_note_with_backlog_queues_that_may_have_it(stage: Stage, flavour: Flavour) -> None:
    client = healed_when_a_queue_fails(stage, flavour, "orders")
    stage.secondary.on("transfer", LoseAnswer())
    stage.primary.on("transfer", Reject("amqp:unauthorized-access"))
    error = await client.sender("orders").error(message(), timeout=20)
    assert isinstance(error, ServiceBusAuthorizationError)
    [note] = error.__notes__
    assert [queue for queue in stage.BACKLOG if queue in note] and "may have stored" in note


async def test_full_spool_raises_an_error_that_sdk_code_catches(world: World, flavour: Flavour, tmp_path: Path) -> None:
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, spool_dir=tmp_path / "spool", spool_max_bytes=100_000)
    for nemesis in nemeses:
        nemesis.refuse()
    sender = client.sender(queue)
    await sender.send(message())
    error = await sender.error(message("x" * 200_000))
    assert isinstance(error, SendAvailabilityBacklogError) and isinstance(error.__cause__, SpoolFull)
    assert "the spool did not take the message" in str(error) and not error.outcome_unknown


async def test_client_closed_during_a_diverted_send_names_the_queue(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour)
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message())
    stage.secondary.on("transfer", LoseAnswer())
    sending = asyncio.create_task(sender.error(message()))
    await until(lambda: len(stage.in_backlog()) == 2, "stored, and not answered")
    await client.close()
    error = await sending
    assert isinstance(error, ClientClosed)
    assert [queue for queue in stage.BACKLOG if queue in error.may_be_in]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_made_smaller_by_the_overhead_that_was_named_fits(
    world: World, flavour: Flavour, ordered: bool
) -> None:
    """Also where it carries its place in the order, and its session, time to live and schedule are put aside."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour, ordered=ordered)
    client.client.force_failover(queue)
    sender = client.sender(queue)
    usual = {"session_id": "s", "time_to_live": timedelta(hours=1), "scheduled_enqueue_time_utc": datetime.now(UTC)}
    fits = 1_048_576 - 500
    error = await sender.error(message("x" * 1_048_400, **usual))
    assert isinstance(error, BacklogMessageTooLarge)
    assert error.overhead_bytes >= overhead(Envelope(queue, 1, "0" * 32, 1) if ordered else Envelope(queue, 1))
    assert f"needs up to {error.overhead_bytes} bytes more" in str(error)
    await sender.send(message("x" * (fits - error.overhead_bytes), **usual))
    assert world.in_backlog() == 1
