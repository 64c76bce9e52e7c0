"""Sessions: the broker's CPU for each message of many sessions, and the time to accept the next of very many."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from rich.table import Table

from bench.brokers import PairbusBroker
from bench.procstat import fine_cpu_seconds
from pairbus.amqp.message import Message, Properties
from pairbus.cli.admin.admin_client import administration
from pairbus.transport import ClientConnection, NextSession, Receiver, connect

QUEUE = "sessions"
BODY = bytes(1000)
BATCH = 100


CPU_US_WANTED = 40.0
ACCEPT_MS_WANTED = 5.0


@dataclass(frozen=True)
class Sessions:
    """CPU of the broker, and the time that a receiver waits for its session."""

    sessions: int
    each: int
    cpu_us: float
    "CPU for each message that many receivers at once receive and settle, without attaching."
    one_by_one_us: float
    "CPU for each message with one receiver after the other, without attaching and detaching."
    scattered_us: float
    "CPU as before, for sessions that were sent in turns, so that each is spread over many pages of the store."
    attach_us: float
    "CPU of a receiver that attaches and detaches without a message."
    accept_next_ms: float
    "Median of accepting the next session when `waiting` sessions have messages."
    accept_next_cpu_us: float
    waiting: int


def measure_sessions(sessions: int, each: int, waiting: int, accepts: int) -> Sessions:
    with PairbusBroker() as broker:
        with administration(broker.connection_string) as client:
            client.create_queue(QUEUE, requires_session=True, lock_duration="PT5M", max_size_in_megabytes=5120)
        cpu_us = asyncio.run(_all_at_once(broker, sessions, each))
        one_by_one_us, attach_us = asyncio.run(_one_by_one(broker, sessions, each, in_turns=False))
        scattered_us, _ = asyncio.run(_one_by_one(broker, sessions, each, in_turns=True))
        accept_ms, accept_us = asyncio.run(_accept(broker, waiting, accepts))
    return Sessions(sessions, each, cpu_us, one_by_one_us, scattered_us, attach_us, accept_ms, accept_us, waiting)


async def _send(connection: ClientConnection, sessions: int, each: int, *, in_turns: bool = True) -> None:
    """Send messages of the sessions in turns, or all of one session before those of the next."""
    sender = await connection.sender(QUEUE)
    batch: list[bytes] = []
    for n in range(sessions * each):
        properties = Properties(message_id=str(n), group_id=f"session {n % sessions if in_turns else n // each}")
        batch.append(Message(properties=properties, data=[BODY]).encode())
        if len(batch) == BATCH:
            await sender.send_batch(batch)
            batch = []
    if batch:
        await sender.send_batch(batch)
    await sender.close()


async def _all_at_once(broker: PairbusBroker, sessions: int, each: int) -> float:
    async with await connect(broker.connection_string) as connection:
        await _send(connection, sessions, each)
        receivers = [await connection.receiver(QUEUE, credit=each, session=NextSession()) for _ in range(sessions)]
        before = fine_cpu_seconds(broker.pid)
        await asyncio.gather(*(_empty(receiver, each) for receiver in receivers))
        used = fine_cpu_seconds(broker.pid) - before
    return used / (sessions * each) * 1e6


async def _one_by_one(broker: PairbusBroker, sessions: int, each: int, *, in_turns: bool) -> tuple[float, float]:
    """Return the CPU for a message, and for attaching and detaching, in µs."""
    async with await connect(broker.connection_string) as connection:
        await _send(connection, sessions, each, in_turns=in_turns)
        before = fine_cpu_seconds(broker.pid)
        for _ in range(sessions):
            receiver = await connection.receiver(QUEUE, credit=each, session=NextSession())
            await receiver.close()
        attached = fine_cpu_seconds(broker.pid)
        for _ in range(sessions):
            receiver = await connection.receiver(QUEUE, credit=each, session=NextSession())
            await _empty(receiver, each)
            await receiver.close()
        after = fine_cpu_seconds(broker.pid)
    attaching = attached - before
    return (after - attached - attaching) / (sessions * each) * 1e6, attaching / sessions * 1e6


async def _empty(receiver: Receiver, count: int) -> None:
    while count:
        found = await receiver.receive(count, timeout_s=30)
        await receiver.complete(found)
        count -= len(found)


async def _accept(broker: PairbusBroker, waiting: int, accepts: int) -> tuple[float, float]:
    """Return the time in ms, and the broker's CPU in µs, to accept one session."""
    async with await connect(broker.connection_string) as connection:
        await _send(connection, waiting, 1)
        took: list[float] = []
        cpu = fine_cpu_seconds(broker.pid)
        for _ in range(accepts):
            started = time.perf_counter()
            await connection.receiver(QUEUE, credit=1, session=NextSession())
            took.append(time.perf_counter() - started)
        cpu = fine_cpu_seconds(broker.pid) - cpu
    return statistics.median(took) * 1000, cpu / accepts * 1e6


def sessions_table(found: Sessions) -> Table:
    table = Table(f"{found.sessions:,} sessions of {found.each} messages", "measured", "wanted")
    wanted = f"≤ {CPU_US_WANTED:.0f} µs"
    table.add_row("CPU a message, all receivers at once", f"{found.cpu_us:.1f} µs", wanted)
    table.add_row("CPU a message, one receiver after another", f"{found.one_by_one_us:.1f} µs", wanted)
    table.add_row("the same, sessions sent in turns", f"{found.scattered_us:.1f} µs", "reported")
    table.add_row("CPU of attaching and detaching", f"{found.attach_us:.0f} µs", "reported")
    table.add_row(
        f"accept-next, {found.waiting:,} sessions", f"{found.accept_next_ms:.2f} ms", f"≤ {ACCEPT_MS_WANTED:.0f} ms"
    )
    table.add_row("CPU of it", f"{found.accept_next_cpu_us:.0f} µs", "reported")
    return table
