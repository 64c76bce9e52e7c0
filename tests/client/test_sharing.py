"""One sender shared by many threads or tasks, by processes after a fork, and with peers that never answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.performatives import Modified, Released
from pairbus.pairing.events import FailedOver
from pairbus.pairing.failover import State
from tests.client.forking import EACH, WORKERS
from tests.client.losses import QUICK_S
from tests.client.messages import id_of
from tests.client.world import Stage, World, message, until
from tests.limits import slowness
from tests.scripted import Answer, LoseAnswer, ScriptedEndpoint, Silent, short_rejection
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
THREADS, EACH_THREAD = 8, 100
TASKS, EACH_TASK = 200, 5


async def assert_each_once(world: World, queue: str, ids: set[str]) -> None:
    found = [id_of(payload) for payload in await world.take(queue, len(ids), within_s=20)]
    assert sorted(found) == sorted(ids)
    assert world.count(queue) == 0


def by_threads(sender: Any, ids: list[list[str]]) -> list[BaseException]:
    """Let each thread send its own ids, all at once; return the errors. A thread that hangs is not waited for."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(ids))

    def work(mine: list[str]) -> None:
        begin.wait()
        try:
            for one in mine:
                sender.send_messages(ServiceBusMessage("x", message_id=one))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in ids]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return errors


async def test_eight_threads_share_a_sender(world: World) -> None:
    """The plain SDK hangs or loses messages then."""
    queue = world.namespaces.make_queue()
    client = await world.client("sync")
    ids = [[f"{thread}-{number}" for number in range(EACH_THREAD)] for thread in range(THREADS)]
    assert await asyncio.to_thread(by_threads, client.sender(queue).sender, ids) == []
    await assert_each_once(world, queue, {one for mine in ids for one in mine})


async def test_two_hundred_tasks_share_a_sender(world: World) -> None:
    """The plain SDK fails for all but the first that opens it, and slows to a fraction."""
    queue = world.namespaces.make_queue()
    client = await world.client("aio")
    sender = client.sender(queue)
    ids = [[f"{task}-{number}" for number in range(EACH_TASK)] for task in range(TASKS)]

    async def work(mine: list[str]) -> None:
        for one in mine:
            await sender.send(message(message_id=one), within_s=60)

    await asyncio.gather(*(work(mine) for mine in ids))
    await assert_each_once(world, queue, {one for mine in ids for one in mine})


async def test_a_shared_sender_goes_through_an_outage_with_all_its_users(world: World, flavour: Flavour) -> None:
    """Sends in flight when the primary goes, sends in line behind them and later ones all succeed within four
    seconds.
    """
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    stop = asyncio.Event()
    sent: list[str] = []

    async def work(who: int) -> None:
        number = 0
        while not stop.is_set():
            one = message(message_id=f"{who}-{number}")
            number += 1
            assert await world.send(sender, one) < 4.0 * slowness()
            sent.append(str(one.message_id))

    users = [asyncio.create_task(work(who)) for who in range(8)]
    await until(lambda: len(sent) > 50, "they work")
    nemesis.refuse()
    await until(lambda: len(client.diverted_ids) > 50, "they are diverted")
    nemesis.heal()
    await client.until_state(queue, State.HEALTHY, 4.0)
    home = len(client.diverted_ids)
    enough = len(sent) + 50
    await until(lambda: len(sent) > enough, "they work again")
    stop.set()
    await asyncio.gather(*users)
    assert len(client.diverted_ids) - home <= 8, "only sends that were under way may have been diverted"
    doubtful = client.doubtful_ids
    verdict = await world.judge(queue)
    assert (verdict.lost, verdict.misrouted, verdict.altered, verdict.unexpected) == ((), (), (), ()), str(verdict)
    assert verdict.accepted == len(sent)
    assert set(verdict.duplicated) <= doubtful


# ── no call outlives its time-out ──

DEAF: list[tuple[Any, Any]] = [
    ("connect", Silent()),
    ("sasl", Silent()),
    ("open", Silent()),
    ("begin", Silent()),
    ("token", Silent()),
    ("attach", Silent()),
    ("transfer", Silent()),
    ("transfer", LoseAnswer()),
    ("transfer", Answer(Released())),
    ("transfer", Answer(Modified(delivery_failed=True))),
    ("transfer", Answer(short_rejection())),
    ("transfer", Answer(short_rejection("amqp:internal-error"))),
]


