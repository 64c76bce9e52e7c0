"""Peers that do what no client should, on plain sockets. Each is a coroutine that ends by itself or when cancelled."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pairbus.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, frame
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Attach, Begin, Flow, Open, SaslInit, Source, Target, Transfer
from pairbus.amqp.types import Int, Long

LOST = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)
READ_SIZE = 1 << 16


class Enemy:
    """Port, key and queue of hostile peers: some of these peers have every right to be there."""

    def __init__(self, port: int, key_name: str, key: str, queue: str) -> None:
        self.port = port
        self.queue = queue
        self._response = f"\0{key_name}\0{key}".encode()

    @asynccontextmanager
    async def dialled(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=READ_SIZE)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def hello(self, *, max_frame_size: int = 65_536) -> bytes:
        """Return SASL with the key, open, and one session: a client may send all of this at once."""
        init = SaslInit(mechanism="PLAIN", initial_response=self._response)
        opening = Open(container_id="enemy", hostname="contoso", max_frame_size=max_frame_size, channel_max=65_535)
        return (
            SASL_HEADER
            + frame(0, init.encode(), SASL_FRAME)
            + AMQP_HEADER
            + frame(0, opening.encode())
            + frame(0, begin())
        )

    def sending_link(self, handle: int, name: str = "in") -> bytes:
        target = Target(address=self.queue)
        return Attach(name=name, handle=handle, role=False, source=Source(address="x"), target=target).encode()

    def receiving_link(
        self, handle: int, address: str | None = None, name: str = "out", *, and_delete: bool = False
    ) -> bytes:
        return Attach(
            name=name,
            handle=handle,
            role=True,
            snd_settle_mode=1 if and_delete else 0,
            source=Source(address=address or self.queue),
            target=Target(address="x"),
        ).encode()


def begin() -> bytes:
    return Begin(next_outgoing_id=0, incoming_window=1 << 30, outgoing_window=1 << 30).encode()


def credit(handle: int, amount: int) -> bytes:
    return Flow(
        next_incoming_id=0,
        incoming_window=1 << 30,
        next_outgoing_id=0,
        outgoing_window=1 << 30,
        handle=handle,
        delivery_count=0,
        link_credit=amount,
    ).encode()


# ── silence ──


async def say_and_wait(enemy: Enemy, words: bytes) -> float:
    """Say this much and nothing more; after how many seconds the broker hung up."""
    began = asyncio.get_running_loop().time()
    async with enemy.dialled() as (reader, writer):
        writer.write(words)
        with suppress(*LOST):
            while await reader.read(READ_SIZE):
                pass
    return asyncio.get_running_loop().time() - began


async def say_slowly(enemy: Enemy, words: bytes, pause_s: float) -> None:
    """Send one byte at a time."""
    async with enemy.dialled() as (_, writer):
        with suppress(*LOST):
            for byte in words:
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(pause_s)


async def ask_and_never_read(enemy: Enemy, amount: int, stop: asyncio.Event) -> None:
    """Give credit for more messages than the queue holds, on four links, two of which also delete them."""
    async with enemy.dialled() as (reader, writer):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(enemy.hello())
        for handle in range(4):
            attach = enemy.receiving_link(handle, name=f"out {handle}", and_delete=handle % 2 == 1)
            writer.write(frame(0, attach) + frame(0, credit(handle, amount)))
        await stop.wait()


async def peek_and_never_read(enemy: Enemy, requests: int, stop: asyncio.Event, *, credit_of: int = 10_000) -> None:
    """Requests whose answers are a megabyte each. Without credit they are never sent; then the client does read."""
    address = f"{enemy.queue}/$management"
    request = Message(
        properties=Properties(message_id="1", reply_to="x"),
        application_properties={"operation": "com.microsoft:peek-message"},
        value={"from-sequence-number": Long(1), "message-count": Int(200)},
        has_value=True,
    ).encode()
    async with enemy.dialled() as (reader, writer):
        dropping = None if credit_of else asyncio.create_task(_drop(reader))
        if credit_of:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(enemy.hello())
        target = Target(address=address)
        asking = Attach(name="ask", handle=0, role=False, source=Source(address="x"), target=target)
        writer.write(
            frame(0, asking.encode()) + frame(0, enemy.receiving_link(1, address)) + frame(0, credit(1, credit_of))
        )
        with suppress(*LOST, asyncio.TimeoutError):
            async with asyncio.timeout(5):
                for number in range(requests):
                    writer.write(_transfer(number, request))
                    await writer.drain()
        await stop.wait()
        if dropping is not None:
            dropping.cancel()


# ── floods ──


def _transfer(number: int, payload: bytes, *, more: bool = False, handle: int = 0) -> bytes:
    head = Transfer(handle=handle, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, more=more)
    return frame(0, head.encode() + payload)


async def pour(enemy: Enemy, words: list[bytes], *, times: int = 1, greeting: bool = True) -> None:
    """Send these bytes over and over without waiting, then hang up; answers are read and dropped.

    The end of the stream, and not a pause, ends the connection: a broker on a busy machine has read all of it by then.
    """
    async with enemy.dialled() as (reader, writer):
        drop = asyncio.create_task(_drop(reader))
        with suppress(*LOST):
            if greeting:
                writer.write(enemy.hello())
            for _ in range(times):
                for word in words:
                    writer.write(word)
                    await writer.drain()
            writer.write_eof()
        await drop


async def _drop(reader: asyncio.StreamReader) -> None:
    with suppress(*LOST):
        while await reader.read(READ_SIZE):
            pass


def tiny_transfers(enemy: Enemy, count: int) -> list[bytes]:
    """Whole messages, pre-made, far beyond any credit."""
    message = Message(properties=Properties(message_id="flood"), data=[b""]).encode()
    words = b"".join(_transfer(number, message) for number in range(count))
    return [frame(0, enemy.sending_link(0)), *(words[at : at + READ_SIZE] for at in range(0, len(words), READ_SIZE))]


def endless_message(enemy: Enemy, megabytes: int) -> list[bytes]:
    """A first transfer, and then more, and more."""
    piece = bytes(60_000)
    first = _transfer(0, piece, more=True)
    later = frame(0, Transfer(handle=0, more=True).encode() + piece)
    return [frame(0, enemy.sending_link(0)), first, *[later] * (megabytes * 16)]


def attach_flood(enemy: Enemy, count: int) -> list[bytes]:
    return [frame(0, enemy.receiving_link(handle, name=f"link {handle}")) for handle in range(count)]


def channel_flood(count: int) -> list[bytes]:
    return [frame(channel, begin()) for channel in range(1, count)]


def handle_flood(enemy: Enemy) -> list[bytes]:
    return [frame(0, enemy.receiving_link(handle, name=f"h {handle}")) for handle in (1, 4_000_000_000, 1)]


def flow_flood(count: int) -> list[bytes]:
    flow = Flow(next_incoming_id=0, incoming_window=10, next_outgoing_id=0, outgoing_window=10, echo=True)
    return [frame(0, flow.encode()) * 500] * (count // 500)


def garbage(source: random.Random) -> list[bytes]:
    """Make first bytes of other protocols, and of no protocol at all."""
    noise = [source.randbytes(source.randint(1, 4000)) for _ in range(40)]
    return [
        *noise,
        *[b"AMQP" + each for each in noise[:10]],
        *[SASL_HEADER + each for each in noise[:10]],
        b"\x16\x03\x01" + source.randbytes(500),
        b"\x16\x03\x01\x40\x00" + bytes(1000),
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /orders HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n" + bytes(100_000),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"\r\n\r\n\r\n",
        b"AMQP\x00\x00\x09\x01",
        b"SSH-2.0-OpenSSH_9.0\r\n",
    ]


def oversized_frame() -> bytes:
    return (0x7FFFFFFF).to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(100_000)


async def churn(enemy: Enemy, count: int) -> None:
    """Connect and leave at once; every third says hello first, every fifth goes without a word of goodbye."""
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", enemy.port)
        if number % 3 == 0:
            writer.write(enemy.hello())
        if number % 5:
            writer.close()
        else:
            writer.transport.abort()
        if number % 20 == 0:
            await asyncio.sleep(0.01)
