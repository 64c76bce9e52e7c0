"""Sessions: the broker's CPU for each message of many sessions, and how long the next of very many takes to find."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

from bench.brokers import PairbusBroker
from pairbus.amqp.message import Message, Properties
from pairbus.cli.admin_client import administration
from pairbus.transport import Connection, NextSession, Receiver, connect

QUEUE = "sessions"
BODY = bytes(1000)
BATCH = 100


@dataclass(frozen=True)
class Sessions:
    cpu_us: float
    "Of the broker, for each message received and settled, attaching apart."
    accept_next_ms: float
    "Median of accepting the next session when `waiting` sessions have messages."
    waiting: int


def measure_sessions(sessions: int, each: int, waiting: int, accepts: int) -> Sessions:
    with PairbusBroker() as broker:
        with administration(broker.connection_strings["bench"]) as client:
            client.create_queue(QUEUE, requires_session=True, lock_duration="PT5M", max_size_in_megabytes=5120)
        cpu_us = asyncio.run(_receive(broker, sessions, each))
        accept_ms = asyncio.run(_accept(broker, waiting, accepts))
    return Sessions(cpu_us, accept_ms, waiting)


async def _send(connection: Connection, sessions: int, each: int) -> None:
    sender = await connection.sender(QUEUE)
    batch: list[bytes] = []
    for n in range(sessions * each):
        properties = Properties(message_id=str(n), group_id=f"session {n % sessions}")
        batch.append(Message(properties=properties, data=[BODY]).encode())
        if len(batch) == BATCH:
            await sender.send_batch(batch)
            batch = []
    if batch:
        await sender.send_batch(batch)
    await sender.close()


async def _receive(broker: PairbusBroker, sessions: int, each: int) -> float:
    connection = await connect(broker.connection_strings["bench"])
    await _send(connection, sessions, each)
    receivers = [await connection.receiver(QUEUE, credit=each, session=NextSession()) for _ in range(sessions)]
    before = broker.cpu_seconds()
    await asyncio.gather(*(_empty(receiver, each) for receiver in receivers))
    used = broker.cpu_seconds() - before
    await connection.close()
    return used / (sessions * each) * 1e6


async def _empty(receiver: Receiver, count: int) -> None:
    while count:
        found = await receiver.receive(count, timeout_s=30)
        await receiver.complete(found)
        count -= len(found)


async def _accept(broker: PairbusBroker, waiting: int, accepts: int) -> float:
    connection = await connect(broker.connection_strings["bench"])
    await _send(connection, waiting, 1)
    took: list[float] = []
    for _ in range(accepts):
        started = time.perf_counter()
        await connection.receiver(QUEUE, credit=1, session=NextSession())
        took.append(time.perf_counter() - started)
    await connection.close()
    return statistics.median(took) * 1000
