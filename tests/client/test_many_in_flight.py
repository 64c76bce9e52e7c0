"""Hundreds of sends in flight through one sender when the primary is lost: each caller hears of its own message."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.pairing.events import DestinationSkipped, Diverted, FailedOver, Suspected
from pairbus.pairing.failover import State
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.testing import NemesisThread
from tests.client.losses import QUICK_S, SILENT_S
from tests.client.messages import id_of
from tests.client.world import Client, Sender, Stage, World, message, until
from tests.limits import slowness
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

MANY = 300
GONE = {"aio": 1000, "sync": 300}
"Sends in flight; of the sync flavour each has a thread."
BUSY = "com.microsoft:server-busy"
IN_DOUBT = "was sent and not answered"  # in the text of an error: the message may be stored


class Crowd:
    """Sends that are all begun at once, each timed by itself: tasks of an aio sender, threads of a sync one."""

    def __init__(self, sender: Sender, count: int, timeout_s: float = 60.0) -> None:
        self.ids = [f"m-{number}" for number in range(count)]
        self.errors: dict[str, BaseException] = {}
        self.ended_at: dict[str, float] = {}
        self._sender = sender.sender
        self._timeout_s = timeout_s
        self._waits: list[Any] = []
        begin = self._begin_task if sender.client.flavour == "aio" else self._begin_thread
        for each in self.ids:
            begin(each)

    def _begin_task(self, message_id: str) -> None:
        async def send() -> None:
            try:
                await self._sender.send_messages(message("in flight", message_id=message_id), timeout=self._timeout_s)
            except Exception as error:
                self.errors[message_id] = error
            self.ended_at[message_id] = time.monotonic()

        self._waits.append(asyncio.create_task(send()))

    def _begin_thread(self, message_id: str) -> None:
        def send() -> None:
            try:
                self._sender.send_messages(message("in flight", message_id=message_id), timeout=self._timeout_s)
            except Exception as error:
                self.errors[message_id] = error
            self.ended_at[message_id] = time.monotonic()

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        self._waits.append(asyncio.to_thread(thread.join, 90))

    async def over(self) -> float:
        """Wait for all; when the last one ended."""
        await asyncio.gather(*self._waits)
        assert len(self.ended_at) == len(self.ids), "a send hangs"
        return max(self.ended_at.values())


async def assert_where_told(world: World, client: Client, queue: str, crowd: Crowd) -> None:
    """A success is in the primary, or where an event told; an error is nowhere, unless its outcome was unknown."""
    told: dict[str, list[str]] = {}
    for event in client.told(Diverted):
        told.setdefault(event.queue, []).extend(event.message_ids)
    for backlog in world.backlog:
        there = [
            id_of(payload) for payload in await world.take(backlog, world.count(backlog, "secondary"), "secondary")
        ]
        assert sorted(there) == sorted(told.get(backlog, [])), "the backlog has each reported message once"
    diverted = set(client.diverted_ids)
    home = [id_of(payload) for payload in await world.take(queue, world.count(queue), within_s=20)]
    accepted = set(crowd.ids) - set(crowd.errors) - diverted
    assert accepted <= set(home), f"lost: {sorted(accepted - set(home))[:5]}"
    assert len(home) == len(set(home)), "nothing was sent twice to one place"
    elsewhere = set(home) - accepted - {"first"}
    doubtful = client.doubtful_ids | {each for each, error in crowd.errors.items() if IN_DOUBT in str(error)}
    assert elsewhere <= doubtful, "messages at home and elsewhere were reported as doubtful"


@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_a_cut_link_loses_nothing_that_was_in_flight(world: World, flavour: Flavour, how: str) -> None:
    """The connection breaks once, with all sends under way: a fresh one takes them, and no caller gets an error."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message("first", message_id="first"))
    nemesis.stall_transfers(queue)
    crowd = Crowd(sender, MANY)
    await until(lambda: nemesis.counts.of(queue).transfers_held >= MANY, "all are in flight")
    getattr(nemesis, how)()
    nemesis.heal()
    await crowd.over()
    assert crowd.errors == {}
    assert client.told(Suspected) == client.told(FailedOver) == []
    await assert_where_told(world, client, queue, crowd)


