"""From the spool to a namespace: in order, without loss, after any answers of the namespaces."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.amqp.message import Message
from pairbus.backlog.envelope import Home, unwrap
from pairbus.errors import SpoolError, SpoolFull
from pairbus.pairing.events import MaybeDuplicated, SpoolForwarded, SpoolRefused
from pairbus.pairing.policy import Kind
from pairbus.spool import Spool, forwarder
from pairbus.spool import lanes as forwarding
from pairbus.spool.files import look
from pairbus.spool.lanes import PRIMARY, Way
from tests.brokers import BrokerProcess
from tests.scripted.endpoint import ScriptedEndpoint
from tests.scripted.script import Accept, Delay, Detach, LoseAnswer, Reject, Silent
from tests.spool.entries import encoded, entries, entry, number_of, waiting
from tests.spool.forwarding_world import QUEUE, World, numbers_in, payloads_in, two_brokers

BUSY = "com.microsoft:server-busy"
BACKLOG = Way(QUEUE)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PAUSE_S", 0.02)
    monkeypatch.setattr(forwarding, "PAUSE_MAX_S", 0.1)
    monkeypatch.setattr(forwarding, "RETRY_PAUSES_S", (0.01, 0.04))


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def world(tmp_path: Path, endpoint: ScriptedEndpoint) -> AsyncIterator[World]:
    """The two sides are the scripted endpoint."""
    world = World(tmp_path, endpoint.connection_string, endpoint.connection_string, timeout_s=2.0)
    yield world
    await world.close()


def numbers(payloads: Sequence[bytes]) -> list[int]:
    return [number_of(payload) for payload in payloads]


# ── real brokers ──


async def test_a_healthy_primary_gets_everything_in_order_and_unchanged(tmp_path: Path) -> None:
    """Messages appended from another thread meanwhile go too; the spool is empty afterwards, on disk too."""
    async with two_brokers() as (primary, secondary):
        world = World(tmp_path, primary, secondary)
        world.spool.append([*entries(range(250)), *entries(range(30), "bills")])
        async with world.running():
            await asyncio.to_thread(world.spool.append, entries(range(250, 260), "ORDERS"))
            await world.emptied()
            await asyncio.to_thread(world.spool.append, entries(range(260, 270)))
            await world.emptied()
        await world.close()
        found = await payloads_in(primary, "orders")
        assert numbers(found) == list(range(270))
        assert all(payload.endswith(encoded(number)) for number, payload in enumerate(found)), (
            "the broker only adds a head"
        )
        assert await numbers_in(primary, "bills") == list(range(30))
        forwarded = [event for event in world.events if isinstance(event, SpoolForwarded)]
        assert sum(event.count for event in forwarded) == sum(len(event.message_ids) for event in forwarded) == 300
        assert {event.to for event in forwarded} == {"primary"} and forwarded[-1].waiting == 0
        reopened = Spool(world.spool.folder)
        assert reopened.waiting == 0
        reopened.close()


async def test_without_the_primary_messages_go_wrapped_to_a_backlog_queue(tmp_path: Path) -> None:
    """The spool kept everything that the envelope needs: destination, unknown outcome, sender and counter."""
    async with two_brokers() as (primary, secondary):
        world = World(tmp_path, primary, secondary)
        world.ways.default = BACKLOG
        marked = replace(entry(1, "Orders", session_id="s"), first_attempt_ms=5, sender="me", counter=8)
        world.spool.append([entry(0), marked])
        assert await world.forwarder.drain_once() == {}
        await world.close()
        assert await numbers_in(primary, "orders") == []
        homes = [unwrap(payload) for payload in await payloads_in(secondary, QUEUE)]
        assert [home.payload for home in homes if isinstance(home, Home)] == [encoded(0), marked.payload]
        home = homes[1]
        assert isinstance(home, Home)
        assert (home.path, home.first_attempt_ms, home.sender, home.counter) == ("Orders", 5, "me", 8)
        assert ("Orders", QUEUE, None) in world.ways.told or ("orders", QUEUE, None) in world.ways.told


@pytest.mark.slow
async def test_a_broker_that_is_killed_in_between_costs_nothing(tmp_path: Path) -> None:
    """SIGKILL while batches are under way, and again: everything arrives, and first arrivals keep their order."""
    config = {"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders"}]}]}}
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"], config=config, strict=True) as broker:
        primary = broker.connection_string()
        world = World(tmp_path, primary, primary, timeout_s=3.0)
        world.spool.append(entries(range(3000)))
        async with world.running():
            for left in (2500, 1500):
                await world.until(partial(world.is_down_to, left))
                await asyncio.to_thread(broker.restart)
            await world.emptied()
        await world.close()
        found = await numbers_in(primary, "orders")
    assert list(dict.fromkeys(found)) == list(range(3000))


# ── answers that a script gives ──


async def test_what_was_sent_without_an_answer_is_noted_and_sent_again(
    world: World, endpoint: ScriptedEndpoint
) -> None:
    """The primary may have it: the message that goes to the backlog afterwards says since when."""
    endpoint.on("transfer", LoseAnswer(Detach()), path="orders", times=3)
    world.spool.append(entries(range(2)))
    world.ways.after_failure = BACKLOG
    assert await world.forwarder.drain_once() == {}
    homes = [unwrap(payload) for payload in endpoint.stored(QUEUE)]
    assert all(isinstance(home, Home) and home.first_attempt_ms is not None for home in homes)
    assert numbers(endpoint.stored("orders")) == [0, 1] * 3 and len(homes) == 2


async def test_possible_copy_in_a_silent_backlog_queue_is_reported(world: World, endpoint: ScriptedEndpoint) -> None:
    """The copy has no mark by which the syphon could tell it."""
    endpoint.on("transfer", LoseAnswer(Detach()), path=QUEUE, times=1)
    world.spool.append(entries(range(2)))
    world.ways.default = BACKLOG
    world.ways.after_failure = PRIMARY
    assert await world.forwarder.drain_once() == {}
    assert numbers(endpoint.stored("orders")) == [0, 1] and len(endpoint.stored(QUEUE)) == 2
    told = [event.message_id for event in world.events if isinstance(event, MaybeDuplicated)]
    assert told == [one.message_id for one in entries(range(2))]


async def test_a_forward_that_is_cancelled_is_noted_as_sent(world: World, endpoint: ScriptedEndpoint) -> None:
    """The client is closed in the middle of a send: its successor must know that the outcome is unknown."""
    endpoint.on("transfer", LoseAnswer(), path="orders")
    world.spool.append([entry(1)])
    task = asyncio.create_task(world.forwarder.run())
    await world.until(lambda: endpoint.received_by("orders"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    [(_, found)] = world.spool.next_batch("orders", 1, 1)
    assert found.first_attempt_ms is not None


async def test_a_forward_to_a_backlog_queue_that_is_cancelled_is_told(world: World, endpoint: ScriptedEndpoint) -> None:
    endpoint.on("transfer", LoseAnswer(), path=QUEUE)
    world.spool.append([entry(1)])
    world.ways.default = BACKLOG
    task = asyncio.create_task(world.forwarder.run())
    await world.until(lambda: endpoint.received_by(QUEUE))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.message_id for event in world.events if isinstance(event, MaybeDuplicated)] == [entry(1).message_id]


async def test_a_cancelled_forward_ends_when_its_mark_cannot_be_written(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing a client on a full disk still tells of the message that a backlog queue may have."""

    def fail(*_: object) -> None:
        raise SpoolFull("full")

    monkeypatch.setattr(world.spool, "attempted", fail)
    endpoint.on("transfer", LoseAnswer(), path=QUEUE)
    world.spool.append([entry(1)])
    world.ways.default = BACKLOG
    task = asyncio.create_task(world.forwarder.run())
    await world.until(lambda: endpoint.received_by(QUEUE))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.message_id for event in world.events if isinstance(event, MaybeDuplicated)] == [entry(1).message_id]


