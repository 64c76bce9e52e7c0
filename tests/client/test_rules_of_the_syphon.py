"""The syphon between two broker processes: what it costs, what it skips, what it dead-letters, and where it stops."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import EntityStatus

from pairbus import ledger
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Described, Long, Symbol
from pairbus.backlog.envelope import INVALID_ALIAS, NO_DESTINATION
from pairbus.client.sides import Side
from pairbus.pairing.events import (
    DeadLettered,
    DestinationSkipped,
    Event,
    MaybeDuplicated,
    Moved,
    PrimaryReachable,
    PrimaryUnreachable,
    PumpPaused,
)
from pairbus.syphon import Syphon
from pairbus.syphon.decide.dead_letter import MISSING, REFUSED
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.transport import Carrier, connect
from tests.backlog import diverted
from tests.brokers import BrokerProcess
from tests.client.messages import id_of
from tests.client.world import World, message, until
from tests.limits import slowness
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
QUICK = SyphonSettings(send_timeout_s=2.0)


@dataclass
class Pumps:
    """A syphon of the pair's one backlog queue, with its events and its cost."""

    syphon: Syphon
    events: list[Event]
    meters: list[tuple[str, str, str, int]]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in list(self.events) if type(event) is kind]

    def metered(self, kind: str, entity: str | None = None) -> int:
        return sum(count for _, path, what, count in self.meters if what == kind and entity in (None, path))