@pytest.mark.parametrize("interval_s", [0, 60], ids=["failing over", "suspect only"])
async def test_lost_answers_are_told_to_each_caller(world: World, flavour: Flavour, interval_s: int) -> None:
    """Every third answer is lost: those messages are stored with an unknown outcome; the others are accepted."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, failover_interval=interval_s, attempt_timeout=4, ping_primary_interval=20)
    sender = client.sender(queue)
    await sender.send(message("first", message_id="first"))
    nemesis.drop_answers(queue, MANY // 3)
    crowd = Crowd(sender, MANY)
    await crowd.over()
    if interval_s:
        assert len(crowd.errors) == MANY // 3
        assert all(IN_DOUBT in str(error) for error in crowd.errors.values()), next(iter(crowd.errors.values()))
    else:
        assert crowd.errors == {}
        assert len(client.diverted_ids) == len(client.doubtful_ids) == MANY // 3
    await client.close()
    await assert_where_told(world, client, queue, crowd)


async def test_throttled_sends_wait_together_and_are_all_accepted(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server-busy for half of those in flight: each waits, none counts, and each is stored once."""
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.5)
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message("first", message_id="first"))
    stage.primary.on("transfer", Reject(BUSY), path="orders", times=MANY // 2)
    crowd = Crowd(sender, MANY)
    await crowd.over()
    assert crowd.errors == {}
    assert sorted(map(id_of, stage.primary.stored("orders"))) == sorted([*crowd.ids, "first"])
    assert stage.secondary.received == []
    assert client.state("orders") is State.HEALTHY


async def test_throttled_sends_without_the_time_to_wait_get_the_error_each(stage: Stage, flavour: Flavour) -> None:
    """A call with less than ten seconds left does not wait; accepted sends are not affected."""
    client = stage.client(flavour)
    sender = client.sender("orders")
    await sender.send(message("first", message_id="first"))
    rule = stage.primary.on("transfer", Reject(BUSY), path="orders", times=MANY // 2)
    crowd = Crowd(sender, MANY, timeout_s=8)
    began = time.monotonic()
    assert await crowd.over() - began < 3 * slowness()
    assert rule.hits == len(crowd.errors) == MANY // 2
    stored = set(map(id_of, stage.primary.stored("orders")))
    assert stored == {"first", *crowd.ids} - set(crowd.errors)
    assert stage.secondary.received == []


LOUD: dict[str, Callable[[NemesisThread, str], object]] = {
    "refused": lambda nemesis, path: nemesis.refuse(),
    "reset": lambda nemesis, path: nemesis.cut_links(path),
    "detached": lambda nemesis, path: nemesis.cut_links(path, "detach"),
}
SILENT: dict[str, Callable[[NemesisThread, str], object]] = {
    "black hole": lambda nemesis, path: nemesis.black_hole(),
    "stall": lambda nemesis, path: nemesis.stall(),
    "transfers stalled": lambda nemesis, path: nemesis.stall_transfers(path),
    "answers dropped": lambda nemesis, path: nemesis.drop_answers(path),
}


@pytest.mark.parametrize("loss", LOUD)
async def test_a_loud_loss_with_many_in_flight_is_over_soon(world: World, flavour: Flavour, loss: str) -> None:
    queue = world.namespaces.make_queue()
    nemesis, count = world.nemesis(), GONE[flavour]
    client = await world.client(flavour, ping_primary_interval=60)
    sender = client.sender(queue)
    await sender.send(message("first", message_id="first"))
    nemesis.stall_transfers(queue)
    crowd = Crowd(sender, count)
    await until(lambda: nemesis.counts.of(queue).transfers_held >= 0.9 * count, "as many as have credit are in flight")
    began = time.monotonic()
    await asyncio.to_thread(LOUD[loss], nemesis, queue)
    took_s = await crowd.over() - began
    print(f"{flavour} {loss}: {count} in {took_s:.2f} s, slowness {slowness():.1f}")
    assert crowd.errors == {}
    assert took_s < 2 * QUICK_S * slowness()  # a thousand sends, not one
    await client.close()
    assert len(client.diverted_ids) == count
    await assert_where_told(world, client, queue, crowd)


@pytest.mark.parametrize("loss", SILENT)
async def test_a_silent_loss_with_many_in_flight_is_over_soon(world: World, flavour: Flavour, loss: str) -> None:
    queue = world.namespaces.make_queue()
    nemesis, count = world.nemesis(), GONE[flavour]
    client = await world.client(flavour, ping_primary_interval=60)
    sender = client.sender(queue)
    await sender.send(message("first", message_id="first"))
    await asyncio.to_thread(SILENT[loss], nemesis, queue)
    began = time.monotonic()
    crowd = Crowd(sender, count)
    took_s = await crowd.over() - began
    print(f"{flavour} {loss}: {count} in {took_s:.2f} s, slowness {slowness():.1f}")
    assert crowd.errors == {}
    assert took_s < SILENT_S * slowness()
    await client.close()
    assert len(client.diverted_ids) == count
    await assert_where_told(world, client, queue, crowd)


async def test_an_entity_that_stalls_is_diverted_and_its_neighbour_is_not(world: World, flavour: Flavour) -> None:
    """The two entities share a connection, and answers of the neighbour are no sign of life of the other."""
    stalled, lively = world.namespaces.make_queue(), world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, ping_primary_interval=60)
    sender, neighbour = client.sender(stalled), client.sender(lively)
    await asyncio.gather(sender.send(message()), neighbour.send(message()))
    connections = nemesis.counts.connections
    nemesis.stall_transfers(stalled)
    over, sent = asyncio.Event(), 1

    async def keep_sending() -> None:
        nonlocal sent
        while not over.is_set():
            if flavour == "aio":
                await neighbour.sender.send_messages(message())
            else:
                await asyncio.to_thread(neighbour.sender.send_messages, message())
            sent += 1

    crowd = [asyncio.create_task(keep_sending()) for _ in range(20)]
    began = time.monotonic()
    took_s = await sender.send(message(message_id="stalled"))
    rate = sent / (time.monotonic() - began)
    over.set()
    await asyncio.gather(*crowd)
    print(f"{flavour}: diverted in {took_s:.2f} s, the neighbour took {rate:.0f} a second")
    assert took_s < SILENT_S * slowness()
    assert client.diverted_ids == ["stalled"]
    assert [event.path for event in client.told(FailedOver)] == [stalled]
    assert [event.path for event in client.told(Suspected)] in ([], [stalled])
    assert client.state(lively) is State.HEALTHY
    assert world.count(lively) == sent
    assert nemesis.counts.connections <= connections + 1, "only a ping may have a connection of its own"


async def test_syphon_of_a_client_does_not_end_its_sends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The syphon drops a connection that may be silent. Sends of the application to other entities, whose answers are
    on their way, would be repeated and stored twice."""
    monkeypatch.setattr(SyphonSettings, "of", lambda options: SyphonSettings(send_timeout_s=1.0))
    stalled, lively = world.namespaces.make_queue(), world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client("aio", enable_syphon=True)
    await client.sender(lively).send(message())
    link = await client.client._life.engine._primary.sender(lively)
    nemesis.stall_transfers(stalled)
    client.client.force_failover(stalled)
    await client.sender(stalled).send(message())
    await client.until_event(DestinationSkipped, 20.0)
    assert link.over is None
