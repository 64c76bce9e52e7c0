"""The watch: rests while nobody watches, and neither a silent namespace nor a slow browser holds it up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from pairbus.dashboard import watch as watching
from pairbus.dashboard.watch import WAITING_MAX, Pairing, Watch, Watcher
from pairbus.errors import PairbusError
from pairbus.ledger.prices import load


class Namespace:
    """A target that counts how often it is asked."""

    pace_s = 0.01
    can_switch = True
    operations = 0
    role: str | None = None

    def __init__(self, name: str = "contoso") -> None:
        self.name = name
        self.address = f"{name}.example"
        self.asked = 0
        self.silent = False
        self.active = 0
        self.told = asyncio.Semaphore(0)
        "Released: the namespace tells that something changed."

    async def side(self) -> Any:
        raise AssertionError("messages are not asked for")

    async def overview(self) -> dict[str, Any]:
        self.asked += 1
        if self.silent:
            raise PairbusError("it is silent")
        return {"entities": {"orders": {"kind": "queue", "active": self.active}, "quiet": {"kind": "queue"}}}

    async def switch(self, method: str, route: str, body: dict[str, Any] | None) -> Any:
        raise AssertionError("nothing is switched")

    async def changes(self) -> AsyncGenerator[None, None]:
        while True:
            await self.told.acquire()
            yield

    async def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "TICK_S", 0.02)
    monkeypatch.setattr(watching, "LINGER_S", 0.1)
    monkeypatch.setattr(watching, "QUICK_S", 0.02)
    monkeypatch.setattr(watching, "described", list)


def new_watch(*targets: Namespace) -> Watch:
    return Watch("test", targets, Pairing(lambda _: True), load("standard"))


async def event(watcher: Watcher, kind: str) -> Any:
    """Return the data of the next event of this kind."""
    async with asyncio.timeout(10):
        while line := await watcher.lines.get():
            head, data = line.split("\n")[:2]
            if head == f"event: {kind}":
                return json.loads(data.removeprefix("data: "))
    raise AssertionError("the watcher was ended")


async def until_it_rests(watch: Watch) -> None:
    async with asyncio.timeout(10):
        while watch.is_at_work:  # noqa: ASYNC110 - the watch has no event for it
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("quick")
async def test_nobody_watches_little_is_asked() -> None:
    """A broker with a page that nobody looks at pays for one look in a while; a namespace that bills looks for none."""
    target, billed = Namespace(), Namespace("fabrikam")
    billed.can_switch = False
    watch = new_watch(target, billed)
    await asyncio.sleep(0.05)
    assert target.asked == 0
    watch.leave(await watch.join())
    await until_it_rests(watch)
    asked = target.asked, billed.asked
    await asyncio.sleep(0.1)
    assert (target.asked - asked[0], billed.asked - asked[1]) in ((0, 0), (1, 0))
    assert (await watch.look())["namespaces"]["contoso"]["reachable"]
    await watch.close()


@pytest.mark.usefixtures("quick")
async def test_watch_that_came_to_rest_while_somebody_joined_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the first look may come later than the end of the time that the watch waits for watchers."""
    monkeypatch.setattr(watching, "LINGER_S", -1.0)
    watch = new_watch(Namespace())
    await watch.join()
    assert watch.is_at_work
    await watch.close()


@pytest.mark.usefixtures("quick")
async def test_event_is_kept_while_nobody_watches() -> None:
    """The next browser reads what happened in the night."""
    target = Namespace()
    watch = new_watch(target)
    watch.leave(await watch.join())
    await until_it_rests(watch)
    target.silent = True
    target.told.release()
    async with asyncio.timeout(10):
        while not watch.log.events:  # noqa: ASYNC110 - the log has no event for it
            await asyncio.sleep(0.02)
    target.silent = False
    watcher = await watch.join()
    assert "contoso is away" in (await event(watcher, "happened"))[0]["text"]
    await watch.close()


@pytest.mark.usefixtures("quick")
async def test_watcher_hears_only_what_changed() -> None:
    target = Namespace()
    watch = new_watch(target)
    watcher = await watch.join()
    assert (await event(watcher, "look"))["namespaces"]["contoso"]["entities"]["quiet"] == {"kind": "queue"}
    target.active = 3
    while "namespaces" not in (patch := await event(watcher, "patch")):
        pass
    assert patch["namespaces"] == {"contoso": {"entities": {"orders": {"active": 3}}}}
    await watch.close()


