"""The applications that are measured: the plain SDK and the paired client, in one process and in turns.

Run as `python -m bench.client_load JSON`, it does one piece of work and prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
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
from pairbus import SendAvailabilityPairedNamespaceOptions

BODY = b"x" * 1024
BATCH = 100
OPENERS = 20
PRIMARY_NAME = "bench"


@dataclass(frozen=True)
class ClientWork:
    """One measurement."""

    kind: str
    "alone, together, entities, divert."
    aio: bool
    primary: str
    "Connection string."
    secondary: str
    queue: str
    calls: int
    "In each round; entities, for `entities`."
    rounds: int = 1
    shape: str = "single"
    "single, list or batch."
    message_ids: bool = True
    paired: bool = True
    "For `entities`: which of the two clients."
    workers: int = 1
    "Tasks or threads that share one sender."
    backlog_queue: str = ""
    "For `divert`: where the plain SDK sends."
    spool_dir: str = ""
    "Of the paired client; none when empty."

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Block:
    """So many calls, one after the other or by several workers."""

    cpu_us: float
    "Of the whole process, for each call."
    added_us: float
    "Of that, what was not spent inside the SDK's `send_messages`: for the plain SDK, the cost of the measurement."
    per_second: float


def message(work: ClientWork, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id=f"message-{number}" if work.message_ids else None)


async def answer_of(answer: Any) -> Any:
    """What a sender of either flavour says; one for threads has done its work when it returns."""
    return await answer if isawaitable(answer) else answer


async def goods(sender: Any, work: ClientWork) -> list[Any]:
    """What the calls of one block send; everything is new, as it is in an application."""
    if work.shape == "single":
        return [message(work, number) for number in range(work.calls)]
    lists = [[message(work, number) for number in range(BATCH)] for _ in range(work.calls)]
    if work.shape == "list":
        return lists
    batches = []
    for messages in lists:
        batch = await answer_of(sender.create_message_batch())
        for one in messages:
            batch.add_message(one)
        batches.append(batch)
    return batches


async def _each(sender: Any, things: list[Any]) -> None:
    send = sender.send_messages
    for thing in things:
        answer = send(thing)
        if answer is not None:
            await answer


class Inside:
    """CPU time that was spent inside the plain SDK's senders on behalf of the paired client.

    A difference of twenty microseconds between calls of ten milliseconds is not to be seen from outside.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, client: Any, *, aio: bool) -> Any:
        """The client, whose senders are timed from now on."""
        get_sender = client.get_queue_sender

        def get_timed(path: str, **options: Any) -> Any:
            sender = get_sender(path, **options)
            sender.send_messages = self._timed_async(sender) if aio else self._timed(sender)
            return sender

        client.get_queue_sender = get_timed
        return client

    def _timed(self, sender: Any) -> Any:
        send = sender.send_messages

        def timed(what: Any, timeout: float | None = None) -> None:
            began = time.process_time()
            send(what, timeout=timeout)
            self.seconds += time.process_time() - began

        return timed

    def _timed_async(self, sender: Any) -> Any:
        send = sender.send_messages

        async def timed(what: Any, timeout: float | None = None) -> None:
            began = time.process_time()
            await send(what, timeout=timeout)
            self.seconds += time.process_time() - began

        return timed


async def block(sender: Any, work: ClientWork, *, workers: int = 1, inside: Inside | None = None) -> Block:
    things = await goods(sender, work)
    shares = [things[worker::workers] for worker in range(workers)]
    inside_before = inside.seconds if inside else 0.0
    cpu, began = time.process_time(), time.perf_counter()
    if workers == 1:
        await _each(sender, things)
    elif work.aio:
        await asyncio.gather(*(_each(sender, share) for share in shares))
    else:
        await asyncio.to_thread(_in_threads, sender, shares)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    added = cpu - (inside.seconds - inside_before) if inside else 0.0
    return Block(cpu / work.calls * 1e6, added / work.calls * 1e6, work.calls / seconds)


def _in_threads(sender: Any, shares: list[list[Any]]) -> None:
    def work(share: list[Any]) -> None:
        for thing in share:
            sender.send_messages(thing)

    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
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