@pytest.mark.parametrize("condition", ["amqp:link:message-size-exceeded", "com.microsoft:argument-error"])
async def test_a_message_at_fault_steps_aside_and_the_others_keep_their_order(
    world: World, endpoint: ScriptedEndpoint, condition: str
) -> None:
    """Sending the batch one by one finds the message at fault, which is reported, kept with the reason, and never
    deleted.
    """
    endpoint.on("transfer", Reject(condition), path="orders", when=lambda at: encoded(7) in at.payload)
    world.spool.append(entries(range(150)))
    assert await world.forwarder.drain_once() == {}
    assert numbers(endpoint.stored("orders")) == [number for number in range(150) if number != 7]
    sizes = [len(each.messages) for each in endpoint.received_by("orders")]
    assert sizes == [100, *[1] * 100, 50], "only the batch at fault is taken apart"
    [refused] = [event for event in world.events if isinstance(event, SpoolRefused)]
    assert refused.message_id == "m7" and condition in refused.reason
    assert world.spool.refused == 1 and world.spool.waiting == 0
    assert all(failure is None for _, _, failure in world.ways.told), "no failure of the destination was reported"


async def test_messages_for_a_missing_entity_wait_for_the_grace(
    world: World, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    """Within the grace no message is refused; after it they are, and other paths are not affected."""
    missing = endpoint.on("attach", Reject("amqp:not-found"), path="orders")
    world.spool.append([*entries(range(3)), *entries(range(3), "bills")])
    reasons = await world.forwarder.drain_once(patience_s=0.2)
    assert list(reasons) == ["orders"] and "amqp:not-found" in reasons["orders"]
    assert waiting(world.spool) == [0, 1, 2] and numbers(endpoint.stored("bills")) == [0, 1, 2]
    hasty = World(tmp_path / "hasty", endpoint.connection_string, endpoint.connection_string, missing_grace_s=0.0)
    hasty.spool.append(entries(range(3)))
    assert await hasty.forwarder.drain_once() == {}
    assert hasty.spool.refused == 3
    endpoint.remove(missing)
    assert hasty.spool.retry_refused() == 3
    assert await hasty.forwarder.drain_once() == {}
    assert numbers(endpoint.stored("orders")) == [0, 1, 2]
    await hasty.close()


async def test_a_blocked_path_does_not_hold_the_others(world: World, endpoint: ScriptedEndpoint) -> None:
    """One entity is throttled, one does not answer, one has no way at all; the fourth is served at once."""
    endpoint.on("transfer", Reject(BUSY), path="busy")
    endpoint.on("attach", Silent(), path="silent")
    world.ways.paths["nowhere"] = None
    for path in ("busy", "silent", "nowhere", "orders"):
        world.spool.append(entries(range(5), path))
    async with world.running():
        await world.until(lambda: not world.spool.has("orders"))
        await world.until(lambda: "busy" in world.forwarder.reasons)
        assert BUSY in world.forwarder.reasons["busy"]
        assert numbers(endpoint.stored("orders")) == list(range(5))
        world.forwarder.retry_now()
        await asyncio.sleep(0.1)
        assert world.spool.waiting == 15
    assert len(endpoint.received_by("busy")) == 1, "server-busy is waited for, not asked again"


async def test_what_is_too_large_for_a_backlog_queue_waits_for_the_primary(
    world: World, endpoint: ScriptedEndpoint
) -> None:
    """The aliases cost bytes: refusing it would be wrong, and dropping it worse. When the primary is back, it goes."""
    endpoint.max_message_sizes[QUEUE] = len(encoded(1, size=5000)) + 10
    world.ways.default = BACKLOG
    world.spool.append([entry(0), entry(1, size=5000), entry(2)])
    async with world.running():
        await world.until(lambda: world.spool.waiting == 2 and world.forwarder.reasons)
        world.ways.default = PRIMARY
        world.forwarder.retry_now()
        await world.emptied()
    assert world.spool.refused == 0
    assert len(endpoint.stored(QUEUE)) == 1 and numbers(endpoint.stored("orders")) == [1, 2]


@pytest.mark.parametrize("path", ["krders", None])
async def test_message_with_a_damaged_path_does_not_block_its_lane(
    world: World, endpoint: ScriptedEndpoint, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flipped bit: the message is refused, the messages behind it go on, and the forwarder does not spin."""
    world.spool.append(entries(range(3), "Orders"))
    with world.spool._commits.reading() as connection:
        connection.execute("UPDATE waiting SET path = ? WHERE number = 1", (path,))
    paths, looks = world.spool.paths, []

    def counted() -> list[str]:
        looks.append(paths())
        return looks[-1]

    monkeypatch.setattr(world.spool, "paths", counted)
    async with asyncio.timeout(5), world.running():
        await world.emptied()
    assert numbers(endpoint.stored("orders")) == [1, 2]
    assert len(looks) < 10
    _, [standing] = look(world.spool.folder)
    assert (standing.path, standing.refused) == ("orders", 1)


async def test_messages_of_one_session_go_in_batches_and_in_order(world: World, endpoint: ScriptedEndpoint) -> None:
    """A batch ends where another session or none begins; its head says the session, by which the service files it."""
    sessions = {3: "a", 4: "a", 5: "b"}
    world.spool.append([entry(number, session_id=sessions.get(number)) for number in range(8)])
    assert await world.forwarder.drain_once() == {}
    received = endpoint.received_by("orders")
    assert [numbers(each.messages) for each in received] == [[0, 1, 2], [3, 4], [5], [6, 7]]
    assert [each.is_batch for each in received] == [True, True, False, True]
    envelopes = [Message.decode(each.payload).properties for each in received]
    assert envelopes[0] and envelopes[0].group_id is None and envelopes[1] and envelopes[1].group_id == "a"


async def test_messages_that_go_one_by_one_leave_the_spool_together(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync costs as much as a send; with one for each message the lane would be slower than its senders."""
    forwarded, removals = world.spool.forwarded, []

    def remove(gone: Sequence[int]) -> None:
        removals.append(len(gone))
        forwarded(gone)

    monkeypatch.setattr(world.spool, "forwarded", remove)
    monkeypatch.setattr(forwarder, "REMOVE_S", 60.0)
    world.spool.append([entry(number, session_id=f"s{number}") for number in range(20)])
    assert await world.forwarder.drain_once() == {}
    assert numbers(endpoint.stored("orders")) == list(range(20)) and removals == [20]


async def test_what_was_accepted_is_removed_when_the_forwarder_is_cancelled(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is closed: messages that are home already must not go out again with the next client."""
    monkeypatch.setattr(forwarder, "REMOVE_S", 60.0)
    endpoint.on("transfer", LoseAnswer(), path="orders", when=lambda at: encoded(3, session_id="s3") in at.payload)
    world.spool.append([entry(number, session_id=f"s{number}") for number in range(5)])
    task = asyncio.create_task(world.forwarder.run())
    await world.until(lambda: len(endpoint.received_by("orders")) == 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiting(world.spool) == [3, 4]


async def test_a_batch_that_is_refused_for_the_moment_keeps_its_order(world: World, endpoint: ScriptedEndpoint) -> None:
    """A batch is sent whole or not at all: no message overtakes one that was turned down."""
    endpoint.on("transfer", Reject("amqp:internal-error"), path="orders", times=7)
    world.spool.append(entries(range(150)))
    assert await world.forwarder.drain_once() == {}
    assert numbers(endpoint.stored("orders")) == list(range(150))
    kinds = [failure.kind for _, _, failure in world.ways.told if failure is not None]
    assert kinds == [Kind.INTERNAL] * 2, "each destination was tried three times"


@pytest.mark.parametrize(("failures", "counted"), [(2, 0), (3, 1)])
async def test_an_error_that_comes_quickly_counts_when_it_was_tried_three_times(
    world: World, endpoint: ScriptedEndpoint, failures: int, counted: int
) -> None:
    """A send does so too: a short error at the start must not make the entity fail over."""
    endpoint.on("attach", Reject("amqp:internal-error"), path="orders", times=failures)
    world.spool.append([entry(1)])
    assert await world.forwarder.drain_once() == {}
    assert len([failure for _, _, failure in world.ways.told if failure is not None]) == counted
    assert numbers(endpoint.stored("orders")) == [1]


async def test_a_time_out_counts_at_once(world: World, endpoint: ScriptedEndpoint) -> None:
    """A single attempt that runs into its time-out has cost enough."""
    endpoint.on("attach", Silent(), path="orders", times=1)
    world.spool.append([entry(1)])
    assert await world.forwarder.drain_once() == {}
    assert [failure.kind for _, _, failure in world.ways.told if failure is not None] == [Kind.TIMEOUT]


async def test_what_was_accepted_and_could_not_be_removed_is_not_sent_again(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk keeps the row; as long as this process lives it knows better."""
    forwarded, failures = world.spool.forwarded, [SpoolFull("full"), SpoolFull("full")]

    def remove(gone: Sequence[int]) -> None:
        if failures:
            raise failures.pop()
        forwarded(gone)

    monkeypatch.setattr(world.spool, "forwarded", remove)
    world.spool.append(entries(range(3)))
    assert await world.forwarder.drain_once() == {}
    assert world.spool.waiting == 0
    assert numbers(endpoint.stored("orders")) == [0, 1, 2]


async def test_stopping_lets_the_send_under_way_end(world: World, endpoint: ScriptedEndpoint) -> None:
    """Accepted messages are removed: the next start does not send them twice."""
    endpoint.on("transfer", Delay(0.3), path="orders")
    world.spool.append(entries(range(150)))
    async with world.running():
        await world.until(lambda: any(step.step == "transfer" for step in endpoint.steps))
    assert numbers(endpoint.stored("orders")) == list(range(100))
    assert waiting(world.spool) == list(range(100, 150))


async def test_every_send_is_metered_with_its_outcome(world: World, endpoint: ScriptedEndpoint) -> None:
    """The namespace bills for each of the two sends; the ledger's reason is the spool."""
    endpoint.on("transfer", Reject("amqp:internal-error"), path="orders", times=1)
    world.spool.append(entries(range(2)))
    await world.forwarder.drain_once()
    authority, size = world.primary.endpoint.authority, 2 * len(encoded(0))
    assert world.meters == [
        ("primary", authority, "orders", "send", size, 2, "internal", "spool"),
        ("primary", authority, "orders", "send", size, 2, "ok", "spool"),
    ]


async def test_lane_does_not_wait_while_the_other_side_accepts(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane's pause ends when the entity fails over, or comes back; throttling alone is waited out."""
    monkeypatch.setattr(forwarding, "PAUSE_S", 60.0)
    monkeypatch.setattr(forwarder, "LOOK_S", 0.02)
    endpoint.on("transfer", Reject("amqp:internal-error"), path="orders", times=3)
    world.ways.after_failure = BACKLOG
    world.spool.append(entries(range(3)))
    async with asyncio.timeout(10):
        assert await world.forwarder.drain_once(patience_s=100) == {}
    assert len(endpoint.stored(QUEUE)) == 3
    endpoint.on("transfer", Reject("amqp:internal-error"), path=QUEUE, times=1)
    world.ways.after_failure = PRIMARY
    world.spool.append(entries(range(3, 6)))
    async with asyncio.timeout(10):
        assert await world.forwarder.drain_once(patience_s=100) == {}
    assert numbers(endpoint.stored("orders")) == [3, 4, 5]


async def test_a_way_that_opens_later_is_found(world: World, endpoint: ScriptedEndpoint) -> None:
    """The two sides are away when the messages come; asking for a way costs no operation until one is back."""
    world.ways.default = None
    async with world.running():
        world.spool.append(entries(range(3)))
        await world.until(lambda: world.forwarder.reasons)
        assert endpoint.steps == []
        world.ways.default = PRIMARY
        world.forwarder.retry_now()
        await world.emptied()
    assert numbers(endpoint.stored("orders")) == [0, 1, 2]


async def test_what_was_accepted_leaves_the_file_while_the_next_send_waits(tmp_path: Path) -> None:
    """The answer for the next session does not come for 15 s: a kill in that time would send this one again."""
    async with ScriptedEndpoint() as endpoint:
        world = World(tmp_path, endpoint.connection_string, endpoint.connection_string)
        world.spool.append([entry(0, session_id="a"), entry(1, session_id="b")])
        endpoint.on("transfer", Accept(), times=1)
        endpoint.on("transfer", LoseAnswer())
        running = asyncio.create_task(world.forwarder.run())
        async with asyncio.timeout(8):
            await world.until(lambda: world.spool.waiting == 1)
        assert not running.done(), "the next one still waits for its answer"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.close()


class SlowRemoval:
    """The first removal from a spool: it waits in its thread until `goes_on`, and then fails if it must."""

    def __init__(self, spool: Spool, monkeypatch: pytest.MonkeyPatch, error: SpoolError | None) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()
        self._error = error
        self._forwarded = spool.forwarded
        monkeypatch.setattr(spool, "forwarded", self._remove)
        self._stands_at: float | None = time.monotonic()
        clock = SimpleNamespace(monotonic=self._time, time_ns=time.time_ns)
        monkeypatch.setattr(forwarder, "time", clock)

    def _time(self) -> float:
        """The forwarder's clock. It stands while the first message is sent, which may take long on a busy machine: its
        removal would then begin before the second one is sent."""
        return time.monotonic() if self._stands_at is None else self._stands_at

    def _remove(self, gone: Sequence[int]) -> None:
        if not self.began.is_set():
            self._stands_at = None
            self.began.set()
            assert self.goes_on.wait(10)
            if self._error is not None:
                raise self._error
        self._forwarded(gone)


def spool_two(world: World, endpoint: ScriptedEndpoint) -> None:
    """Spool two messages that travel alone; the answer for the second comes while the first is being removed."""
    endpoint.on("transfer", Accept(), times=1)
    endpoint.on("transfer", Delay(0.5), times=1)
    world.spool.append([entry(0, session_id="a"), entry(1, session_id="b")])


async def second_is_accepted(world: World, removal: SlowRemoval) -> None:
    """Wait until the sender of the second message has its answer, and the first one is still being removed."""
    await world.until(lambda: removal.began.is_set() and len(world.meters) == 2)
    await asyncio.sleep(0.01)  # the task that has sent it ends in this turn of the event loop


async def test_batch_accepted_during_a_failed_removal_is_not_sent_again(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is removed when the disk works again, and its event is published."""
    monkeypatch.setattr(forwarder, "REMOVE_S", 0.05)
    removal = SlowRemoval(world.spool, monkeypatch, SpoolError("disk I/O error"))
    spool_two(world, endpoint)
    async with world.running():
        await second_is_accepted(world, removal)
        removal.goes_on.set()
        await world.emptied()
    assert numbers(endpoint.stored("orders")) == [0, 1]
    assert [event.message_ids for event in world.events if isinstance(event, SpoolForwarded)] == [("m0",), ("m1",)]


async def test_batch_accepted_during_a_removal_leaves_with_a_cancelled_forwarder(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is closed while its disk is slow: the next client must not send the batch again."""
    monkeypatch.setattr(forwarder, "REMOVE_S", 0.05)
    removal = SlowRemoval(world.spool, monkeypatch, None)
    spool_two(world, endpoint)
    running = asyncio.create_task(world.forwarder.run())
    await second_is_accepted(world, removal)
    running.cancel()
    removal.goes_on.set()
    await asyncio.gather(running, return_exceptions=True)
    assert world.spool.waiting == 0
    assert [event.message_ids for event in world.events if isinstance(event, SpoolForwarded)] == [("m0",), ("m1",)]


@pytest.mark.parametrize("ends", ["cancelled", "stopped"])
async def test_lane_that_waits_for_its_disk_removes_accepted_messages_at_the_end(
    world: World, endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The client is closed in the pause after a removal that failed: only this process knows what was accepted."""
    monkeypatch.setattr(forwarding, "PAUSE_S", 60.0)
    removal = SlowRemoval(world.spool, monkeypatch, SpoolError("disk I/O error"))
    removal.goes_on.set()
    world.spool.append([entry(1)])
    running = asyncio.create_task(world.forwarder.run())
    await world.until(lambda: world.forwarder.reasons)
    if ends == "cancelled":
        running.cancel()
    else:
        world.forwarder.stop()
    await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 10)
    assert numbers(endpoint.stored("orders")) == [1] and world.spool.waiting == 0