@dataclass
class Backlog:
    """The backlog queue, filled by the genuine SDK with messages as a failed-over sender stores them."""

    world: World
    path: str
    _closing: list[Carrier] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Messages that are neither at home nor dead-lettered, locked ones included."""
        found = self.world.namespaces.admin("secondary").get_queue_runtime_properties(self.path)
        return int(found.active_message_count or 0)

    async def divert(self, path: str, *ids: str, **fields: Any) -> None:
        async with await connect(self.world.namespaces.connection_string("secondary")) as connection:
            sender = await connection.sender(self.path)
            for start in range(0, len(ids), 500):
                messages = [ServiceBusMessage("x", message_id=one, **fields) for one in ids[start : start + 500]]
                await sender.send_batch([diverted(one, path) for one in messages])

    async def put(self, *payloads: bytes) -> None:
        """Bytes as they are."""
        async with await connect(self.world.namespaces.connection_string("secondary")) as connection:
            sender = await connection.sender(self.path)
            for payload in payloads:
                await sender.send(payload)

    def pumps(self, settings: SyphonSettings = QUICK, *, queues: int = 1, **how: Any) -> Pumps:
        """Make a syphon that goes through the proxies that the test has asked for."""
        world = self.world
        home, away = Carrier(world.connection_string("primary")), Carrier(world.connection_string("secondary"))
        self._closing += [home, away]
        events: list[Event] = []
        meters: list[tuple[str, str, str, int]] = []

        def meter(side: str, entity: str, kind: str, count: int, size_bytes: int, outcome: str, /) -> None:
            meters.append((side, entity, kind, count))

        paths = world.backlog[:queues]
        syphon = Syphon(home, away, paths, settings=settings, publish=events.append, meter=meter, **how)
        return Pumps(syphon, events, meters)

    @asynccontextmanager
    async def pumping(self, settings: SyphonSettings = QUICK, **how: Any) -> AsyncIterator[Pumps]:
        pumps = self.pumps(settings, **how)
        task = asyncio.create_task(pumps.syphon.run())
        try:
            yield pumps
        finally:
            await pumps.syphon.stop()
            await task

    async def close(self) -> None:
        await asyncio.gather(*(carrier.close() for carrier in self._closing))


@pytest.fixture
async def backlog(world: World, request: pytest.FixtureRequest) -> AsyncIterator[Backlog]:
    """A backlog queue with short locks, so that blocked messages are soon received again; see `long_locks`."""
    path = world.namespaces.make_queue(
        "secondary",
        world.backlog[0],
        lock_duration=getattr(request, "param", LOCK),
        max_delivery_count=2147483647,
        max_size_in_megabytes=5120,
    )
    backlog = Backlog(world, path)
    yield backlog
    await backlog.close()


LOCK = timedelta(seconds=5)
long_locks = pytest.mark.parametrize("backlog", [timedelta(minutes=1)], indirect=True, ids=["long locks"])
"For a test in which no message may be received again, however busy the machine is."


def set_status(world: World, queue: str, status: EntityStatus) -> None:
    admin = world.namespaces.admin("primary")
    properties = admin.get_queue(queue)
    properties.status = status
    admin.update_queue(properties)


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


# ── what it costs ──


async def test_an_idle_queue_costs_one_receive_for_each_poll(world: World, backlog: Backlog) -> None:
    """A poll lasts one second here. With polls of fifteen minutes, ten queues cost 28 800 receives in thirty days."""
    world.namespaces.make_queue("secondary", world.backlog[1])
    async with backlog.pumping(replace(QUICK, poll_s=1.0), queues=2) as pumps:
        await until(lambda: pumps.metered("empty receive") >= 4, "two polls of two queues")
        assert pumps.metered("empty receive") == 4
    assert pumps.metered("receive") == pumps.metered("send") == 0


async def test_a_connection_that_is_closed_within_a_poll_is_not_another_receive(world: World, backlog: Backlog) -> None:
    """The service closes an idle link; the poll goes on over a new link."""
    nemesis = world.nemesis("secondary")
    async with backlog.pumping(replace(QUICK, poll_s=6.0)) as pumps:
        await until(lambda: nemesis.counts.of(backlog.path).attaches == 1, "the link is open")
        await asyncio.sleep(2.5)  # a link that ends within a second was not idle
        nemesis.cut()
        await until(lambda: pumps.metered("empty receive") >= 1, "the poll ends")
        assert nemesis.counts.of(backlog.path).attaches == 2
        assert pumps.metered("empty receive") == 1
        assert pumps.told(PumpPaused) == [] and pumps.syphon.progress().errors == 0


async def test_each_message_that_is_moved_costs_four_operations(world: World, flavour: Flavour, tmp_path: Path) -> None:
    """Sent to the backlog, received from it, sent to the primary, received from there: the ledger has each."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour, ledger=tmp_path)
    client.client.force_failover(queue)
    await client.sender(queue).send([message() for _ in range(5)])
    syphon = await world.client(flavour, ledger=tmp_path, enable_syphon=True)
    await until(lambda: world.count(queue) == 5, "the syphon brings them home")
    receiver = syphon.client.get_queue_receiver(queue)
    found: list[Any] = []
    while len(found) < 5:
        found += await syphon.call(receiver.receive_messages, 5 - len(found), max_wait_time=5)
    await syphon.call(receiver.close)
    await syphon.close()
    await client.close()
    steps: dict[tuple[str, str, str], int] = {}
    for row in ledger.read(tmp_path):
        if row.kind in ("send", "receive") and row.entity in (queue, *world.backlog):
            step = (row.kind, str(row.side), str(row.cause))
            steps[step] = steps.get(step, 0) + (row.billable_operations or 0)
    assert steps == {
        ("send", "secondary", "failover"): 5,
        ("receive", "secondary", "syphon"): 5,
        ("send", "primary", "syphon"): 5,
        ("receive", "primary", "application"): 5,
    }


# ── what comes home ──


async def test_each_message_comes_home_to_its_destination_in_queue_order(world: World, backlog: Backlog) -> None:
    """A batch has several destinations, and there are several batches of up to a hundred; case of paths is ignored."""
    orders, bills = world.namespaces.make_queue(), world.namespaces.make_queue()
    sent = names(240)
    for number, one in enumerate(sent):
        await backlog.put(diverted(ServiceBusMessage("x", message_id=one), (orders.upper(), bills)[number % 2]))
    pumps = backlog.pumps()
    assert (await pumps.syphon.run_once()).moved == 240
    assert [id_of(payload) for payload in await world.take(orders, 120)] == sent[::2]
    assert [id_of(payload) for payload in await world.take(bills, 120)] == sent[1::2]
    assert pumps.metered("send") == pumps.metered("receive") == pumps.metered("complete") == 240
    assert max(count for _, _, kind, count in pumps.meters if kind == "receive") <= 100