def paired_client(work: ClientWork, inside: Inside | None = None) -> Any:
    kind: Any = pairbus.aio.PairedServiceBusClient if work.aio else pairbus.PairedServiceBusClient
    options: dict[str, Any] = {"backlog_queue_count": 1, "primary_name": PRIMARY_NAME}
    if work.kind == "entities":
        options["attempt_timeout"] = 30  # many connections are opened at once
    if work.spool_dir:
        options["spool_dir"] = work.spool_dir
    if inside is None:
        return kind.from_connection_strings(work.primary, work.secondary, **options)
    clients = [inside.watch(plain_client(side, aio=work.aio), aio=work.aio) for side in (work.primary, work.secondary)]
    return kind(clients[0], SendAvailabilityPairedNamespaceOptions(None, clients[1], **options))


async def alone(work: ClientWork) -> list[list[Block]]:
    """One call after the other: for each round the plain SDK's block and ours."""
    inside = Inside()
    async with AsyncExitStack() as stack:
        client = inside.watch(plain_client(work.primary, aio=work.aio), aio=work.aio)
        plain = (await entered(stack, client)).get_queue_sender(work.queue)
        ours = (await entered(stack, paired_client(work, inside))).get_queue_sender(work.queue)
        return await in_turns(work, plain, ours, inside)


async def divert(work: ClientWork) -> list[list[Block]]:
    """The primary is stopped, and the entity fails over; the plain SDK sends to the same backlog queue."""
    async with AsyncExitStack() as stack:
        client = await entered(stack, paired_client(work))
        print("paired", flush=True)
        sys.stdin.readline()  # whoever started this has stopped the primary
        client.force_failover(work.queue)
        plain = (await entered(stack, plain_client(work.secondary, aio=work.aio))).get_queue_sender(work.backlog_queue)
        ours = client.get_queue_sender(work.queue)
        return await in_turns(work, plain, ours, None)


async def in_turns(work: ClientWork, plain: Any, ours: Any, inside: Inside | None) -> list[list[Block]]:
    rounds = []
    for turn in range(work.rounds + 1):
        plain_first = turn % 2
        order = [plain, ours] if plain_first else [ours, plain]
        taken = [await block(sender, work, inside=inside) for sender in order]
        if turn:  # the first one opens connections and warms up
            rounds.append(taken if plain_first else taken[::-1])
    return rounds


async def together(work: ClientWork) -> list[list[Block]]:
    """For each round: the plain SDK alone, ours alone, several workers on one of our senders."""
    rounds = []
    async with AsyncExitStack() as stack:
        plain = (await entered(stack, plain_client(work.primary, aio=work.aio))).get_queue_sender(work.queue)
        ours = (await entered(stack, paired_client(work))).get_queue_sender(work.queue)
        for turn in range(work.rounds + 1):
            ways = [(plain, 1), (ours, 1), (ours, work.workers)]
            if turn % 2:
                ways.reverse()
            taken = [await block(sender, work, workers=workers) for sender, workers in ways]
            if turn:
                rounds.append(taken[::-1] if turn % 2 else taken)
    return rounds


async def _send_with_all(senders: list[Any], work: ClientWork) -> None:
    """One message each. The SDK waits half a second for a link to open, so that is done for several at once."""

    async def send(share: list[Any]) -> None:
        for sender in share:
            await answer_of(sender.send_messages(message(work, 0)))

    shares = [senders[opener::OPENERS] for opener in range(OPENERS)]
    if work.aio:
        await asyncio.gather(*(send(share) for share in shares))
    else:
        with ThreadPoolExecutor(OPENERS) as pool:
            list(pool.map(asyncio.run, [send(share) for share in shares]))


async def entities(work: ClientWork) -> dict[str, float]:
    """Growth of resident memory by the senders of one client: made, and after each has sent."""
    async with AsyncExitStack() as stack:
        client = await entered(stack, paired_client(work) if work.paired else plain_client(work.primary, aio=work.aio))
        options = {} if work.paired else {"keep_alive": 0}  # as ours has it; otherwise each one has a thread
        first = client.get_queue_sender(f"{work.queue}-0", **options)
        await _each(first, [message(work, number) for number in range(100)])
        gc.collect()
        before = rss_bytes(os.getpid())
        kept = [client.get_queue_sender(f"{work.queue}-{number}", **options) for number in range(1, work.calls + 1)]
        made = rss_bytes(os.getpid())
        await _send_with_all(kept, work)
        gc.collect()
        return {"made_bytes": made - before, "sent_bytes": rss_bytes(os.getpid()) - before}


KINDS = {"alone": alone, "together": together, "divert": divert, "entities": entities}


def main() -> None:
    work = ClientWork(**json.loads(sys.argv[1]))
    measured: Any = asyncio.run(KINDS[work.kind](work))
    if isinstance(measured, list):
        measured = [[asdict(one) for one in turn] for turn in measured]
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
