"""Operations that the broker counts: each one once, in the words of the ledger, where it was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import aiohttp
import pytest

from pairbus.amqp.errors import INTERNAL_ERROR
from pairbus.amqp.message import Message, Properties
from pairbus.auth import sas
from pairbus.auth.sas import RIGHTS, Grant, SharedAccessKey
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, Broker, NamespaceOptions
from pairbus.broker.description import QueueDescription
from pairbus.broker.monitoring.meter import _OUTCOMES, RIGHT_OF, NamespaceMeter, outcome_of
from pairbus.broker.refusal import SESSION_LOCK_LOST, Refusal
from pairbus.client.pinger import ping_payload
from pairbus.ledger import Ledger, MeterKind, read
from pairbus.pairing.policy import kind_of_condition
from pairbus.transport import ClientConnection, Endpoint, Plain, ReceivedMessage, Receiver, Refused, Scheduled, connect

KB = 1024
NOW_MS = 1_772_366_400_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    queues = (QueueDescription("orders"), QueueDescription("shut", status="SendDisabled"))
    options = NamespaceOptions("contoso", queues=queues)
    async with Broker([options], data=None, meter=tmp_path / "meter", now_ms=lambda: NOW_MS) as running:
        yield running


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[ClientConnection]:
    async with await connect(broker.connection_string("contoso")) as connection:
        yield connection


def message(number: int, size: int = 10) -> bytes:
    return Message(properties=Properties(message_id=f"m{number}"), data=[b"x" * size]).encode()


def counted(broker: Broker, kind: str, outcome: str = "ok") -> tuple[int, int, int]:
    """Operations, billable operations, bytes of the one entity that has any."""
    meter = broker.namespace("contoso").meter
    assert meter is not None
    found = [sums for (_, k, o), sums in meter.totals.items() if (k, o) == (kind, outcome)]
    assert len(found) <= 1
    return (found[0][0], found[0][1], found[0][2]) if found else (0, 0, 0)


async def until_counted(broker: Broker, kind: str, count: int) -> None:
    async with asyncio.timeout(5):
        while counted(broker, kind)[0] < count:  # noqa: ASYNC110 - the meter sets no event
            await asyncio.sleep(0.005)
    assert counted(broker, kind)[0] == count


async def all_of(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    while len(received) < count:
        received += await receiver.receive(count, 5.0)
    return received


# ── sends ──


async def test_a_batch_is_counted_and_billed_message_by_message(broker: Broker, connection: ClientConnection) -> None:
    """A message of 100 KB is two operations, also in a batch with small ones: messages are measured one by one."""
    sender = await connection.sender("orders")
    payloads = [message(1), message(2, 100 * KB), message(3)]
    await sender.send_batch(payloads)
    await sender.send(payloads[1])
    assert counted(broker, "send") == (4, 6, sum(map(len, payloads)) + len(payloads[1]))


async def test_a_ping_is_not_a_send(broker: Broker, connection: ClientConnection) -> None:
    """A ping and a message that arrive in one read are counted correctly too."""
    sender = await connection.sender("orders")
    await asyncio.gather(sender.send_nowait(ping_payload()), sender.send_nowait(message(1)))
    assert counted(broker, "ping") == (1, 1, len(ping_payload()))
    assert counted(broker, "send") == (1, 1, len(message(1)))


async def test_what_was_refused_has_its_outcome(broker: Broker, connection: ClientConnection) -> None:
    """No message at all, and a queue that was switched off after the link was opened: operations, but no `ok`."""
    sender = await connection.sender("orders")
    with pytest.raises(Refused):
        await sender.send(b"no message")
    assert counted(broker, "send", "invalid") == (1, 1, 10)
    namespace = broker.namespace("contoso")
    await namespace.update_queue(QueueDescription("orders", status="SendDisabled"))
    with pytest.raises(Refused):
        await sender.send_batch([message(1), message(2)])
    assert counted(broker, "send", "disabled")[:2] == (2, 2)
    assert counted(broker, "send") == (0, 0, 0)


@pytest.mark.parametrize("condition", [*_OUTCOMES, INTERNAL_ERROR])
def test_outcome_of_a_refusal_is_the_one_that_the_client_writes(condition: str) -> None:
    """Otherwise the ledgers of client and broker could not be compared. Senders never see a lost session."""
    if condition != SESSION_LOCK_LOST:
        assert outcome_of(Refusal(condition, "no")) == kind_of_condition(condition).value


# ── receives ──


async def test_a_receive_is_counted_for_each_message_and_a_settlement_too(
    broker: Broker, connection: ClientConnection
) -> None:
    """The bytes are those that went over the wire, with the broker's own annotations."""
    await (await connection.sender("orders")).send_batch([message(n) for n in range(5)])
    receiver = await connection.receiver("orders", credit=5)
    received = await all_of(receiver, 5)
    await receiver.pause()
    await receiver.complete(received[:3])
    await receiver.abandon(received[3:4])
    await receiver.release(received[4:])
    assert counted(broker, "receive") == (5, 5, sum(len(one.payload) for one in received))
    assert counted(broker, "complete") == (5, 5, 0)


