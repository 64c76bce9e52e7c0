"""Peers that are slow, but alive: nothing counts as a failure, nothing is diverted, and no backlog queue goes out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage, TransportType

import pairbus
import pairbus.aio
from pairbus.pairing import plan
from pairbus.pairing.events import BacklogQueueFailed, Diverted, Event, FailedOver, Suspected
from tests.client.pausing import AT_ONCE, BESIDE_S, PAUSE_S
from tests.client.world import Client, Stage, World, message
from tests.limits import slowness
from tests.scripted import Delay, Silent
from tests.scripted.endpoint import ScriptedThread
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

LATER = timedelta(hours=1)


def assert_nothing_counted(client: Client) -> None:
    assert [event for kind in (Suspected, FailedOver, Diverted) for event in client.told(kind)] == []


async def test_a_large_message_over_a_thin_line_is_no_outage(world: World, flavour: Flavour) -> None:
    """Five seconds of upload with a patience of one: bytes that leave are signs of life.

    Small messages of another sender of the same queue pass it; one of the same sender stays behind it. The asyncio
    client goes over TLS, where more of an upload lies in buffers.
    """
    queue = world.namespaces.make_queue(max_message_size_in_kilobytes=8192)
    nemesis = world.nemesis()
    nemesis.bandwidth(1_000_000)
    client = await world.client(flavour, attempt_timeout=1, **(tls_options(world) if flavour == "aio" else {}))
    sender, other = client.sender(queue), client.sender(queue)
    await sender.send(message("first"))
    large = asyncio.create_task(sender.send(ServiceBusMessage(bytes(5_000_000), message_id="large")))
    await asyncio.sleep(1.0)  # the upload has begun, also on a busy machine
    behind = asyncio.create_task(sender.send(message("behind")))
    small = list[float]()
    while not large.done():
        small.append(await other.send(message()))
        await asyncio.sleep(0.01)
    took_s = await large
    print(f"{flavour}: 5 MB took {took_s:.1f} s, {len(small)} small ones {max(small):.2f} s at most")
    assert took_s > 3.0, "the line was not slow"
    assert sorted(small)[int(len(small) * 0.99)] < 0.5 * slowness()
    assert await behind > 2.0, "small ones of other senders take less than half a second"
    assert_nothing_counted(client)
    assert world.count(queue) == 3 + len(small)


def tls_options(world: World) -> dict[str, Any]:
    """Return options of a client that goes to the primary by TLS, through the proxy."""
    nemesis, broker = world.nemesis(), world.namespaces.process("primary")
    direct = world.namespaces.connection_string("primary").replace(";UseDevelopmentEmulator=true", "")
    return {
        "primary": direct.replace(f"127.0.0.1:{broker.ports['primary']}", "primary.servicebus.windows.net"),
        "primary_kwargs": {
            "custom_endpoint_address": f"sb://127.0.0.1:{nemesis.port}",
            "transport_type": TransportType.Amqp,
            "connection_verify": str(broker.ca_file),
        },
    }


@pytest.mark.parametrize("first", ["send", "batch", "schedule"])
async def test_a_long_round_trip_is_no_outage(world: World, flavour: Flavour, first: str) -> None:
    """An opening has ten round trips: together they take longer than the peer may be silent, and each is heard."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, attempt_timeout=1.2, connect_timeout=1.2)
    sender = client.sender(queue)
    nemesis.latency(0.1)
    if first == "batch":
        batch = await sender.batch()
        batch.add_message(message())
        await sender.send(batch)
    elif first == "schedule":
        [number] = await sender.schedule(message(), datetime.now(UTC) + LATER)
        await sender.cancel([number])
    for _ in range(2):
        await sender.send(message())
    nemesis.latency(0)
    assert_nothing_counted(client)
    assert world.count(queue) == (3 if first == "batch" else 2)


ROUND_TRIP_S = float(os.environ.get("PAIRBUS_TEST_ROUND_TRIP_S", "0.3"))
"Round trip of the test. A satellite has 0.6 s; with half of that, all clocks are halved and the test ends sooner."


async def test_a_long_round_trip_with_tls_is_no_outage(world: World, flavour: Flavour) -> None:
    """The opening has four round trips more, and the clocks are five round trips long."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(
        flavour, attempt_timeout=5 * ROUND_TRIP_S, connect_timeout=5 * ROUND_TRIP_S, **tls_options(world)
    )
    nemesis.latency(ROUND_TRIP_S / 2)
    sender = client.sender(queue)
    took = [await sender.send(message()) for _ in range(3)]
    print(f"{flavour}: round trip {ROUND_TRIP_S} s, sends took {', '.join(f'{one:.2f}' for one in took)} s")
    assert took[0] > 5 * ROUND_TRIP_S > took[1]
    nemesis.latency(0)
    assert_nothing_counted(client)
    assert world.count(queue) == 3


class SlowCredential:
    """A token service that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = 0

    def get_token(self, *scopes: str, **how: Any) -> AccessToken:
        self.asked += 1
        time.sleep(self.seconds)
        return AccessToken("a token", int(time.time()) + 3600)

    def close(self) -> None:
        pass


