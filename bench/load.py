"""The load client: one process, one connection, on `pairbus.transport`; the same for every measured broker.

Run as `python -m bench.load JSON`, it does one piece of work and prints one line of JSON:
    {"count": …, "seconds": …, "client_cpu_seconds": …}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from pairbus.amqp.message import Header, Message, Properties
from pairbus.transport import Endpoint, connect
from pairbus.transport.connection.client_connection import ClientConnection
from pairbus.transport.errors import NotReady
from pairbus.transport.tokens.credential import Plain

BODY_SIZE = 1024
STALL_S = 60.0
PAUSE_S = 1.0
TURN = 64
BATCH = 100


@dataclass(frozen=True)
class Work:
    """A piece of work for the load client."""

    kind: str
    "Name in `KINDS`."
    address: str
    count: int
    connection_string: str = ""
    "Connection string of a namespace; for a broker without `$cbs`, the next four fields are given instead."
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    outstanding: int = 500
    "Limit of sends without an answer, and credit of a receiver."
    range_size: int = 250
    subjects: tuple[str, ...] = ()
    "Subjects of the messages, used in turns."

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def payload(subject: str | None = None) -> bytes:
    """Return a durable message of 1 KB with a message id, as applications send them."""
    properties = Properties(message_id="0123456789abcdef", subject=subject)
    return Message(header=Header(durable=True), properties=properties, data=[b"x" * BODY_SIZE]).encode()


async def connected(work: Work) -> ClientConnection:
    if work.connection_string:
        return await connect(work.connection_string)
    endpoint = Endpoint(host=work.host, port=work.port, tls=False, hostname=work.host)
    return await connect(endpoint, credential=Plain(work.user, work.password))


async def _send(connection: ClientConnection, work: Work) -> None:
    sender = await connection.sender(work.address)
    messages = [payload(subject) for subject in work.subjects or (None,)]
    futures: deque[asyncio.Future[None]] = deque()
    for number in range(work.count):
        message = messages[number % len(messages)]
        if number % TURN == 0:
            await asyncio.sleep(0)  # lets the messages so far leave, so that the broker works on them meanwhile
        while len(futures) >= work.outstanding:
            await futures.popleft()
        try:
            futures.append(sender.send_nowait(message, timeout_s=STALL_S))
        except NotReady:
            await sender.ready(STALL_S)
            futures.append(sender.send_nowait(message, timeout_s=STALL_S))
    while futures:
        await futures.popleft()


async def _send_sequential(connection: ClientConnection, work: Work) -> None:
    sender = await connection.sender(work.address)
    message = payload()
    for _ in range(work.count):
        await sender.send(message, timeout_s=STALL_S)


async def _send_batches(connection: ClientConnection, work: Work) -> None:
    sender = await connection.sender(work.address)
    message = payload()
    sending = deque[asyncio.Task[None]]()
    for at in range(0, work.count, BATCH):
        batch = [message] * min(BATCH, work.count - at)
        sending.append(asyncio.create_task(sender.send_batch(batch, timeout_s=STALL_S)))
        while len(sending) >= work.outstanding // BATCH:
            await sending.popleft()
    await asyncio.gather(*sending)


async def _send_and_receive(connection: ClientConnection, work: Work) -> None:
    await asyncio.gather(_send(connection, work), _receive_ranges(connection, work))


async def _receive_ranges(connection: ClientConnection, work: Work) -> None:
    """Receive and settle in ranges. Both overlap, as in the syphon: while one range is settled the next is filled."""
    receiver = await connection.receiver(work.address, credit=2 * work.outstanding)
    left, settling = work.count, deque[asyncio.Task[None]]()
    held: list[Any] = []
    while left:
        messages = await receiver.receive(min(work.range_size, left), STALL_S)
        if not messages:
            raise TimeoutError(f"{left} messages did not come within {STALL_S} s")
        left -= len(messages)
        held += messages
        if len(held) >= work.range_size or not left:
            settling.append(asyncio.create_task(receiver.complete(held, timeout_s=STALL_S)))
            held = []
            while len(settling) > 4:
                await settling.popleft()
    await asyncio.gather(*settling)


async def _receive_singly(connection: ClientConnection, work: Work) -> None:
    receiver = await connection.receiver(work.address, credit=work.outstanding)
    left, settling = work.count, deque[asyncio.Task[None]]()
    while left:
        messages = await receiver.receive(min(work.range_size, left), STALL_S)
        if not messages:
            raise TimeoutError(f"{left} messages did not come within {STALL_S} s")
        left -= len(messages)
        for message in messages:
            settling.append(asyncio.create_task(receiver.complete([message], timeout_s=STALL_S)))
        while len(settling) > work.outstanding:
            await settling.popleft()
    await asyncio.gather(*settling)


KINDS = {
    "send": _send,
    "send-sequential": _send_sequential,
    "send-batches": _send_batches,
    "send+receive": _send_and_receive,
    "receive-ranges": _receive_ranges,
    "receive-singly": _receive_singly,
}


async def _run(work: Work) -> None:
    async with await connected(work) as connection:
        cpu, began = time.process_time(), time.perf_counter()
        await KINDS[work.kind](connection, work)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        # RabbitMQ answers a settlement before it is done: if the session ended at once, messages would come back.
        await asyncio.sleep(PAUSE_S)
    print(json.dumps({"count": work.count, "seconds": seconds, "client_cpu_seconds": cpu}))


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    try:
        import uvloop
    except ImportError:
        asyncio.run(_run(work))
    else:
        uvloop.run(_run(work))


if __name__ == "__main__":
    main()