async def test_what_is_taken_for_good_is_counted_when_it_leaves(broker: Broker, connection: ClientConnection) -> None:
    """Receive-and-delete has no settlement."""
    await (await connection.sender("orders")).send_batch([message(n) for n in range(3)])
    receiver = await connection.receiver("orders", credit=3, mode="receive-and-delete")
    await all_of(receiver, 3)
    await until_counted(broker, "receive", 3)
    assert counted(broker, "complete") == (0, 0, 0)


async def test_completion_with_a_lost_lock_is_counted_as_refused(broker: Broker, connection: ClientConnection) -> None:
    """The completion is refused, and is counted as refused."""
    await (await connection.sender("orders")).send_batch([message(1), message(2)])
    receiver = await connection.receiver("orders", credit=2)
    received = await all_of(receiver, 2)
    await receiver.complete(received[:1])
    management = await connection.management("orders")
    await management.update_disposition("completed", [received[1].lock_token])
    with pytest.raises(Refused):
        await receiver.complete(received[1:])
    with pytest.raises(Refused):
        await management.renew_lock([received[1].lock_token])
    assert counted(broker, "complete") == (2, 2, 0)
    assert counted(broker, "complete", "invalid") == (1, 1, 0)
    assert counted(broker, "renew", "invalid") == (1, 1, 0)


# ── empty receives ──


async def test_credit_that_brings_nothing_is_one_empty_receive(broker: Broker, connection: ClientConnection) -> None:
    """An empty receive ends with the drain; the next receive after the drain counts anew."""
    receiver = await connection.receiver("orders", credit=10)
    assert await receiver.receive(10, 0.05) == []
    assert await receiver.receive(10, 0.05) == []  # waits on the credit that was already given
    assert counted(broker, "empty receive")[0] == 0
    await receiver.pause()
    assert counted(broker, "empty receive")[0] == 1
    assert await receiver.receive(10, 0.05) == []
    await receiver.close()
    await until_counted(broker, "empty receive", 2)


async def test_credit_that_brought_something_is_no_empty_receive(broker: Broker, connection: ClientConnection) -> None:
    """The rest of the credit at the end does not matter."""
    receiver = await connection.receiver("orders", credit=10)
    waiting = asyncio.create_task(receiver.receive(10, 5.0))
    await (await connection.sender("orders")).send(message(1))
    await receiver.complete(await waiting)
    await receiver.pause()
    await receiver.close()
    await until_counted(broker, "complete", 1)
    assert counted(broker, "empty receive")[0] == 0


async def test_a_connection_that_is_lost_ends_what_it_asked_for(broker: Broker) -> None:
    """The client of the lost connection will never ask for the rest."""
    lost = await connect(broker.connection_string("contoso"))
    receiver = await lost.receiver("orders", credit=10)
    assert await receiver.receive(10, 0.05) == []
    await lost.close()
    await until_counted(broker, "empty receive", 1)