async def test_group_is_completed_when_its_own_destination_accepted(world: World, backlog: Backlog) -> None:
    """Messages at home do not wait for the slowest destination: their locks would end meanwhile."""
    slow, quick = world.namespaces.make_queue(), world.namespaces.make_queue()
    nemesis = world.nemesis()
    nemesis.stall_transfers(slow)
    await backlog.divert(slow, *names(10, "slow"))
    await backlog.divert(quick, *names(10, "quick"))
    async with backlog.pumping(replace(QUICK, send_timeout_s=30.0)) as pumps:
        await until(lambda: backlog.waiting == 10, "the quick ones are completed", within_s=4.0 * slowness())
        assert (world.count(quick), world.count(slow)) == (10, 0)
        assert nemesis.counts.of(slow).transfers_held >= 1, "messages for the slow destination are on their way"
        nemesis.heal()
        await until(lambda: world.count(slow) == 10 and backlog.waiting == 0, "and arrive")
        assert sum(event.count for event in pumps.told(Moved) if event.path == quick) == 10


@pytest.mark.parametrize("ttl", [Long(30_000), Described(Symbol("com.microsoft:timespan"), Long(30_000 * 10_000))])
async def test_time_to_live_may_be_a_number_or_a_time_span(world: World, backlog: Backlog, ttl: Any) -> None:
    """Messages that the original software left in a backlog queue come home as well."""
    queue = world.namespaces.make_queue()
    aliases = {"x-ms-path": queue, "x-ms-timetolive": ttl}
    await backlog.put(
        Message(properties=Properties(message_id="old"), application_properties=aliases, data=[b"x"]).encode()
    )
    assert (await backlog.pumps().syphon.run_once()).moved == 1
    [payload] = await world.take(queue, 1)
    home = Message.decode(payload)
    assert home.header is not None and home.header.ttl == 30_000
    assert not home.application_properties


async def test_a_message_that_comes_home_after_the_window_is_reported(world: World) -> None:
    """The primary stored it and its answer was lost; its id is not remembered there any more."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client("aio", attempt_timeout=2)
    sender = client.sender(queue)
    await sender.send(message())
    nemesis.drop_answers(queue, count=1)
    await sender.send(message(message_id="twice"))
    assert client.doubtful_ids == {"twice"}
    pumps = Backlog(world, world.backlog[0]).pumps(queues=2, wall_ms=lambda: int((time.time() + 700) * 1000))
    assert (await pumps.syphon.run_once()).moved == 1
    [told] = pumps.told(MaybeDuplicated)
    assert (told.path, told.message_id) == (queue, "twice")
    assert world.count(queue) == 3


async def test_a_budget_is_kept(world: World, backlog: Backlog) -> None:
    """Live traffic needs the namespace's operations too: ten at once, then a hundred a second."""
    queue = world.namespaces.make_queue()
    await backlog.divert(queue, *names(200))
    began = time.monotonic()
    await backlog.pumps(replace(QUICK, max_messages_per_second=100)).syphon.run_once(0.2)
    assert time.monotonic() - began >= 1.8
    assert world.count(queue) == 200


async def test_syphon_takes_no_more_than_it_can_move_within_a_lock(world: World, backlog: Backlog) -> None:
    """A slow drain, longer than a lock: every message is received once, moved once, and completed in time."""
    queue = world.namespaces.make_queue()
    await backlog.divert(queue, *names(360))
    pumps = backlog.pumps(replace(QUICK, max_messages_per_second=50))
    began = time.monotonic()
    progress = await pumps.syphon.run_once()
    assert time.monotonic() - began > LOCK.total_seconds()
    assert (progress.moved, progress.errors, backlog.waiting) == (360, 0, 0)
    assert pumps.metered("receive") == pumps.metered("send") == world.count(queue) == 360


# ── what it skips ──


