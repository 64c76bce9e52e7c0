"""Sources of the page tell their changes as they happen, so that no event waits for the next look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.client.sides import Side
from pairbus.dashboard import event_log
from pairbus.dashboard import watch as watching
from pairbus.dashboard.following import Following
from pairbus.dashboard.on_broker import OwnTarget
from pairbus.dashboard.targets import BrokerTarget
from pairbus.host.control.followers import Followers
from pairbus.host.control.serving import by_routes, open_server
from tests.dashboard.world import API, CHANGING, QUEUES, World, world

PATIENCE_S = 20.0


async def create(there: World) -> None:
    await there.broker.namespace("contoso").create_queue(QueueDescription("new"))


async def delete(there: World) -> None:
    await there.broker.namespace("contoso").delete_queue("other")


async def begin_fault(there: World) -> None:
    there.broker.namespace("contoso").faults.add("throttle", entity="other")


async def move_clock(there: World) -> None:
    await there.broker.namespace("contoso").clock.advance(60)


async def dead_letter(there: World) -> None:
    await there.dead_letter(1, "Poison")


@pytest.mark.parametrize("change", [create, delete, begin_fault, move_clock, dead_letter])
async def test_change_is_noted_and_messages_are_not(change: Callable[[World], Any]) -> None:
    """Messages come and go by the thousand; the pace of the looks is enough for their counts."""
    async with world() as there:
        noted: list[bool] = []
        there.broker.namespace("contoso").changes.follow(lambda: noted.append(True))
        await there.put("one", "two")
        assert noted == []
        await change(there)
        assert noted


async def test_broker_keeps_events_before_the_first_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first browser of the morning reads the events of the night."""
    monkeypatch.setattr(event_log, "PAUSE_S", 0.0)
    async with world() as there:
        await create(there)
        await there.put("one")
        await dead_letter(there)
        await begin_fault(there)
        texts = {one["text"] for one in await there.get("happened")}
    expected = {
        "created in contoso: new",
        "1 message dead-lettered in orders",
        "fault on in contoso: throttle of other",
    }
    assert expected <= texts


async def test_recorder_does_not_follow_every_change_of_a_storm() -> None:
    """A thousand dead letters in a second cost one look, and the log stays bounded."""
    async with world() as there:
        namespace = there.broker.namespace("contoso")
        recorder = event_log.EventRecorder(namespace)
        for number in range(2 * event_log.EVENTS_MAX):
            namespace.faults.add("throttle", entity=f"queue-{number}")
            await asyncio.sleep(0)
        assert len(recorder.log.events) <= 2
        recorder.close()
        assert len(recorder.log.events) == event_log.EVENTS_MAX


async def test_end_of_a_fault_by_itself_is_noted() -> None:
    async with world() as there:
        faults = there.broker.namespace("contoso").faults
        faults.add("throttle", entity="other", for_s=0.05)
        noted = asyncio.Event()
        there.broker.namespace("contoso").changes.follow(noted.set)
        async with asyncio.timeout(PATIENCE_S):
            await noted.wait()
        assert faults.list() == []


async def test_changes_are_told_by_port_socket_and_process(tmp_path: Path) -> None:
    async with Broker([NamespaceOptions("contoso", queues=QUEUES)], data=tmp_path / "bus") as broker:
        text = broker.connection_string("contoso")
        side = Side.from_connection_string(text)
        targets = (
            BrokerTarget("contoso", side, text),
            BrokerTarget("contoso", side, text, control=tmp_path / "bus"),
            OwnTarget(broker.namespace("contoso"), text),
        )
        for target in targets:
            async with asyncio.timeout(PATIENCE_S), aclosing(target.changes()) as changes:
                await anext(changes)  # it follows
                broker.namespace("contoso").faults.add("throttle", entity="other")
                await anext(changes)
            await target.close()


async def test_broker_stops_at_once_although_it_is_followed(tmp_path: Path) -> None:
    """A stream without an end must not hold up a restart."""
    broker = Broker([NamespaceOptions("contoso", queues=QUEUES)], data=tmp_path / "bus")
    async with broker:
        text = broker.connection_string("contoso")
        side = Side.from_connection_string(text)
        targets = [BrokerTarget("contoso", side, text, control=place) for place in (None, tmp_path / "bus")]
        streams = [target.changes() for target in targets]
        for stream in streams:
            await anext(stream)
        stopping = asyncio.create_task(broker.stop())
        async with asyncio.timeout(PATIENCE_S):
            for stream in streams:
                await to_its_end(stream)
        await stopping
        for target in targets:
            await target.close()


async def to_its_end(stream: AsyncIterator[None]) -> None:
    async for _ in stream:
        pass


async def test_event_reaches_the_browser_before_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that no button of the page has caused."""
    monkeypatch.setattr(watching, "TICK_S", 600.0)
    monkeypatch.setattr(watching, "QUICK_S", 600.0)
    monkeypatch.setattr(OwnTarget, "pace_s", 600.0)
    async with world() as there, there.session.get(f"{there.url}{API}watch", headers=CHANGING) as stream:
        lines = aiter(stream.content)
        async with asyncio.timeout(PATIENCE_S):
            while not (await anext(lines)).startswith(b"event: happened"):
                pass
            await there.put("one")
            await dead_letter(there)
            while b"dead-lettered in orders" not in await anext(lines):
                pass


async def test_events_of_clients_are_heard_until_they_are_left() -> None:
    """A syphon, which tells no events, is left alone."""
    heard = asyncio.Semaphore(0)
    following = Following(heard.release)
    followers = Followers()
    tells = by_routes({("GET", "/events"): lambda _: followers.with_room()})
    client = open_server("client", None, tells, lambda: None, followers)
    syphon = open_server("syphon", None, by_routes({}), lambda: None)
    try:
        following.keep([client.path, syphon.path])
        async with asyncio.timeout(PATIENCE_S):
            while heard.locked():  # until it follows
                followers.tell({"event": "FailedOver"})
                await asyncio.sleep(0.01)
        following.keep([])
        await asyncio.sleep(0)
    finally:
        for server in (client, syphon):
            server.close(wait=True)