async def test_the_client_counts_its_empty_receives_as_the_broker_does(
    broker: Broker, connection: ClientConnection
) -> None:
    """Credit that is renewed while messages are on their way is where two ends could disagree."""
    sender = await connection.sender("orders")
    receiver = await connection.receiver("orders", credit=4)
    empty = 0
    for round_size in (0, 1, 7, 0, 3, 12, 1, 0, 0, 5):
        for number in range(round_size):
            sender.send_nowait(message(number))
        left = round_size
        while left:
            received = await receiver.receive(3, 5.0)
            left -= len(received)
            await receiver.complete(received)
        await receiver.pause()
        assert await receiver.receive(1, 0.02) == []
        empty += receiver.take_empty()
    await receiver.close()
    await until_counted(broker, "empty receive", empty + 1)  # and the receive that was ended by the close


# ── requests ──


async def test_requests_have_the_kind_of_what_they_do(broker: Broker, connection: ClientConnection) -> None:
    """A message that is scheduled was sent, and a renewal is counted by locks."""
    management = await connection.management("orders")
    await management.schedule([Scheduled("m1", message(1))])
    assert counted(broker, "send") == (1, 1, len(message(1)))
    await (await connection.sender("orders")).send(message(2))
    receiver = await connection.receiver("orders", credit=1)
    received = await receiver.receive(1, 5.0)
    await receiver.renew(received)
    assert counted(broker, "renew") == (1, 1, 0)
    await management.peek(0, 10)
    assert counted(broker, "peek") == (1, 1, 0)


async def test_the_administration_is_counted_and_tells_what_was_counted(
    broker: Broker, connection: ClientConnection
) -> None:
    """`GET /$meter` has the sums since the start; reading them is not an operation."""
    await (await connection.sender("orders")).send(message(1))
    url = f"http://127.0.0.1:{broker._ports['contoso'].number}"
    token = sas.sign(f"{url}/", ROOT_KEY_NAME, WELL_KNOWN_KEY, NOW_MS // 1000 + 3600)
    async with aiohttp.ClientSession(headers={"Authorization": token}) as session:
        async with session.get(f"{url}/$Resources/queues") as answer:
            assert answer.status == 200
        async with session.get(f"{url}/missing") as answer:
            assert answer.status == 404
        async with session.get(f"{url}/$meter") as answer:
            told = await answer.json()
    found = {(one["entity"], one["kind"], one["outcome"]): one["count"] for one in told}
    assert found == {
        ("$Resources/queues", "management", "ok"): 1,
        ("orders", "send", "ok"): 1,
    }


@pytest.mark.parametrize(
    ("rights", "entity", "kinds"),
    [
        ({"Manage"}, "", {"send", "receive", "management"}),
        ({"Send"}, "", {"send"}),
        ({"Listen"}, "", {"receive"}),
        ({"Manage"}, "other", set[str]()),
    ],
)
def test_meter_shows_a_key_what_it_may_do_itself(rights: set[str], entity: str, kinds: set[str]) -> None:
    """The names and numbers of a namespace are not for every application that may send to it."""
    meter = NamespaceMeter(None, "contoso")
    for kind in ("send", "receive", "management"):
        meter.count("orders", kind)
    grant = Grant(frozenset(RIGHTS if "Manage" in rights else rights), 0, "", entity)
    assert {row["kind"] for row in meter.as_json(grant)} == kinds


def test_every_kind_of_operation_needs_a_right() -> None:
    assert set(RIGHT_OF) == set(get_args(MeterKind))


async def test_a_refused_request_leaves_no_trace_in_the_meter(tmp_path: Path) -> None:
    """A stranger who reaches the port could otherwise fill memory and disk with names that do not exist."""
    keys = (SharedAccessKey("listener", "only listens", rights=frozenset({"Listen"})),)
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),), keys=keys)
    async with Broker([options], data=None, meter=tmp_path) as broker:
        url = f"http://127.0.0.1:{broker._ports['contoso'].number}"
        ends_s = int(time.time()) + 3600
        tokens = {
            "junk": 401,
            sas.sign(f"{url}/", ROOT_KEY_NAME, "wrong", ends_s): 401,
            sas.sign(f"{url}/", ROOT_KEY_NAME, WELL_KNOWN_KEY, ends_s): 404,
        }
        async with aiohttp.ClientSession() as session:
            for token, status in tokens.items():
                for path in ("made-up-1", "made-up-2", "$made-up"):
                    async with session.get(f"{url}/{path}", headers={"Authorization": token}) as answer:
                        assert answer.status == status
            for token in ("junk", sas.sign(f"{url}/", "listener", "only listens", ends_s)):
                async with session.delete(f"{url}/orders", headers={"Authorization": token}) as answer:
                    assert answer.status == 401
        parsed = Endpoint.parse(broker.connection_string("contoso"))
        plain = Endpoint(host=parsed.host, port=parsed.port, tls=False)
        with pytest.raises(Refused):
            await connect(plain, credential=Plain(ROOT_KEY_NAME, "wrong"))
        async with await connect(plain, credential=Plain("listener", "only listens")) as connection:
            for entity in ("orders", "made-up"):
                with pytest.raises(Refused):
                    await connection.sender(entity)
            with pytest.raises(Refused):
                await (await connection.management("orders")).schedule([Scheduled("m", message(1))])
        meter = broker.namespace("contoso").meter
        assert meter is not None and meter.totals == {}
    assert list(read(tmp_path)) == []


