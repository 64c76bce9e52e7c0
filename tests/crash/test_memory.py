"""A broker that may have 1 GB of address space, beside clients that never read, never settle or send what is large.

It never dies, and an honest client is served all the time. The clients that do harm are plain sockets: they keep
nothing themselves.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.procstat import peak_rss_bytes, rss_bytes

from pairbus.amqp.frames import frame
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Timestamp
from pairbus.transport import ClientConnection, connect
from tests.brokers import BrokerProcess
from tests.crash import hostile
from tests.crash.hostile import LOST, READ_SIZE, Enemy
from tests.crash.messages import SCHEDULED_TIME, make
from tests.crash.test_soak import HONEST, Honest, settled
from tests.limits import slowness

pytestmark = [pytest.mark.deep, pytest.mark.slow]

ADDRESS_SPACE = 1 << 30
HONEST_S = 1.0
REST_BYTES = 150 << 20  # resident above the start when all is over
MB = 1 << 20


@dataclass
class World:
    broker: BrokerProcess
    connection: ClientConnection
    honest: Honest

    def enemy(self, queue: str) -> Enemy:
        parts = dict(part.split("=", 1) for part in self.broker.connection_string().split(";"))
        return Enemy(self.broker.ports["contoso"], parts["SharedAccessKeyName"], parts["SharedAccessKey"], queue)

    def queue(self, name: str, **settings: object) -> None:
        with self.broker.admin() as admin:
            admin.create_queue(name, **settings)  # type: ignore[arg-type]

    def waiting(self, name: str) -> int:
        with self.broker.admin() as admin:
            return int(admin.get_queue_runtime_properties(name).active_message_count or 0)


@asynccontextmanager
async def limited(folder: Path) -> AsyncIterator[World]:
    """A broker with little address space, and an honest client that works until the end."""
    broker = BrokerProcess(folder / "data", namespaces=["contoso"], options=["--log-level", "warning"])
    await asyncio.to_thread(broker.start)
    try:
        resource.prlimit(broker.pid, resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        with broker.admin() as admin:
            admin.create_queue(HONEST)
        stop = asyncio.Event()
        async with await connect(broker.connection_string()) as other, await connect(broker.connection_string()) as own:
            honest = Honest(own)
            working = asyncio.create_task(honest.run(stop))
            await asyncio.wait_for(honest.is_warm.wait(), 60)
            before = rss_bytes(broker.pid)
            yield World(broker, other, honest)
            stop.set()
            await asyncio.wait_for(working, 60)
        peak = peak_rss_bytes(broker.pid)
        after = await settled(lambda: rss_bytes(broker.pid), before + REST_BYTES)
        print(f"honest: {honest.count} messages, longest {honest.longest_s:.2f} s, slowness {slowness():.1f}")
        print(f"resident MB: {before >> 20} before, {peak >> 20} peak, {after >> 20} after")
        assert honest.longest_s < HONEST_S * slowness()
        assert after < before + REST_BYTES
        assert "Traceback" not in broker.stderr and "MemoryError" not in broker.stderr, broker.stderr[-4000:]
        assert await asyncio.to_thread(broker.terminate) == 0
    finally:
        broker.kill()


async def fill(connection: ClientConnection, queue: str, count: int, size: int, *, due_ms: int = 0) -> None:
    """Send messages of one size, few of them at the same time where they are large."""
    sender = await connection.sender(queue)
    body, step = bytes(size), max(1, min(500, 2 * MB // (size + 1)))
    annotations = {SCHEDULED_TIME: Timestamp(due_ms)} if due_ms else None
    for at in range(0, count, step):
        numbers = range(at, min(at + step, count))
        payloads = [
            Message(annotations=annotations, properties=Properties(message_id=f"m{n}"), data=[body]).encode()
            for n in numbers
        ]
        await asyncio.gather(*[sender.send(payload) for payload in payloads])


async def until(met: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s * slowness()
    while not await asyncio.to_thread(met):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)


async def receive_and_never_settle(enemy: Enemy, amount: int, bytes_max: int) -> int:
    """Read deliveries and drop them, until so many bytes have come or nothing more comes; return the bytes."""
    read = 0
    async with enemy.dialled() as (reader, writer):
        writer.write(enemy.hello() + frame(0, enemy.receiving_link(0)) + frame(0, hostile.credit(0, amount)))
        with suppress(*LOST, TimeoutError):
            while read < bytes_max:
                async with asyncio.timeout(5):
                    data = await reader.read(READ_SIZE)
                if not data:
                    break
                read += len(data)
    return read


async def test_prefetch_that_nobody_settles_stays_in_the_store(tmp_path: Path) -> None:
    """Ten clients have 2 000 messages of 256 KB under lock, twice over: each lock that lapses is written."""
    async with limited(tmp_path) as world:
        world.queue("large", max_message_size_in_kilobytes=1024, lock_duration="PT5S")
        await fill(world.connection, "large", 2_000, 256 << 10)
        total = 2_000 * (256 << 10)
        read = await asyncio.gather(
            *[receive_and_never_settle(world.enemy("large"), 200, total // 10) for _ in range(10)]
        )
        assert sum(read) > 0.9 * total
        again = await receive_and_never_settle(world.enemy("large"), 2_000, total // 4)
        assert again > 0


async def test_a_thousand_queues_keep_one_share_of_memory(tmp_path: Path) -> None:
    """Messages that are loaded before their turn are limited for all queues together."""
    async with limited(tmp_path) as world:
        for first in range(0, 1_000, 50):
            names = [f"q{number}" for number in range(first, first + 50)]
            await asyncio.to_thread(_create, world, names)
            for name in names:
                await fill_in_batches(world.connection, name, 1_000)
        print(f"resident MB with a million messages: {rss_bytes(world.broker.pid) >> 20}")
        for number in range(0, 1_000, 100):
            receiver = await world.connection.receiver(f"q{number}", credit=100)
            received = await receiver.receive(10, timeout_s=30)
            assert received
            await receiver.complete(received)


def _create(world: World, names: list[str]) -> None:
    with world.broker.admin() as admin:
        for name in names:
            admin.create_queue(name)


async def fill_in_batches(connection: ClientConnection, queue: str, count: int) -> None:
    sender = await connection.sender(queue)
    for at in range(0, count, 100):
        each = [make(f"m{n}", random.Random(n), size=1_000) for n in range(at, at + 100)]
        await sender.send_batch(each)


async def test_answers_that_nobody_reads_cost_one_share_of_memory(tmp_path: Path) -> None:
    """A hundred clients ask for answers of a megabyte: half of them do not read, half of them give no credit."""
    async with limited(tmp_path) as world:
        world.queue("large", max_message_size_in_kilobytes=1024)
        await fill(world.connection, "large", 100, 200_000)
        stop = asyncio.Event()
        enemy = world.enemy("large")
        asking = [
            asyncio.create_task(hostile.peek_and_never_read(enemy, 500, stop, credit_of=10_000 * (number % 2)))
            for number in range(100)
        ]
        await asyncio.sleep(15)
        stop.set()
        await asyncio.gather(*asking)


async def test_mixed_sizes_are_read_in_small_steps(tmp_path: Path) -> None:
    """A mean says nothing: 20 000 small messages stand before 200 of 400 KB and ten of 10 MB."""
    async with limited(tmp_path) as world:
        world.queue("mixed", max_message_size_in_kilobytes=102_400, max_size_in_megabytes=5120)
        for count, size in ((20_000, 100), (200, 400_000), (10, 10 * MB), (1_000, 100)):
            await fill(world.connection, "mixed", count, size)
        receiver = await world.connection.receiver("mixed", credit=500)
        seen = 0
        while seen < 21_210:
            received = await receiver.receive(500, timeout_s=60)
            assert received
            seen += len(received)
            await receiver.complete(received)


async def test_large_scheduled_messages_become_active_one_by_one(tmp_path: Path) -> None:
    """256 messages of 10 MB fall due together: the store writes each of them again, and others go on beside them."""
    async with limited(tmp_path) as world:
        world.queue("later", max_message_size_in_kilobytes=102_400, max_size_in_megabytes=5120)
        due_ms = int((time.time() + 60 * slowness()) * 1000)
        await fill(world.connection, "later", 256, 10 * MB, due_ms=due_ms)
        await until(lambda: world.waiting("later") == 256, 240)


async def test_memory_comes_back_after_large_messages(tmp_path: Path) -> None:
    """2 000 messages of 256 KB were received and completed: what they took is returned to the system."""
    async with limited(tmp_path) as world:
        world.queue("large", max_message_size_in_kilobytes=1024)
        await fill(world.connection, "large", 2_000, 256 << 10)
        receiver = await world.connection.receiver("large", credit=100)
        seen = 0
        while seen < 2_000:
            received = await receiver.receive(100, timeout_s=60)
            seen += len(received)
            await receiver.complete(received)