class SlowAsyncCredential(SlowCredential):
    async def get_token(self, *scopes: str, **how: Any) -> AccessToken:  # type: ignore[override]
        self.asked += 1
        await asyncio.sleep(self.seconds)
        return AccessToken("a token", int(time.time()) + 3600)

    async def close(self) -> None:  # type: ignore[override]
        pass

    async def __aenter__(self) -> SlowAsyncCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_a_slow_token_is_no_outage(stage: Stage, flavour: Flavour) -> None:
    """Four seconds in a credential, where the peer may be silent for three: the peer was not even asked."""
    credential = SlowAsyncCredential(4) if flavour == "aio" else SlowCredential(4)
    events: list[Event] = []
    kind: Any = pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient
    client = Client(
        flavour,
        kind.from_credential(
            f"127.0.0.1:{stage.primary.port}",
            f"127.0.0.1:{stage.secondary.port}",
            credential,
            create_backlog_queues=False,
            failover_interval=0,
            on_event=events.append,
            primary_kwargs={"use_tls": False},
            secondary_kwargs={"use_tls": False},
        ),
        events,
    )
    sender = client.sender("orders")
    took_s = await sender.send(message("first"))
    await sender.send(message("second"))
    print(f"{flavour}: the first send took {took_s:.1f} s")
    assert credential.asked >= 1 and took_s >= 4
    assert_nothing_counted(client)
    await client.close()
    assert (len(stage.primary.stored("orders")), stage.secondary.received) == (2, [])


async def test_a_blocked_loop_is_not_the_primarys_silence() -> None:
    """`time.sleep` in the application's own event loop, with answers on their way and before a connection is there."""
    async with _elsewhere() as (primary, secondary):
        far = Stage(primary, secondary)
        client = far.client("aio", attempt_timeout=1, connect_timeout=1)
        sender = client.sender("orders")
        for number in range(3):
            primary.on("transfer", Delay(0.3), path="orders", times=20)
            sends = [asyncio.create_task(sender.sender.send_messages(message())) for _ in range(20)]
            for _ in range(number):
                await asyncio.sleep(0)
            time.sleep(3)  # noqa: ASYNC251
            await asyncio.gather(*sends)
            if number == 1:
                primary.close_connections()
        assert_nothing_counted(client)
        assert (len(primary.stored("orders")), secondary.received) == (60, [])
        await far.close()


@asynccontextmanager
async def _elsewhere() -> AsyncIterator[tuple[Any, Any]]:
    """Endpoints in threads of their own: they go on when this loop does not."""
    with ScriptedThread() as primary, ScriptedThread() as secondary:
        yield primary, secondary


async def pause(stage: Stage, how: str, patience_s: float) -> None:
    """Run a program of `pausing.py`, stop it for ten seconds if it does not block itself, and judge what it told."""
    ends = stage.primary.connection_string, stage.secondary.connection_string
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.client.pausing", how, str(patience_s), *ends),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        first = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        while first not in ("sending", ""):
            first = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        if how != "blocked":
            await asyncio.sleep(BESIDE_S)
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
            process.send_signal(signal.SIGCONT)
        told, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, errors.decode()) == (0, "")
    *events, count = told.decode().split()
    assert events == ["Closed"] and int(count) > AT_ONCE, (how, patience_s, events, count)


async def test_ten_seconds_without_running_are_not_the_primarys(stage: Stage) -> None:
    """SIGSTOP of the client, and `time.sleep` in its loop, with sends in flight: nothing counted, nothing diverted.

    All at once, because each takes twelve seconds.
    """
    stage.primary.on("transfer", Delay(0.05), path="orders")
    await asyncio.gather(*(pause(stage, *how) for how in (("sync", 3), ("aio", 3), ("aio", 1), ("blocked", 3))))
    assert stage.secondary.received == []


async def test_slow_backlog_queue_stores_a_send_with_little_time_once(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes in the last quarter of the caller's time, when another queue could hardly answer any more.

    A quarter of the time is just shorter than the time that another queue needs. All times are three times as long as
    usual: the slow answer must come in time on a busy machine too.
    """
    monkeypatch.setattr(plan, "CONCLUSIVE_S", 1.5)
    client = stage.client(flavour, attempt_timeout=9)
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message())
    stage.secondary.on("transfer", Delay(4.4))
    await sender.send(message(), timeout=5.8)
    assert client.told(BacklogQueueFailed) == []
    assert len(stage.secondary.received) == 2


async def test_short_silences_between_accepted_sends_take_no_backlog_queue_out(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour, attempt_timeout=1, backlog_queue_count=1)
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message())
    for _ in range(3):
        stage.secondary.on("transfer", Silent(), times=1)
        assert isinstance(await sender.error(message(), timeout=0.9), pairbus.SendAvailabilityBacklogError)
        await sender.send(message())
    assert client.told(BacklogQueueFailed) == []
