"""The end of a worker: signals, a kill, a loop that ends, a client that is faulted; and the bytes that it holds."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage

import pairbus.aio
from pairbus.client.errors import ClientClosed
from pairbus.client.processing import feed
from pairbus.errors import PairbusError
from pairbus.testing.broker_thread import BrokerThread
from tests.processing.desk import Desk, body_of, until
from tests.scripted import ScriptedEndpoint
from tests.sdk.flavours import in_thread


class Worker:
    """A process with a processor, and what it printed."""

    def __init__(self, desk: Desk, queue: str, nap_ms: int) -> None:
        command = [desk.flavour, desk.broker.connection_string(), queue, str(nap_ms)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.processing.worker", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.split())

    def ids(self, word: str) -> list[str]:
        return [line[1] for line in list(self.lines) if line[0] == word]

    def join(self) -> int:
        code = self.process.wait(30)
        self._reader.join(10)
        return code


@contextmanager
def worker_of(desk: Desk, queue: str, nap_ms: int) -> Iterator[Worker]:
    worker = Worker(desk, queue, nap_ms)
    try:
        yield worker
    finally:
        worker.process.kill()
        worker.process.wait(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_a_worker_when_its_handlers_have_ended(desk: Desk, number: signal.Signals) -> None:
    """Every message that was begun is completed, every other one can be received at once; old handlers are back."""
    queue = desk.queue()
    bodies = [str(index) for index in range(40)]
    await desk.send(queue, *bodies)
    with worker_of(desk, queue, nap_ms=200) as worker:
        await until(lambda: len(worker.ids("ended")) >= 4, "some are handled", within_s=30)
        worker.process.send_signal(number)
        assert await in_thread(worker.join) == 0
        assert worker.process.stderr is not None
        assert worker.process.stderr.read() == ""
        assert worker.lines[-1] == ["returned", "True"], "the handler of the signal is that from before"
        assert set(worker.ids("began")) == set(worker.ids("ended"))
    left = await desk.take(queue, 40 - len(worker.ids("ended")))
    assert Counter(map(body_of, left)) + Counter(worker.ids("ended")) == Counter(bodies)


async def test_second_signal_ends_a_worker_whose_handler_hangs(desk: Desk) -> None:
    queue = desk.queue()
    await desk.send(queue, "a")
    with worker_of(desk, queue, nap_ms=600_000) as worker:
        await until(lambda: worker.ids("began"), "the handler runs", within_s=30)
        worker.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        worker.process.send_signal(signal.SIGTERM)
        assert await in_thread(worker.join) == 0
    assert [body_of(each) for each in await desk.take(queue, 1)] == ["a"]


async def test_killed_worker_loses_nothing(desk: Desk) -> None:
    """SIGKILL in the middle: what was not completed comes again when its lock ends."""
    queue = desk.queue(lock_duration=timedelta(seconds=30))
    bodies = [str(index) for index in range(60)]
    await desk.send(queue, *bodies)
    with worker_of(desk, queue, nap_ms=20) as worker:
        await until(lambda: len(worker.ids("ended")) >= 10, "some are handled", within_s=30)
        worker.process.kill()
        await in_thread(worker.join)
    desk.broker.clock().advance(31)
    seen: list[str] = []
    async with desk.processor(queue, lambda message: seen.append(str(message)), max_concurrent_calls=8):
        await until(lambda: set(seen) | set(worker.ids("ended")) == set(bodies), "all are handled")
    again = set(seen) & set(worker.ids("ended"))
    assert len(again) <= 8, "only those whose completion was under way are handled again"
    assert await desk.take(queue, 0) == []


async def test_run_forever_works_in_a_thread_without_signals(desk: Desk) -> None:
    queue, seen = desk.queue(), []
    await desk.send(queue, "a")
    processor = desk.new_processor(queue, lambda message: seen.append(str(message)))
    if desk.is_aio:
        await processor.start()
        running = asyncio.create_task(processor.run_forever())
    else:
        await in_thread(processor.start)
        running = asyncio.create_task(in_thread(processor.run_forever))
    await until(lambda: seen == ["a"], "the message")
    await desk.call(processor.stop)
    async with asyncio.timeout(20):
        await running


def test_run_forever_of_asyncio_works_in_a_thread(broker: BrokerThread) -> None:
    queue, seen = broker.create_queue("in-a-thread"), []

    async def handle(message: Any) -> None:
        seen.append(str(message))

    async def main() -> None:
        client = pairbus.aio.ServiceBusClient.from_connection_string(broker.connection_string())
        async with client, client.get_queue_processor(queue, handle) as processor:
            running = asyncio.create_task(processor.run_forever())
            await asyncio.sleep(0.1)
            await processor.stop()
            await running

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


async def test_faulted_client_ends_its_processors(desk: Desk) -> None:
    """`run_forever` raises why."""
    queue = desk.queue()
    client = desk.new_client()
    processor = client.get_queue_processor(queue, desk.handler(lambda message: None))
    await desk.call(processor.start)
    running = asyncio.create_task(desk.call(processor.run_forever))
    await asyncio.sleep(0.1)
    await desk.call(client._primary.close)
    with pytest.raises(PairbusError, match="closed by somebody else"):
        await running
    assert "ended" in repr(processor)
    await desk.call(client.close)


async def test_processor_of_a_closed_client_is_refused(desk: Desk) -> None:
    client = desk.new_client()
    await desk.call(client.close)
    with pytest.raises(ClientClosed):
        client.get_queue_processor("orders", desk.handler(lambda message: None))


def test_messages_of_a_loop_that_ended_are_given_back(broker: BrokerThread) -> None:
    """`asyncio.run` returned, and nobody stopped the processor."""
    queue = broker.create_queue("loop-ended")
    clients: list[Any] = []
    began: list[str] = []

    async def handle(message: Any) -> None:
        began.append(str(message))
        await asyncio.sleep(60)

    async def main() -> None:
        client = pairbus.aio.ServiceBusClient.from_connection_string(broker.connection_string())
        clients.append(client)
        await client.get_queue_sender(queue).send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        processor = client.get_queue_processor(queue, handle)
        clients.append(processor)
        await processor.start()
        await until(lambda: began, "the handler runs")

    asyncio.run(main())
    found = asyncio.run(Desk(broker, "aio").take(queue, 2))
    assert sorted(map(body_of, found)) == ["a", "b"]


async def test_token_credential_is_asked_in_the_loop_to_which_it_belongs() -> None:
    """Credentials of azure-identity for asyncio keep connections of the loop in which they were used first."""
    loops: list[asyncio.AbstractEventLoop] = []

    class Credential:
        async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            loops.append(asyncio.get_running_loop())
            return AccessToken("token", int(time.time()) + 3600)

    async def handle(message: Any) -> None: ...

    async with ScriptedEndpoint() as namespace:
        client = pairbus.aio.ServiceBusClient(f"127.0.0.1:{namespace.port}", Credential(), use_tls=False)
        async with client, client.get_queue_processor("orders", handle):
            await until(lambda: namespace.tokens, "the link of the processor is opened")
    assert set(loops) == {asyncio.get_running_loop()}


async def test_bytes_of_held_messages_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large messages behind slow handlers: fewer handlers run than may, because of the bytes."""
    monkeypatch.setattr(feed, "HELD_BYTES_MAX", 2 << 20)
    queue, most = desk.queue(), [0]
    gate = threading.Event()

    async def wait() -> None:
        await until(gate.is_set, "the test opens the gate", within_s=60)

    def behave(message: Any) -> Any:
        most[0] = max(most[0], processor._processing.held_bytes)
        return wait() if desk.is_aio else gate.wait(60)

    sender = desk.client.get_queue_sender(queue)
    for _ in range(40):
        await desk.call(sender.send_messages, ServiceBusMessage("x" * 200_000))
    processor = desk.new_processor(queue, behave, max_concurrent_calls=40)
    await desk.call(processor.start)
    await until(lambda: len(desk.running) >= 8, "handlers run", within_s=30)
    await asyncio.sleep(0.5)  # nothing more comes: a wait that ended early could only miss a failure
    gate.set()
    await until(lambda: processor.counts.completed == 40, "all are handled", within_s=60)
    await desk.call(processor.stop)
    assert 1_000_000 < most[0] <= (2 << 20) + 200_000
    assert await desk.take(queue, 0) == []