@pytest.mark.parametrize("loss", ["refused", "cut", "detached"])
async def test_all_users_of_a_shared_sender_divert_within_two_seconds(
    world: World, flavour: Flavour, loss: str
) -> None:
    """A call that tries again keeps its turn instead of going to the end of the line: it finds out for all others."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    if loss == "refused":
        nemesis.refuse()
    else:
        nemesis.cut_links(queue, "reset" if loss == "cut" else "detach")
    took = await asyncio.gather(*(sender.send(message()) for _ in range(20)))
    assert max(took) < QUICK_S * slowness(), took
    assert (world.in_backlog(), client.told(FailedOver)[1:]) == (20, [])


async def test_a_burst_of_schedules_says_nothing_about_a_healthy_primary(world: World, flavour: Flavour) -> None:
    """Schedules that wait in line wait within their own time-out; a late answer is not taken for a silent primary."""
    queue = world.namespaces.make_queue()
    world.nemesis().latency(0.05)
    client = await world.client(flavour)
    sender = client.sender(queue)
    due = datetime.now(UTC) + timedelta(hours=1)
    numbers = await asyncio.gather(*(sender.schedule(message(), due) for _ in range(60)))
    assert len({number for [number] in numbers}) == 60
    assert client.state(queue) is State.HEALTHY


async def with_stages(check: Any, flavour: Flavour) -> None:
    """Check several rows at once, each on endpoints of its own: most of the time is waiting.

    Fewer with asyncio: a sender of the SDK that waits for its answer takes all the time of the loop that it can get.
    """
    places = asyncio.Semaphore(3 if flavour == "aio" else 6)

    async def row(step: Any, action: Any) -> None:
        async with places, ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
            stage = Stage(primary, secondary)
            try:
                await check(stage, step, action)
            finally:
                await stage.close()

    ended = await asyncio.gather(*(row(*row_) for row_ in DEAF), return_exceptions=True)
    failed = [f"{row_}: {error!r}" for row_, error in zip(DEAF, ended, strict=True) if error is not None]
    assert not failed, "\n".join(failed)


async def test_primary_silent_at_any_step_is_left_within_five_seconds(flavour: Flavour) -> None:
    """The primary is silent before, while or after the connection opens; some answers hang the plain SDK."""

    async def check(stage: Stage, step: Any, action: Any) -> None:
        stage.primary.on(step, action)
        client = stage.client(flavour)
        took_s = await client.sender("orders").send(message())
        assert took_s < 5.0 * slowness(), f"{took_s:.2f} s"
        assert len(stage.in_backlog()) == 1
        assert client.state("orders") is State.FAILED_OVER

    await with_stages(check, flavour)


async def test_no_send_outlives_its_time_out_when_neither_namespace_answers(flavour: Flavour) -> None:
    """The caller's time-out is a promise, also with peers that never answer."""

    async def check(stage: Stage, step: Any, action: Any) -> None:
        stage.primary.on(step, action)
        stage.secondary.on(step, action)
        client = stage.client(flavour)
        sender = client.sender("orders")
        for timeout_s in (4.0, 1.0):
            began = time.monotonic()
            error = await sender.error(message(), timeout=timeout_s)
            took_s = time.monotonic() - began
            assert isinstance(error, ServiceBusError), repr(error)
            assert took_s < timeout_s + slowness(), f"{took_s:.2f} of {timeout_s} s"

    await with_stages(check, flavour)


async def test_no_other_call_of_a_sender_outlives_its_time_out(flavour: Flavour) -> None:
    """Scheduling goes over another pair of links; a batch asks the link for its limit."""
    due = datetime.now(UTC) + timedelta(hours=1)

    async def check(stage: Stage, step: Any, action: Any) -> None:
        if step != "transfer":
            stage.primary.on(step, action)
        stage.primary.on("request", Silent())
        client = stage.client(flavour)
        sender = client.sender("orders")
        began = time.monotonic()
        await sender.batch()
        assert time.monotonic() - began < 5.0 * slowness()
        began = time.monotonic()
        with pytest.raises(ServiceBusError):
            await sender.schedule(message(), due, timeout=2.0)
        took_s = time.monotonic() - began
        assert took_s < 3.0 * slowness(), f"{took_s:.2f} s"

    await with_stages(check, flavour)


# ── cancellation ──


@pytest.mark.parametrize("mid_send", [True, False], ids=["mid-send", "in line"])
async def test_a_cancelled_send_leaves_the_sender_usable(world: World, mid_send: bool) -> None:
    """A web server cancels when its client hangs up; other callers use the same sender."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client("aio")
    sender = client.sender(queue)
    await sender.send(message())
    nemesis.stall_transfers(queue)
    first = asyncio.create_task(sender.send(message()))
    second = asyncio.create_task(sender.send(message(message_id="second")))
    await until(lambda: nemesis.counts.of(queue).transfers_held > 0, "the first is under way")
    cancelled = first if mid_send else second
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    nemesis.heal()
    await (second if mid_send else first)
    assert await sender.send(message(message_id="third")) < 2.0
    assert client.state(queue) is State.HEALTHY
    assert client.diverted_ids == []


# ── forks ──


@pytest.mark.parametrize("how", ["fresh", "used"])
async def test_workers_of_a_forked_process_send_on_connections_of_their_own(world: World, how: str) -> None:
    """Gunicorn and Celery fork after the application was loaded, with or without a send before."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    done = await asyncio.to_thread(_forked, world, queue, how)
    assert done.returncode == 0, done.stderr
    processes = ["parent", *(f"child{number}" for number in range(WORKERS))]
    ids = {f"{who}-{number}" for who in processes for number in range(EACH)} | {"after"}
    ids |= {"before"} if how == "used" else set()
    await assert_each_once(world, queue, ids)
    assert nemesis.counts.of(queue).attaches == 1 + WORKERS, "each process has attached one link"


def _forked(world: World, queue: str, how: str) -> subprocess.CompletedProcess[str]:
    ends = world.connection_string("primary"), world.connection_string("secondary")
    command = [sys.executable, "-m", "tests.client.forking", *ends, world.primary_name, queue, how]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=root)


async def test_workers_forked_in_an_outage_divert_and_come_back_by_themselves(world: World) -> None:
    """The threads that ping stay with the parent: a worker must start its own, and not wait for its parent's answer."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    nemesis.black_hole()
    ends = world.connection_string("primary"), world.connection_string("secondary")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.client.forking", *ends, world.primary_name, queue, "away"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.timeout(50):
        for _ in range(1 + WORKERS):
            assert await process.stdout.readline() == b"away\n"
        nemesis.heal()
        code = await process.wait()
    assert code == 0, (await process.stderr.read()).decode()
    assert world.count(queue) == 1 + WORKERS + 1, "one message of each process, and the last of the parent"
    assert world.in_backlog() == 1 + (1 + WORKERS) * EACH
