"""A processor against the plain SDK, in one run: messages a second, and CPU of the client for each message.

Every row is measured in a process of its own, near the broker and at a round trip of 5 ms.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from azure.servicebus import ServiceBusClient as SdkClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus import aio as sdk_aio
from rich.table import Table

import pairbus
import pairbus.aio
from bench.brokers import PairbusBroker
from pairbus.cli.admin.admin_client import administration

ROUND_TRIP_MS = 5.0
HANDLERS, SESSIONS = 32, 8
BODY = bytes(1000)
BATCH = 100
DEADLINE_S = 120.0
PLAIN, PROCESSOR, SESSION_PROCESSOR = "sdk", "processor", "session processor"


@dataclass(frozen=True)
class Row:
    """One way to receive and complete, compared with the plain SDK of the same flavour."""

    name: str
    way: str
    aio: bool
    count: int
    near: float | None = None
    far: float | None = None
    "Least wanted ratios near the broker and at 5 ms; None: reported only."


ROWS = (
    Row("plain SDK, batches of 100, asyncio", PLAIN, True, 1500),
    Row("plain SDK, batches of 100, threads", PLAIN, False, 1500),
    Row("processor, 32 handlers, asyncio", PROCESSOR, True, 15_000, 8.0, 25.0),
    Row("processor, 32 handlers, threads", PROCESSOR, False, 15_000, 4.0),
    Row("processor, 8 sessions, asyncio", SESSION_PROCESSOR, True, 4000),
)


@dataclass(frozen=True)
class Rate:
    """The result of one row at one distance."""

    name: str
    way: str
    aio: bool
    far: bool
    per_s: float
    cpu_us: float
    "CPU of the client for each message."
    ratio: float = 0.0
    "Messages a second, compared with the plain SDK of the same flavour at the same distance."


def measure_processor() -> list[Rate]:
    rates: list[Rate] = []
    with PairbusBroker() as broker:
        with administration(broker.connection_string) as admin:
            admin.create_queue("plain", max_size_in_megabytes=5120)
            admin.create_queue("sessions", requires_session=True, max_size_in_megabytes=5120)
        asyncio.run(_warm(broker.connection_string))
        for far in (False, True):
            with _distance(broker.connection_string, far) as connection_string:
                for row in ROWS:
                    rates.append(_measured(row, broker.connection_string, connection_string, far, rates))
    return rates


def _measured(row: Row, direct: str, connection_string: str, far: bool, before: list[Rate]) -> Rate:
    count = row.count if not (far and row.way == PLAIN) else row.count // 5
    work = [row.way, "aio" if row.aio else "sync", str(count), direct, connection_string]
    done = subprocess.run(
        [sys.executable, "-m", "bench.processor", *work], stdout=subprocess.PIPE, timeout=DEADLINE_S, check=True
    )
    per_s, cpu_us = json.loads(done.stdout)
    plain = [each for each in before if each.way == PLAIN and each.aio == row.aio and each.far == far]
    return Rate(row.name, row.way, row.aio, far, per_s, cpu_us, per_s / plain[0].per_s if plain else 1.0)


@contextmanager
def _distance(connection_string: str, far: bool) -> Iterator[str]:
    """Return the way to the broker, through a proxy that makes round trips longer if `far`."""
    if not far:
        yield connection_string
        return
    port = connection_string.split("127.0.0.1:", 1)[1].split(";", 1)[0].rstrip("/")
    command = [sys.executable, "-m", "bench.distance", port, str(ROUND_TRIP_MS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None and proxy.stdin is not None
        yield connection_string.replace(f"127.0.0.1:{port}", f"127.0.0.1:{int(proxy.stdout.readline())}")
        proxy.stdin.close()


async def _warm(connection_string: str) -> None:
    async with pairbus.aio.ServiceBusClient.from_connection_string(connection_string) as client:
        await client.get_queue_sender("plain").send_messages(ServiceBusMessage("warm"))
        async with client.get_queue_receiver("plain") as receiver:
            for message in await receiver.receive_messages(1, max_wait_time=5):
                await receiver.complete_message(message)


async def _fill(connection_string: str, queue: str, count: int) -> None:
    async with pairbus.aio.ServiceBusClient.from_connection_string(connection_string) as client:
        sender = client.get_queue_sender(queue)
        for first in range(0, count, BATCH):
            session = f"s{first // BATCH % SESSIONS}" if queue == "sessions" else None
            batch = [ServiceBusMessage(BODY, session_id=session) for _ in range(min(BATCH, count - first))]
            await sender.send_messages(batch)


# ── the process that is measured ──


async def _plain_aio(connection_string: str, count: int) -> tuple[float, float]:
    client = sdk_aio.ServiceBusClient.from_connection_string(connection_string)
    async with client, client.get_queue_receiver("plain") as receiver:
        done, start = 0, _now()
        while done < count:
            for message in await receiver.receive_messages(BATCH, max_wait_time=10):
                await receiver.complete_message(message)
                done += 1
        return _since(start, count)


def _plain_sync(connection_string: str, count: int) -> tuple[float, float]:
    with SdkClient.from_connection_string(connection_string) as client, client.get_queue_receiver("plain") as receiver:
        done, start = 0, _now()
        while done < count:
            for message in receiver.receive_messages(BATCH, max_wait_time=10):
                receiver.complete_message(message)
                done += 1
        return _since(start, count)


async def _processor_aio(connection_string: str, queue: str, count: int) -> tuple[float, float]:
    async def handle(message: Any) -> None: ...

    async with pairbus.aio.ServiceBusClient.from_connection_string(connection_string) as client:
        start = _now()
        async with client.get_queue_processor(queue, handle, max_concurrent_calls=HANDLERS) as processor:
            while processor.counts.completed < count:  # noqa: ASYNC110 - the last completion sets no event
                await asyncio.sleep(0.005)
            return _since(start, count)


def _processor_sync(connection_string: str, queue: str, count: int) -> tuple[float, float]:
    def handle(message: Any) -> None: ...

    with pairbus.ServiceBusClient.from_connection_string(connection_string) as client:
        start, pause = _now(), threading.Event()
        with client.get_queue_processor(queue, handle, max_concurrent_calls=HANDLERS) as processor:
            while processor.counts.completed < count:
                pause.wait(0.005)
            return _since(start, count)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float], count: int) -> tuple[float, float]:
    """Return messages a second, and microseconds of CPU for each message."""
    now = _now()
    return count / (now[0] - start[0]), (now[1] - start[1]) / count * 1e6


def main() -> None:
    way, flavour, text, direct, connection_string = sys.argv[1:]
    count, queue = int(text), "sessions" if way == SESSION_PROCESSOR else "plain"
    asyncio.run(_fill(direct, queue, count))
    if way == PLAIN:
        measured = (
            asyncio.run(_plain_aio(connection_string, count))
            if flavour == "aio"
            else _plain_sync(connection_string, count)
        )
    elif flavour == "aio":
        measured = asyncio.run(_processor_aio(connection_string, queue, count))
    else:
        measured = _processor_sync(connection_string, queue, count)
    print(json.dumps(measured))


def processor_table(rates: list[Rate]) -> Table:
    table = Table(title="Processor against the plain SDK, messages of 1 KB")
    for column in ("way", "distance", "messages a second", "ratio", "wanted", "CPU us a message"):
        table.add_column(column, justify="left" if column == "way" else "right")
    wanted = {row.name: row for row in ROWS}
    for rate in rates:
        row = wanted[rate.name]
        least = row.far if rate.far else row.near
        table.add_row(
            rate.name,
            f"{ROUND_TRIP_MS:g} ms" if rate.far else "near",
            f"{rate.per_s:,.0f}",
            f"{rate.ratio:.1f}",
            "" if least is None else f"{least:g}",
            f"{rate.cpu_us:.0f}",
        )
    return table


if __name__ == "__main__":
    main()
