"""Clients that leave, stall, flood or send nonsense: what they cost, and that they lock and lose no message."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from pairbus.broker import NamespaceOptions, QueueDescription
from pairbus.broker.budget import MB, MemoryBudget
from pairbus.broker.rest import answers, body_reading, waiting
from tests.faults.conftest import until
from tests.rest.world import JSON_BATCH, HttpWorld, http_world

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(autouse=True)
def calm_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client's mistake, or its absence, is no error of the broker."""
    yield
    assert [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@asynccontextmanager
async def connected(world: HttpWorld, receive_buffer: int | None = None) -> AsyncIterator[Connection]:
    raw = socket.socket()
    if receive_buffer is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", world.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(world: HttpWorld, method: str, path: str, *lines: str) -> bytes:
    text = "\r\n".join([f"{method} /{path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: {world.token()}", *lines])
    return f"{text}\r\n\r\n".encode("latin-1")


async def status_line(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.readline()


# ── clients that leave ──


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_client_that_leaves_while_it_waits_locks_nothing(world: HttpWorld, method: str) -> None:
    """A message that comes later goes to others, and is not counted as delivered."""
    async with connected(world) as (_, writer):
        writer.write(head(world, method, "orders/messages/head?timeout=60"))
        await until(lambda: len(world.namespace.waiting_requests) == 1)
    await until(lambda: _http_connections(world) == 0)
    await world.send("orders")
    assert (world.waiting(), world.locks()) == (1, 0)
    await until(lambda: len(world.namespace.waiting_requests) == 0)
    assert (await world.lock("orders")).broker["DeliveryCount"] == 1


def _http_connections(world: HttpWorld) -> int:
    """Connections of HTTP, but for those that the session of the world keeps."""
    kept = 0 if world.session.connector is None else len(getattr(world.session.connector, "_conns", {}))
    return world.broker._ports["contoso"].connections()["http"] - kept


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_message_whose_answer_cannot_be_written_is_free_again(world: HttpWorld, method: str) -> None:
    """The client takes no bytes of a large message and leaves: at once the lock is released, and no delivery counted.

    In receive-and-delete the message was deleted before it was sent: that is what at most once means.
    """
    await world.namespace.create_queue(QueueDescription("large", max_message_size_kb=100 * 1024))
    await world.send("large", b"x" * (16 * MB))
    async with connected(world, receive_buffer=4096) as (_, writer):
        writer.write(head(world, method, "large/messages/head?timeout=5"))
        await until(lambda: world.namespace.budget.locked.used > 16 * MB)
        await until(lambda: (world.locks("large") == 1) if method == "POST" else world.waiting("large") == 0)
    await until(lambda: world.locks("large") == 0)
    await until(lambda: world.namespace.budget.locked.used == 0)
    if method == "POST":
        answer = await world.lock("large")
        assert (len(answer.body), answer.broker["DeliveryCount"]) == (16 * MB, 1)
    else:
        assert world.waiting("large") == 0


async def test_request_that_is_cancelled_gives_its_lock_back(world: HttpWorld) -> None:
    """Between the lock and the answer a broker that stops cancels what has not ended in time."""
    queue = world.namespace.queue("orders")
    assert queue is not None
    world.faults.add("stall", entity="orders", direction="receive")  # so that the test hands out, and not the broker
    await world.send("orders")
    requests = world.namespace.waiting_requests
    receiving = asyncio.create_task(requests.lock_next(queue, queue.main, 60, lambda: False))
    await until(lambda: len(requests) == 1)
    [request] = requests._requests
    assert request.take(queue.main, 1, world.namespace.now_ms())
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert (world.waiting(), world.locks(), len(requests)) == (1, 0, 0)
    world.faults.clear()
    assert (await world.lock("orders")).broker["DeliveryCount"] == 1


async def test_client_that_reads_no_answer_is_cut(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds a message and its memory for a while, and then no longer."""
    monkeypatch.setattr(answers, "ANSWER_WAIT_S", 0.2)
    await world.namespace.create_queue(QueueDescription("large", max_message_size_kb=100 * 1024))
    await world.send("large", b"x" * (16 * MB))
    async with connected(world, receive_buffer=4096) as (_, writer):
        writer.write(head(world, "POST", "large/messages/head?timeout=5"))
        await until(lambda: world.namespace.budget.locked.used > 16 * MB)
        await until(lambda: world.locks("large") == 0 and world.namespace.budget.locked.used == 0)
    assert world.waiting("large") == 1


async def test_requests_behind_one_another_on_a_connection_are_answered_in_order(world: HttpWorld) -> None:
    """A client may send several before it reads."""
    async with connected(world) as (reader, writer):
        send = head(world, "POST", "orders/messages", "Content-Length: 1") + b"x"
        writer.write(send * 3 + head(world, "DELETE", "orders/messages/head?timeout=0"))
        found: list[bytes] = []
        async with asyncio.timeout(30):
            while len(found) < 4:
                line = await reader.readline()
                if line.startswith(b"HTTP/1.1"):
                    found.append(line.split()[1])
    assert found == [b"201", b"201", b"201", b"200"]
    assert world.waiting() == 2


# ── clients that flood ──


async def test_requests_that_wait_are_limited(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told to come back later."""
    monkeypatch.setattr(waiting, "WAITING_MAX", 3)
    waits = [asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60")) for _ in range(3)]
    await until(lambda: len(world.namespace.waiting_requests) == 3)
    refused = await world.ask("POST", "other/messages/head?timeout=60")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "2")
    for _ in waits:
        await world.send("orders")
    assert [answer.status for answer in await asyncio.gather(*waits)] == [201, 201, 201]


async def test_locks_of_requests_count_against_the_budget(world: HttpWorld) -> None:
    """A client that settles nothing gets no more messages; the next one comes when there is room."""
    for _ in range(3):
        await world.send("orders")
    first = await world.lock("orders")
    budget: MemoryBudget = world.namespace.budget
    limit, budget.locked.limit = budget.locked.limit, budget.locked.used
    waiting_for_room = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
    await until(lambda: len(world.namespace.waiting_requests) == 1)
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 204
    assert (await world.ask("DELETE", first.headers["Location"])).status == 200
    budget.locked.limit = limit
    budget.locked.wake()
    assert (await waiting_for_room).status == 201


async def test_bodies_wait_for_memory(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """While other requests have it; without any in time the client is told to come back later."""
    budget: MemoryBudget = world.namespace.budget
    monkeypatch.setattr(body_reading, "ROOM_WAIT_S", 0.2)
    share = budget.arriving.share()
    share.take(budget.arriving.limit)
    assert (await world.ask("POST", "orders/messages", b"x")).status == 503
    monkeypatch.setattr(body_reading, "ROOM_WAIT_S", 60.0)
    sending = asyncio.create_task(world.ask("POST", "orders/messages", b"x"))
    await asyncio.sleep(0.1)
    assert not sending.done()
    share.close()
    assert (await sending).status == 201
    assert budget.arriving.used == 0


async def test_slow_body_is_given_up(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is counted until then, and not after."""
    monkeypatch.setattr(body_reading, "BODY_WAIT_S", 0.3)
    async with connected(world) as (reader, writer):
        writer.write(head(world, "POST", "orders/messages", "Content-Length: 1000") + b"x")
        await until(lambda: world.namespace.budget.unfinished.used == 1)
        assert b" 408 " in await status_line(reader)
    assert world.namespace.budget.unfinished.used == world.namespace.budget.arriving.used == 0
    assert world.waiting() == 0


async def test_body_that_stands_still_gives_way(world: HttpWorld) -> None:
    """When others need the memory, the client whose body came longest ago is told to come back later."""
    budget: MemoryBudget = world.namespace.budget
    budget.unfinished.limit = 150
    async with connected(world) as (stalled, first), connected(world) as (moving, second):
        first.write(head(world, "POST", "orders/messages", "Content-Length: 1000") + b"x" * 100)
        await until(lambda: budget.unfinished.used == 100)
        second.write(head(world, "POST", "orders/messages", "Content-Length: 110") + b"x" * 100)
        assert b" 503 " in await status_line(stalled)
        await until(lambda: budget.unfinished.used == 100)
        second.write(b"x" * 10)
        assert b" 201 " in await status_line(moving)
    assert (world.waiting(), budget.unfinished.used) == (1, 0)


async def test_body_that_breaks_off_is_no_message(world: HttpWorld) -> None:
    """Neither with a length nor in chunks."""
    for line, part in (("Content-Length: 1000", b"x"), ("Transfer-Encoding: chunked", b"1\r\nx\r\n")):
        async with connected(world) as (_, writer):
            writer.write(head(world, "POST", "orders/messages", line) + part)
            await until(lambda: world.namespace.budget.unfinished.used > 0)
        await until(lambda: world.namespace.budget.unfinished.used == 0)
    assert world.waiting() == 0


async def test_body_that_is_announced_too_large_is_not_read(world: HttpWorld) -> None:
    """The answer comes before any byte of it."""
    async with connected(world) as (reader, writer):
        writer.write(head(world, "POST", "orders/messages", f"Content-Length: {1 << 40}"))
        assert b" 413 " in await status_line(reader)
    assert world.namespace.budget.arriving.used == 0


# ── nonsense ──


@pytest.mark.parametrize(
    "lines",
    [
        ["BrokerProperties: " + "x" * 20_000],
        [f"p{number}: {number}" for number in range(500)],
        ["Color: red\x00"],
        ["Color: \x01"],
        ["BrokerProperties: \xff\xfe"],
        ["BrokerProperties: " + "[" * 8000],
        ["Color: " + '"' * 3 + "\\"],
        ["Color: 1", "Color: 2"],
        ["Content-Type: text/\xe9"],
        ["Content-Length: -1"],
        ["Content-Length: 1", "Transfer-Encoding: chunked"],
    ],
)
async def test_nonsense_in_headers_is_refused(world: HttpWorld, lines: list[str]) -> None:
    """400, nothing is stored, and the broker goes on."""
    async with connected(world) as (reader, writer):
        length = [] if any("Length" in line for line in lines) else ["Content-Length: 0"]
        writer.write(head(world, "POST", "orders/messages", *lines, *length))
        assert b" 400 " in await status_line(reader)
    assert world.waiting() == 0
    await world.send("orders")


async def test_headers_in_latin_1_and_utf_8_are_read(world: HttpWorld) -> None:
    """Clients send either."""
    async with connected(world) as (reader, writer):
        for raw in ("ü".encode(), "ü".encode("latin-1")):
            start, end = head(world, "POST", "orders/messages", "Content-Length: 0")[:-2], b"\r\n\r\n"
            writer.write(start + b'Color: "' + raw + b'"' + end)
            assert b" 201 " in await status_line(reader)
            await reader.readuntil(b"\r\n\r\n")
    for _ in range(2):
        assert (await world.ask("DELETE", "orders/messages/head?timeout=0")).headers["Color"] == '"ü"'


async def test_no_property_can_write_a_header(world: HttpWorld) -> None:
    """JSON can carry line ends where headers cannot: they stay inside the value."""
    evil = "a\r\nSet-Cookie: x=1\r\n\r\n<html>"
    batch = [{"BrokerProperties": {"Label": evil, "MessageId": evil}, "UserProperties": {"p": evil, evil: 1}}]
    await world.send("orders", json.dumps(batch).encode(), **{"Content-Type": JSON_BATCH})
    answer = await world.lock("orders")
    assert (answer.broker["Label"], answer.broker["MessageId"]) == (evil, evil)
    assert "Set-Cookie" not in answer.headers
    assert answer.headers["p"] == '"a\\u000d\\u000aSet-Cookie: x=1\\u000d\\u000a\\u000d\\u000a<html>"'
    assert answer.body == b""
    assert (await world.ask("DELETE", answer.headers["Location"])).status == 200


# ── what operators and testers see ──


async def test_meter_counts_requests_as_it_counts_links(world: HttpWorld) -> None:
    """In the words of the ledger; without the right, or without such a queue, nothing is counted."""
    await world.send("orders", b"x" * 100)
    await world.ask("POST", "orders/messages", b"x", headers={"Color": "red"})
    location = (await world.lock("orders")).headers["Location"]
    await world.ask("POST", "orders/messages/head?timeout=0")
    for method in ("POST", "PUT", "DELETE"):
        await world.ask(method, location)
    await world.ask("POST", "absent/messages", b"x")
    await world.ask("POST", "orders/messages", b"x", token=world.token("other"))
    meter = world.namespace.meter
    assert meter is not None
    counts = {key: total[0] for key, total in meter.totals.items()}
    assert counts == {
        ("orders", "send", "ok"): 1,
        ("orders", "send", "invalid"): 1,
        ("orders", "receive", "ok"): 1,
        ("orders", "empty receive", "ok"): 1,
        ("orders", "renew", "ok"): 1,
        ("orders", "complete", "ok"): 1,
        ("orders", "complete", "invalid"): 1,
    }


async def test_strict_broker_tracks_its_refusals() -> None:
    """As its errors over AMQP; a batch has the room of a batch."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders", max_message_size_kb=4096),))
    async with http_world(options, strict=True) as world:
        answer = await world.ask("POST", "orders/messages", b"x", headers={"Color": "red"})
        assert answer.status == 400
        for word in (b"TrackingId:", b"SystemTracker:contoso:broker", b"Timestamp:"):
            assert word in answer.body
        batch = json.dumps([{"Body": "x" * (1 << 20)}]).encode()
        assert (await world.ask("POST", "orders/messages", batch, headers={"Content-Type": JSON_BATCH})).status == 413
        assert (await world.ask("POST", "orders/messages", b"x" * (2 << 20))).status == 201