@pytest.mark.usefixtures("quick")
async def test_counts_stay_while_a_namespace_is_away() -> None:
    """The last thing that was seen is worth more than nothing during an outage."""
    target, other = Namespace(), Namespace("fabrikam")
    watch = new_watch(target, other)
    watcher = await watch.join()
    assert (await watch.whole_look(10))["namespaces"]["contoso"]["reachable"]
    target.silent = True
    while not any("away" in one["text"] for one in await event(watcher, "happened")):
        pass
    found = await watch.look()
    assert found["namespaces"]["contoso"]["reachable"] is False
    assert "orders" in found["namespaces"]["contoso"]["entities"]
    assert found["namespaces"]["contoso"]["counts_as_of_ms"] <= found["namespaces"]["contoso"]["away_since_ms"]
    assert found["namespaces"]["fabrikam"]["reachable"] is True
    assert "counts_as_of_ms" not in found["namespaces"]["fabrikam"]
    await watch.close()


@pytest.mark.usefixtures("quick")
async def test_browser_that_does_not_read_is_cut() -> None:
    watch = new_watch(Namespace())
    slow = await watch.join()
    for number in range(2 * WAITING_MAX):
        watch.tell("job", number)
    lines = [slow.lines.get_nowait() for _ in range(slow.lines.qsize())]
    assert lines[-1] is None and len(lines) <= WAITING_MAX
    await watch.close()


async def test_change_is_told_before_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are told as they are seen, not once a second."""
    monkeypatch.setattr(watching, "TICK_S", 600.0)
    monkeypatch.setattr(watching, "QUICK_S", 0.01)
    monkeypatch.setattr(watching, "described", list)
    target = Namespace()
    watch = new_watch(target)
    watcher = await watch.join()
    target.silent = True
    while not any("away" in one["text"] for one in await event(watcher, "happened")):
        pass
    await watch.close()


async def test_source_that_tells_a_change_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are told as they happen: nobody waits for the next look."""
    for name in ("TICK_S", "QUICK_S", "CLIENTS_S"):
        monkeypatch.setattr(watching, name, 600.0)
    monkeypatch.setattr(Namespace, "pace_s", 600.0)
    monkeypatch.setattr(watching, "described", list)
    target = Namespace()
    watch = new_watch(target)
    watcher = await watch.join()
    target.silent = True
    target.told.release()
    while not any("away" in one["text"] for one in await event(watcher, "happened")):
        pass
    await watch.close()


@pytest.mark.parametrize("pace_s", [0.01, 600.0])
@pytest.mark.usefixtures("quick")
async def test_pair_with_a_namespace_that_bills_looks_is_looked_at_as_seldom(
    monkeypatch: pytest.MonkeyPatch, pace_s: float
) -> None:
    """A look at a pair lists the queues of its secondary, which is an operation on Azure."""
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    primary, secondary = Namespace("contoso"), Namespace("fabrikam")
    secondary.pace_s = pace_s
    watch = new_watch(primary, secondary)
    looks = 0

    async def look() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return {}

    watch._pairing.look = look
    await watch.join()
    async with asyncio.timeout(10):
        while primary.asked < 5 or looks < (5 if pace_s < 1 else 1):  # noqa: ASYNC110 - the watch has no event for it
            await asyncio.sleep(0.01)
    assert (looks == 1) == (pace_s > 1)
    await watch.close()


async def test_storm_of_changes_costs_no_more_than_looks_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a look that was asked for, the next one waits until the source has rested."""
    for name in ("TICK_S", "CLIENTS_S"):
        monkeypatch.setattr(watching, name, 600.0)
    monkeypatch.setattr(Namespace, "pace_s", 0.2)
    monkeypatch.setattr(watching, "REST", 1e9)
    monkeypatch.setattr(watching, "described", list)
    target = Namespace()
    watch = new_watch(target)
    await watch.join()
    loop = asyncio.get_running_loop()
    began_s, asked = loop.time(), target.asked
    while loop.time() < began_s + 1:
        target.told.release()
        await asyncio.sleep(0)
    looks = target.asked - asked
    assert 1 <= looks <= 2 + (loop.time() - began_s) / 0.2
    await watch.close()
