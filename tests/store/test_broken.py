"""A store whose writer meets an error that nobody foresaw: every caller is told, and nothing hangs."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.broker import Broker, NamespaceOptions
from pairbus.broker.description import QueueDescription
from pairbus.broker.store import Delete, DropEntity, Insert, PutEntity, StoredMessage, box_of
from pairbus.broker.store.committer import Committer
from pairbus.broker.store.group import CommitGroup
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreError, StoreFull
from pairbus.transport import Refused, connect
from tests.limits import slowness
from tests.store.common import commit, rows_of

BOX = box_of(1)
BROKEN = "takes no more writes"


def _no_memory(*_: Any) -> Any:
    raise MemoryError


async def _open(folder: Path) -> SqliteStore:
    store = SqliteStore(folder)
    store.recover()
    assert await commit(store, PutEntity(1, "{}"), Insert(BOX, [StoredMessage(1, b"kept", n=1)])) is None
    return store


async def _soon(answer: Any) -> Any:
    return await asyncio.wait_for(answer, 10 * slowness())


async def test_every_group_after_an_unforeseen_error_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The callers hear of it, the log says why, the store still closes, and its contents are whole."""
    store = await _open(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Committer, "_commit_writes", _no_memory)
        failed = await _soon(commit(store, Insert(BOX, [StoredMessage(2, b"lost", n=2)])))
    assert isinstance(failed, StoreError)
    assert BROKEN in str(failed)
    assert BROKEN in str(await _soon(commit(store, Insert(BOX, [StoredMessage(3, b"refused", n=3)]))))
    assert [record.levelno for record in caplog.records if BROKEN in record.message] == [logging.CRITICAL]
    await _soon(store.close())
    store = SqliteStore(tmp_path)
    assert store.recover().damage == []
    assert rows_of(store, BOX) == [1]
    await store.close()


@pytest.mark.parametrize("after", ["_note_committed", "tidy_up_if_due"])
async def test_error_after_a_commit_does_not_fail_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """The group is durable: a sender that was told of a failure would send it again."""
    store = await _open(tmp_path)
    usual = getattr(Committer, after)

    def fail_later(committer: Committer, *arguments: Any) -> Any:
        """The writer may still be busy with the commit of `_open`."""
        return (_no_memory if committer._totals.commits + len(arguments) // 3 > 1 else usual)(committer, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Committer, after, fail_later)
        assert await _soon(commit(store, Insert(BOX, [StoredMessage(2, b"stored", n=2)]))) is None
        assert BROKEN in str(await _soon(commit(store, Insert(BOX, [StoredMessage(3, b"refused", n=3)]))))
    await _soon(store.close())
    store = SqliteStore(tmp_path)
    store.recover()
    assert rows_of(store, BOX) == [1, 2]
    await store.close()


async def test_writer_that_cannot_close_does_not_hang_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is stopped must end."""
    store = await _open(tmp_path)
    monkeypatch.setattr(Committer, "_checkpoint", _no_memory)
    await _soon(store.close())


async def test_writer_that_cannot_start_fails_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process at its limit of threads refuses the writer's."""

    def refuse(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    store = SqliteStore(tmp_path)
    store.recover()
    monkeypatch.setattr(Thread, "start", refuse)
    assert BROKEN in str(await _soon(commit(store, PutEntity(1, "{}"))))
    assert BROKEN in str(await _soon(commit(store, PutEntity(2, "{}"))))
    await _soon(store.close())


async def test_error_between_two_groups_is_told_to_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own part may run out of memory as well."""
    store = await _open(tmp_path)
    monkeypatch.setattr(CommitGroup, "without_sends", _no_memory)
    store.hindrance = lambda _, done: done(StoreFull("full"))
    assert isinstance(await _soon(commit(store, Insert(BOX, [StoredMessage(2, b"refused", n=2)]))), StoreError)
    store.hindrance = None
    assert BROKEN in str(await _soon(commit(store, Insert(BOX, [StoredMessage(3, b"refused", n=3)]))))
    await _soon(store.close())


async def test_health_and_sends_say_that_the_store_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor restarts the broker, and a person reads why; the broker still stops."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    broker = Broker([options], data=tmp_path)
    await broker.start()
    message = Message(properties=Properties(message_id="m"), data=[b"refused"]).encode()
    async with await connect(broker.connection_string("contoso")) as connection:
        sender = await connection.sender("orders")
        await sender.send(message)
        monkeypatch.setattr(Committer, "_commit_writes", _no_memory)
        for _ in range(2):
            with pytest.raises(Refused, match=BROKEN):
                await sender.send(message, timeout_s=10 * slowness())
    assert BROKEN in str(await _soon(broker.namespace("contoso").trouble()))
    await _soon(broker.stop())


async def test_answers_keep_their_order_when_writing_ends_behind_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group is durable, the second is not: answers in another order would acknowledge what is not stored."""
    store = await _open(tmp_path)
    answers, both = list[tuple[str, bool]](), asyncio.Event()

    def note(name: str, error: StoreError | None) -> None:
        answers.append((name, error is None))
        if len(answers) == 2:
            both.set()

    committer: Any = store._committer
    monkeypatch.setattr(committer._commits, "write", _no_memory)
    for number, name in enumerate(("first", "second"), start=2):
        store.write(Insert(BOX, [StoredMessage(number, name.encode(), n=number)]))
        store.after_commit(partial(note, name))
        if name == "first":
            store._hand_over_scheduled()
    await _soon(both.wait())
    assert answers == [("first", True), ("second", False)]
    await _soon(store.close())


def test_commit_in_parts_tells_no_success_to_what_it_left_out() -> None:
    """On a full disk each settlement may be committed by itself; the deletion of an entity beside them was not."""
    group, results = CommitGroup(), list[tuple[str, bool]]()
    for name, op in (("one", Delete(BOX, [1])), ("two", Delete(BOX, [2])), ("drop", DropEntity(1))):
        group.add(op)
        group.end_unit(lambda error, name=name: results.append((name, error is None)))  # type: ignore[misc]
    committer = _CommitterOnFullDisk()
    error = Committer._commit_parts(cast(Any, committer), group, StoreFull("full"))
    for done, result in group.results(error):
        done(result)
    assert results == [("one", True), ("two", True), ("drop", False)]


class _CommitterOnFullDisk:
    """Takes every part."""

    def _checkpoint(self, _: str) -> None: ...

    def _try_commit(self, _: CommitGroup) -> StoreError | None:
        return None
