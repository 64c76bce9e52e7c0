"""Applications that are measured: the plain SDK and the paired client, in one process and in turns.

Run as `python -m bench.client_load JSON`, it does one piece of work and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from inspect import isawaitable
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

import pairbus
import pairbus.aio
from bench.procstat import rss_bytes
from pairbus.auth.connection_string import ConnectionString
from pairbus.transport.loops import run

BODY = b"x" * 1024
LIST = 100
OPENERS = 20
PRIMARY_NAME = "bench"
AWAY = "away"
"Queue whose messages are diverted."
CALLS_MAX = 8000  # calls of a block: their messages are made before the clock starts
CALLS_LEAST = 10  # calls of each worker in a block: at its beginning and end fewer workers are active
UVLOOP, STOCK = "uvloop", "asyncio"


@dataclass(frozen=True)
class Way:
    """A way to send, which a row compares with another."""

    client: str
    "Client: plain, ours, spooled, which is the paired client with an empty spool, or single."
    workers: int = 1
    "Tasks or threads that share one sender."
    shape: str = "single"
    "single or list."
    queue: str = "orders"

    @property
    def messages(self) -> int:
        """Number of messages of one call."""
        return LIST if self.shape == "list" else 1


@dataclass(frozen=True)
class ClientWork:
    """A measurement."""

    kind: str
    "turns or entities."
    aio: bool
    primary: str
    "Connection string of the primary."
    secondary: str
    loop: str = UVLOOP
    ways: tuple[Way, ...] = ()
    rounds: int = 1
    block_s: float = 0.15
    "Approximate length of a block."
    entities: int = 0
    paired: bool = True
    "True to measure the paired client, False for the plain SDK; only for the kind `entities`."
    spool_dir: str = ""
    "Folder of the spool of the client `spooled`."

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ClientWork:
        told = json.loads(text)
        return cls(**{**told, "ways": tuple(Way(**way) for way in told["ways"])})


@dataclass(frozen=True)
class Block:
    """Measured values of some calls, one after the other or by several workers."""

    cpu_us: float
    "CPU of the whole process for each message."
    per_second: float
    "Messages a second."


def message(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id=f"message-{number}")


def goods(way: Way, calls: int) -> list[Any]:
    """Return messages or lists for the calls of one block; all of them are new, as in an application."""
    if way.shape == "single":
        return [message(number) for number in range(calls)]
    return [[message(number) for number in range(LIST)] for _ in range(calls)]


async def answer_of(answer: Any) -> Any:
    """Await the answer of an async sender; return that of a sync one."""
    return await answer if isawaitable(answer) else answer


async def block(sender: Any, way: Way, calls: int, *, aio: bool) -> Block:
    things = goods(way, calls)
    shares = [things[worker :: way.workers] for worker in range(way.workers)]
    cpu, began = time.process_time(), time.perf_counter()
    if aio:
        await asyncio.gather(*(_each(sender, share) for share in shares))
    else:
        _in_threads(sender, shares)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    sent = calls * way.messages
    return Block(cpu / sent * 1e6, sent / seconds)


async def _each(sender: Any, things: list[Any]) -> None:
    for thing in things:
        await sender.send_messages(thing)


def _each_here(sender: Any, things: list[Any]) -> None:
    for thing in things:
        sender.send_messages(thing)


def _in_threads(sender: Any, shares: list[list[Any]]) -> None:
    if len(shares) == 1:
        _each_here(sender, shares[0])
        return
    threads = [threading.Thread(target=_each_here, args=(sender, share)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def entered(stack: AsyncExitStack, thing: Any) -> Any:
    if hasattr(thing, "__aenter__"):
        return await stack.enter_async_context(thing)
    return stack.enter_context(thing)


def plain_client(connection_string: str, *, aio: bool) -> Any:
    kind: Any = AsyncServiceBusClient if aio else ServiceBusClient
    return kind.from_connection_string(connection_string)


def single_client(connection_string: str, *, aio: bool) -> Any:
    kind: Any = pairbus.aio.ServiceBusClient if aio else pairbus.ServiceBusClient
    return kind.from_connection_string(connection_string)


def paired_client(primary: str, secondary: str, *, aio: bool, **options: Any) -> Any:
    kind: Any = pairbus.aio.PairedServiceBusClient if aio else pairbus.PairedServiceBusClient
    return kind.from_connection_strings(primary, secondary, backlog_queue_count=1, primary_name=PRIMARY_NAME, **options)


async def in_turns(work: ClientWork) -> list[list[Block]]:
    """Measure a block of each way in each round; every other round has the opposite order."""
    async with AsyncExitStack() as stack:
        clients = {
            name: await entered(stack, _client(work, name)) for name in dict.fromkeys(way.client for way in work.ways)
        }
        if any(way.queue == AWAY for way in work.ways):
            clients["ours"].force_failover(AWAY)
        senders = [clients[way.client].get_queue_sender(way.queue) for way in work.ways]
        # The first blocks open connections and warm up; they also tell how many calls a block is to have.
        calls = [4 * way.workers for way in work.ways]
        rounds = []
        for turn in range(work.rounds + 2):
            taken: dict[int, Block] = {}
            for place in range(len(senders))[:: -1 if turn % 2 else 1]:
                way = work.ways[place]
                taken[place] = one = await block(senders[place], way, calls[place], aio=work.aio)
                wanted = int(one.per_second / way.messages * work.block_s)
                calls[place] = max(min(wanted, CALLS_MAX // way.messages, 50 * calls[place]), CALLS_LEAST * way.workers)
            if turn > 1:
                rounds.append([taken[place] for place in range(len(senders))])
        return rounds


def _client(work: ClientWork, name: str) -> Any:
    if name == "plain":
        return plain_client(work.primary, aio=work.aio)
    if name == "single":
        return single_client(work.primary, aio=work.aio)
    spool = {"spool_dir": work.spool_dir} if name == "spooled" else {}
    return paired_client(work.primary, work.secondary, aio=work.aio, **spool)


# ── memory and connections ──


async def _send_with_all(senders: list[Any], *, aio: bool) -> None:
    """Send a message with each sender. Several do so at once, because the SDK takes half a second to open a link."""

    async def send(share: list[Any]) -> None:
        for sender in share:
            await answer_of(sender.send_messages(message(0)))

    shares = [senders[opener::OPENERS] for opener in range(OPENERS)]
    if aio:
        await asyncio.gather(*(send(share) for share in shares))
    else:
        with ThreadPoolExecutor(OPENERS) as pool:
            list(pool.map(asyncio.run, [send(share) for share in shares]))


def _connections(connection_string: str) -> int:
    """Count this process's connections to the port of the connection string."""
    port, found = ConnectionString.parse(connection_string).port, 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                found += one.getpeername()[1] == port
        except (OSError, IndexError):
            pass  # no socket, or one without a peer
    return found


async def entities(work: ClientWork) -> dict[str, int]:
    """Return how much memory and how many connections the senders of one client have, after each has sent."""
    async with AsyncExitStack() as stack:
        client = await entered(stack, _client(work, "ours" if work.paired else "plain"))
        first = client.get_queue_sender("many-0")
        for number in range(100):
            await answer_of(first.send_messages(message(number)))
        gc.collect()
        before = rss_bytes(os.getpid())
        kept = [client.get_queue_sender(f"many-{number}") for number in range(1, work.entities + 1)]
        await _send_with_all(kept, aio=work.aio)
        gc.collect()
        return {
            "bytes": rss_bytes(os.getpid()) - before,
            "primary": _connections(work.primary),
            "secondary": _connections(work.secondary),
        }


async def _measured(work: ClientWork) -> Any:
    if work.kind == "entities":
        return await entities(work)
    return [[asdict(one) for one in turn] for turn in await in_turns(work)]


def main() -> None:
    work = ClientWork.from_json(sys.argv[1])
    if work.loop == STOCK:
        sys.modules["uvloop"] = None  # type: ignore[assignment]  # as on a machine where it is not installed
    print(json.dumps(run(_measured(work))), flush=True)


if __name__ == "__main__":
    main()