def test_the_totals_of_ever_new_queues_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that come and go must not fill the memory; the sums stay whole."""
    monkeypatch.setattr("pairbus.broker.monitoring.meter.KEYS_MAX", 3)
    ledger = Ledger(tmp_path, client="broker")
    meter = NamespaceMeter(ledger, "contoso")
    for name in ("a", "b", "c", "d", "e", "a"):
        meter.count(name, "send")
    ledger.close(2.0)
    counts = {one["entity"]: one["count"] for one in meter.as_json(Grant(frozenset(RIGHTS), 0, ""))}
    assert counts == {"a": 2, "b": 1, "c": 1, "$others": 2}
    assert {row.entity for row in read(tmp_path)} == set("abcde")


# ── the ledger ──


async def test_the_rows_are_those_of_the_ledger_and_say_who_wrote_them(tmp_path: Path) -> None:
    """A broker knows neither which side of a pair it is nor what an operation was for."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with (
        Broker([options], data=None, meter=tmp_path, now_ms=lambda: NOW_MS) as broker,
        await connect(broker.connection_string("contoso")) as connection,
    ):
        await (await connection.sender("orders")).send(message(1))
    [row] = read(tmp_path)
    assert (row.client, row.namespace, row.entity, row.kind) == ("broker", "contoso", "orders", "send")
    assert (row.count, row.billable_operations, row.bytes) == (1, 1, len(message(1)))
    assert (row.side, row.cause, row.outcome) == (None, None, "ok")
    assert row.time == "2026-03-01T12:00:00.000Z"


async def test_broker_without_a_folder_counts_in_memory_alone() -> None:
    """The page of metrics has the sums; no file is written."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=None) as broker, await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send(message(1))
        assert counted(broker, "send") == (1, 1, len(message(1)))
        assert broker._ledger is None


async def test_a_meter_without_a_disk_disturbs_nobody(tmp_path: Path) -> None:
    """The meter's folder is a file: messages are taken and delivered all the same."""
    folder = tmp_path / "meter"
    folder.write_text("not a folder")
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with (
        Broker([options], data=None, meter=folder) as broker,
        await connect(broker.connection_string("contoso")) as connection,
    ):
        await (await connection.sender("orders")).send(message(1))
        receiver = await connection.receiver("orders", credit=1)
        assert len(await receiver.receive(1, 5.0)) == 1