@long_locks
async def test_failing_destination_is_skipped_with_one_event(world: World, backlog: Backlog) -> None:
    """Each of two disabled destinations has one event; their messages stay under their locks, and are received once."""
    paths = [world.namespaces.make_queue() for _ in range(3)]
    blocked, open_one = paths[:2], paths[2]
    for path in blocked:
        set_status(world, path, EntityStatus.SEND_DISABLED)
        await backlog.divert(path, *names(150, path))
    await backlog.divert(open_one, *names(150))
    pumps = backlog.pumps()
    progress = await pumps.syphon.run_once()
    assert (progress.moved, progress.blocked, progress.dead_lettered) == (150, 300, 0)
    assert sorted(event.path for event in pumps.told(DestinationSkipped)) == sorted(blocked)
    assert all("disabled" in event.reason for event in pumps.told(DestinationSkipped))
    assert pumps.metered("receive") == 450 and backlog.waiting == 300
    for path in blocked:
        set_status(world, path, EntityStatus.ACTIVE)
    async with backlog.pumping():
        await until(lambda: backlog.waiting == 0, "they come home when it is back", within_s=20)
    assert [world.count(path) for path in paths] == [150] * 3


@long_locks
async def test_a_pass_that_delivers_nothing_doubles_the_pause_and_the_drain_resumes(
    world: World, backlog: Backlog
) -> None:
    """A primary that cannot be reached: receiving more would only cost receives."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    nemesis.refuse()
    await backlog.divert(queue, *names(500))
    async with backlog.pumping() as pumps:
        await until(lambda: len(pumps.told(PrimaryUnreachable)) >= 2, "two tries", within_s=15)
        assert [event.next_try_s for event in pumps.told(PrimaryUnreachable)[:2]] == [1.0, 2.0]
        assert pumps.metered("receive") < 500
        nemesis.heal()
        await until(lambda: pumps.told(PrimaryReachable), "the probe is answered", within_s=30)
        await until(lambda: world.count(queue) > 0, "the first are home, though locks last a minute", within_s=20)
        await until(lambda: world.count(queue) == 500, "all of them come home", within_s=30)
        await until(lambda: backlog.waiting == 0, "and leave the backlog")
    assert pumps.told(DeadLettered) == []


async def test_a_key_that_is_rotated_during_the_drain_pauses_and_resumes(tmp_path: Path) -> None:
    """The primary comes back with another key; when the syphon has it too, it goes on. Nothing is dead-lettered."""

    def config(key: str) -> dict[str, Any]:
        return {"UserConfig": {"Namespaces": [{"Name": "home", "Keys": [{"Name": "app", "Key": key}]}]}}

    with (
        BrokerProcess(tmp_path / "home", namespaces=["home"], config=config("Zmlyc3Q="), strict=True) as home,
        BrokerProcess(tmp_path / "away", namespaces=["away"], strict=True) as away,
    ):
        with home.admin("home") as admin:
            admin.create_queue("orders")
        with away.admin("away") as admin:
            admin.create_queue("backlog", lock_duration=LOCK)

        async def divert(*ids: str) -> None:
            async with await connect(away.connection_string("away")) as connection:
                sender = await connection.sender("backlog")
                await sender.send_batch([diverted(ServiceBusMessage("x", message_id=one), "orders") for one in ids])

        def count() -> int:
            with home.admin("home") as admin:
                return int(admin.get_queue_runtime_properties("orders").active_message_count or 0)

        key = AzureNamedKeyCredential("app", "Zmlyc3Q=")
        side = Side.from_credential(f"127.0.0.1:{home.ports['home']}", key, use_tls=False)
        events: list[Event] = []
        async with (
            Carrier(side.endpoint, credential=side.credential) as primary,
            Carrier(away.connection_string("away")) as secondary,
        ):
            syphon = Syphon(primary, secondary, ["backlog"], settings=QUICK, publish=events.append)
            task = asyncio.create_task(syphon.run())
            await divert(*names(20, "before"))
            await until(lambda: syphon.progress().moved == 20, "the first ones come home")
            (tmp_path / "home.json").write_text(json.dumps(config("c2Vjb25k")))
            await asyncio.to_thread(home.restart)
            await divert(*names(20, "after"))
            await until(lambda: refused(events), "the old key is refused", within_s=15)
            key.update("app", "c2Vjb25k")
            await until(lambda: syphon.progress().moved == 40, "with the new key the rest comes home", within_s=25)
            await syphon.stop()
            await task
        assert count() == 40
        assert not [event for event in events if isinstance(event, DeadLettered)]


def refused(events: list[Event]) -> list[DestinationSkipped]:
    """Destinations that were skipped because of the key."""
    return [one for one in events if isinstance(one, DestinationSkipped) and "unauthorized" in one.reason.lower()]


# ── what it dead-letters, and where it stops ──


async def test_messages_that_cannot_go_home_are_dead_lettered_with_a_reason(world: World, backlog: Backlog) -> None:
    """A message has a missing or wrong alias, or its destination refuses it for good; the others go on."""
    queue = world.namespaces.make_queue()
    admin = world.namespaces.admin("secondary")
    parking = admin.get_queue(backlog.path)
    parking.max_message_size_in_kilobytes = 4096
    admin.update_queue(parking)
    wrong = {"x-ms-path": queue, "x-ms-sessionid": 5}
    await backlog.put(
        Message(properties=Properties(message_id="no path"), data=[b"x"]).encode(),
        Message(properties=Properties(message_id="wrong"), application_properties=wrong, data=[b"x"]).encode(),
    )
    await backlog.put(diverted(ServiceBusMessage("x" * 1_100_000, message_id="big"), queue))
    await backlog.divert(queue, "good")
    pumps = backlog.pumps()
    progress = await pumps.syphon.run_once()
    assert (progress.moved, progress.dead_lettered, progress.blocked) == (1, 3, 0)
    told = {event.message_id: (event.reason, event.description) for event in pumps.told(DeadLettered)}
    assert {name: reason for name, (reason, _) in told.items()} == {
        "no path": NO_DESTINATION,
        "wrong": INVALID_ALIAS,
        "big": REFUSED,
    }
    letters = await dead_letters(world, backlog.path, 3)
    assert {name: (reason, text) for name, reason, text in letters} == told
    assert [id_of(payload) for payload in await world.take(queue, 1)] == ["good"]


async def dead_letters(world: World, path: str, count: int) -> list[tuple[str, str, str]]:
    """(message id, reason, description), as the genuine SDK reads them; removed."""
    found: list[Any] = []
    async with (
        ServiceBusClient.from_connection_string(world.namespaces.connection_string("secondary")) as client,
        client.get_queue_receiver(path, sub_queue="deadletter", receive_mode="receiveanddelete") as receiver,
    ):
        while len(found) < count:
            batch = await receiver.receive_messages(count - len(found), max_wait_time=5)
            assert batch, f"{len(found)} of {count} dead letters"
            found += batch
    return [(one.message_id, one.dead_letter_reason, one.dead_letter_error_description) for one in found]


async def test_a_missing_destination_is_waited_for_as_long_as_its_grace(world: World, backlog: Backlog) -> None:
    """A second here, fifteen minutes otherwise: it may be redeployed."""
    pumps = backlog.pumps(replace(QUICK, missing_destination_grace_s=1.0))
    await backlog.divert("gone", "early")
    assert (await pumps.syphon.run_once(0.2)).dead_lettered == 0
    await asyncio.sleep(1.0)
    await backlog.divert("gone", "late")
    assert (await pumps.syphon.run_once(0.2)).dead_lettered == 2
    buried = await dead_letters(world, backlog.path, 2)
    assert [(name, reason) for name, reason, _ in buried] == [("early", MISSING), ("late", MISSING)]
    assert all("'gone'" in text for _, _, text in buried)


async def test_lost_locks_end_the_pass_and_messages_come_again(world: World, backlog: Backlog) -> None:
    """The primary answers only when the locks are over: the rest of a thousand messages waits for the next pass."""
    queue = world.namespaces.make_queue(requires_duplicate_detection=True)
    nemesis = world.nemesis()
    await backlog.divert(queue, *names(1000))
    nemesis.stall_transfers(queue)
    pumps = backlog.pumps(replace(QUICK, send_timeout_s=30.0))
    passing = asyncio.create_task(pumps.syphon.run_once(0.3))
    await until(lambda: nemesis.counts.of(queue).transfers_held >= 1, "the first are on their way")
    await asyncio.sleep(LOCK.total_seconds() + 1.0)
    nemesis.heal()
    progress = await passing
    assert progress.errors >= 1 and progress.moved < 1000
    assert pumps.metered("receive") < 1000, "nothing more is received by this pass"
    async with backlog.pumping():
        await until(lambda: backlog.waiting == 0, "the rest comes home", within_s=20)
    assert sorted({id_of(payload) for payload in await world.take(queue, world.count(queue))}) == names(1000)
