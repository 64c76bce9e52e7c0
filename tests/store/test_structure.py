"""A large file is checked while it is served: nothing is written before its structure is known to be whole."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.description import QueueDescription
from pairbus.broker.store import Insert, box_of, structure
from pairbus.broker.store.schema import FILE_NAME
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreDamaged, StoreError
from pairbus.transport import connect
from tests.limits import slowness
from tests.store.common import commit, filled_store, sample_message
from tests.store.test_damage import Original
from tests.transport.test_with_broker import encoded

BOX = box_of(1)
NEW = Insert(BOX, [sample_message(1000)])
WITHOUT_END = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
real_check = structure.check


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Check files of any size in the background, once the gate is open."""
    opened = threading.Event()

    def check(connection: sqlite3.Connection, path: Path) -> None:
        opened.wait()
        real_check(connection, path)

    monkeypatch.setattr(structure, "BACKGROUND_BYTES", 0)
    monkeypatch.setattr(structure, "check", check)
    yield opened
    opened.set()


async def test_messages_are_received_while_the_file_is_checked(tmp_path: Path, gate: threading.Event) -> None:
    """The broker starts at once; a send is answered when the check has passed."""
    gate.set()
    options = [NamespaceOptions("contoso", queues=(QueueDescription("orders"),))]
    async with Broker(options, data=tmp_path) as broker, await connect(broker.connection_string("contoso")) as client:
        await (await client.sender("orders")).send(encoded(1))
    gate.clear()
    async with Broker(options, data=tmp_path) as broker, await connect(broker.connection_string("contoso")) as client:
        receiver = await client.receiver("orders")
        deliveries = await receiver.receive(1, 10.0 * slowness())
        sending = asyncio.create_task((await client.sender("orders")).send(encoded(2)))
        completing = asyncio.create_task(receiver.complete(deliveries))
        health = asyncio.create_task(broker.namespace("contoso").trouble())
        await asyncio.sleep(0.1)
        early = [task for task in (sending, completing, health) if task.done()]
        gate.set()
        assert not early
        await asyncio.gather(sending, completing)
        assert await health is None
        assert broker.namespace("contoso").queue_info("orders").active == 1


async def test_damage_that_is_found_later_lets_nothing_be_written(
    tmp_path: Path, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """A list of free pages that is wrong harms no reader, but the next write could destroy a message."""
    gate.set()
    store, held = await filled_store(tmp_path)
    await store.close()
    path = tmp_path / FILE_NAME
    damaged = bytearray(path.read_bytes())
    damaged[36:40] = (5).to_bytes(4, "big")  # the number of free pages; there is none
    path.write_bytes(damaged)
    store = SqliteStore(tmp_path)
    store.recover()
    assert sum(1 for row in store.index() if row.box == BOX) == len(held[BOX])
    for _ in range(2):
        error = await commit(store, NEW)
        assert isinstance(error, StoreDamaged) and "pairbus store salvage" in str(error)
    messages, unreadable, _ = store.load(BOX, sorted(held[BOX]))
    assert len(messages) == len(held[BOX]) and not unreadable
    await store.close()
    assert path.read_bytes() == damaged, "nothing was changed"
    assert [record.levelno for record in caplog.records if "is damaged" in record.message] == [logging.CRITICAL]


async def test_small_damaged_file_is_refused_at_the_start(tmp_path: Path) -> None:
    """There the check takes no noticeable time."""
    store, _ = await filled_store(tmp_path)
    await store.close()
    path = tmp_path / FILE_NAME
    damaged = bytearray(path.read_bytes())
    damaged[36:40] = (5).to_bytes(4, "big")
    path.write_bytes(damaged)
    with pytest.raises(StoreDamaged):
        SqliteStore(tmp_path).recover()


async def test_store_is_closed_while_it_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that wait fail, and the log of a killed broker is not copied into a file that nobody has checked."""

    def endless(connection: sqlite3.Connection, path: Path) -> None:
        try:
            connection.execute(WITHOUT_END).fetchall()
        except sqlite3.Error as error:
            raise StoreError("interrupted") from error

    running, killed = tmp_path / "running", tmp_path / "killed"
    store, held = await filled_store(running)
    Original(running, held).copy(killed)
    await store.close()
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    assert before[f"{FILE_NAME}-wal"]
    with monkeypatch.context() as patched:
        patched.setattr(structure, "BACKGROUND_BYTES", 0)
        patched.setattr(structure, "check", endless)
        store = SqliteStore(killed)
        store.recover()
        waiting = asyncio.create_task(commit(store, NEW))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(store.close(), 10.0 * slowness())
        assert "closed before its structure was checked" in str(await waiting)
    assert {name: (killed / name).read_bytes() for name in before} == before
    store = SqliteStore(killed)
    assert store.recover().damage == []
    assert {row.n for row in store.index() if row.box == BOX} == held[BOX]
    await store.close()
