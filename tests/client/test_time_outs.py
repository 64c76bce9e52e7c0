"""Calls that do more than send, and clients that have nowhere else to send to: what a time-out means for them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.errors import SendAvailabilityBacklogError
from pairbus.pairing.events import FailedOver
from pairbus.pairing.failover import State
from tests.client.losses import SILENT_S
from tests.client.world import Stage, World, message, new_client, until
from tests.limits import slowness
from tests.scripted.script import Close, Delay, Silent
from tests.sdk.flavours import Flavour


@pytest.fixture
def silent() -> Iterator[str]:
    """A namespace that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield (
            f"Endpoint=sb://127.0.0.1:{listening.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=c2VuZA==;"
            "UseDevelopmentEmulator=true"
        )


async def test_a_first_send_that_pairs_does_not_outlive_its_time_out(
    stage: Stage, flavour: Flavour, silent: str
) -> None:
    """A caller who never called `pair` has a time-out all the same; pairing goes on behind the call that gave up."""
    client = new_client(flavour, stage.primary.connection_string, silent)
    began = time.monotonic()
    error = await client.sender("orders").error(message(), timeout=0.5)
    assert time.monotonic() - began < 1.5 * slowness()
    assert isinstance(error, OperationTimeoutError) and "Nothing was sent" in str(error)
    await client.close()


async def test_when_no_backlog_queue_can_be_had_the_options_say_so(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairing again asks for as many queues as were wanted at first, not for none."""
    asked: list[int] = []

    async def provision(secondary: Any, name: str, options: Any, meter: Any) -> list[str]:
        asked.append(options.backlog_queue_count)
        if len(asked) == 1:
            raise SendAvailabilityBacklogError.of_pairing("fabrikam", "quota")
        return ["stage/x-servicebus-transfer/0"]

    monkeypatch.setattr("pairbus.client.engine.provision", provision)
    client = stage.client(flavour)
    with pytest.raises(SendAvailabilityBacklogError):
        await client.pair()
    assert client.client.options.backlog_queue_count == 0
    await client.pair()
    assert (client.client.options.backlog_queue_count, asked) == (1, [2, 2])


async def test_a_plain_client_gives_the_primary_all_of_its_time(stage: Stage, flavour: Flavour) -> None:
    """A third of it, three seconds at most, is for those who can go elsewhere."""
    client = stage.client(flavour, attempt_timeout=0.3)
    await client.pair()
    await client.clear_pairing()
    stage.primary.on("transfer", Delay(1.5))
    await client.sender("orders").send(message(), timeout=4)
    assert len(stage.primary.stored("orders")) == 1


async def test_queued_request_has_only_the_rest_of_its_time_out(stage: Stage, flavour: Flavour) -> None:
    """The time-out does not begin again: the caller counts from the call."""
    client = stage.client(flavour, failover_interval=60)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("transfer", Delay(2.4))
    stage.primary.on("request", Silent())
    first = asyncio.create_task(sender.send(message()))
    await until(lambda: len(stage.primary.received_by("orders")) == 2, "the send is under way")
    began = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        await sender.schedule(message(), datetime.now(UTC), timeout=3.0)
    assert time.monotonic() - began < 5.0, "beginning again, it would take 5.4 s"
    await first


async def test_a_short_time_out_is_enough_to_reach_a_primary_that_works(world: World, flavour: Flavour) -> None:
    """The third that the primary has of it would not do to open a connection, and no later send would find one."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    for _ in range(3):
        await sender.send(message(), timeout=1.5 * slowness())
    assert (world.count(queue), world.in_backlog()) == (3, 0)
    assert client.told(FailedOver) == []


async def test_batch_is_stored_in_five_seconds_when_the_primary_is_silent(world: World, flavour: Flavour) -> None:
    """To ask a silent primary for its limit costs an attempt; that counts, and the send need not ask once more."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    nemesis.black_hole()

    async def send() -> float:
        began = time.monotonic()
        batch = await sender.batch()
        batch.add_message(message())
        await sender.send(batch)
        return time.monotonic() - began

    took = await asyncio.gather(*(send() for _ in range(4)))
    assert max(took) < SILENT_S * slowness(), took
    assert world.in_backlog() == 4


async def test_schedule_survives_the_same_hiccup_as_a_send(stage: Stage, flavour: Flavour) -> None:
    """A schedule is tried as often as a send before its failure counts."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message())
    stage.primary.on("request", Close("amqp:connection:forced"), times=2)
    assert len(await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1))) == 1
    assert client.state("orders") is State.HEALTHY
