"""Random histories of groups: the durable store and its plain twin come out the same."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker.store import (
    Delete,
    Forget,
    Insert,
    InsertPayload,
    Move,
    PutEntity,
    Remember,
    StoredMessage,
    Update,
    Write,
)
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from tests.store.common import BOX, DEAD, commit, everything, message

KINDS = ("insert", "share", "delete", "update", "bury", "move", "remember", "forget", "describe", "wrong")
MOVES = st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.binary(max_size=3))


class Historian:
    """Makes writes as an owner would: of rows that are there, with new numbers for what is new."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, StoredMessage]] = {}
        self.last_n = 0

    def number(self) -> int:
        self.last_n += 1
        return self.last_n

    def writes(self, kind: str, pick: int, body: bytes) -> list[Write]:  # noqa: PLR0911 - one return for each case
        box = (BOX, DEAD)[pick % 2]
        if kind == "insert":
            return [Insert(box, [self._new(box, body, state=pick % 3) for _ in range(pick % 4)])]
        if kind == "share":
            payload = self.number()
            copies = [(each, self._new(each, b"", payload=payload)) for each in (BOX, DEAD, BOX)]
            return [InsertPayload(payload, 1, body), *[Insert(each, [copy]) for each, copy in copies]]
        if kind == "remember":
            return [Remember(1, [("xyz"[pick % 3], pick % 9)])]
        if kind == "forget":
            return [Forget(1, pick % 9)]
        if kind == "describe":
            return [PutEntity(1, f"{pick}")]
        if not self.rows:
            return []
        n = sorted(self.rows)[pick % len(self.rows)]
        return [self._change(kind, n, body)]

    def _new(self, box: int, body: bytes, **others: object) -> StoredMessage:
        n = self.number()
        made = message(n, body, **others)
        self.rows[n] = (box, made)
        return made

    def _change(self, kind: str, n: int, body: bytes) -> Write:
        box, before = self.rows[n]
        if kind == "delete":
            del self.rows[n]
            return Delete(box, [n], [before.payload] if before.payload else [])
        if kind == "move":
            del self.rows[n]
            return Move(box, n, BOX, self._new(BOX, b"", payload=before.payload, patch=body))
        if kind == "wrong":
            return Insert(BOX, [message(n)])
        to_box = DEAD if kind == "bury" else box
        self.rows[n] = (to_box, before.revised(patch=body))
        return Update(to_box, before.revised(patch=body))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(MOVES, min_size=1, max_size=8), max_size=6))
def test_any_history_leaves_both_stores_the_same(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[tuple[str, int, bytes]]]
) -> None:
    """Groups are rearranged for speed; no history of groups may come out differently from the plain twin's."""

    async def run() -> None:
        folder = tmp_path_factory.mktemp("history")
        twin, store, historian = MemoryStore(), SqliteStore(folder), Historian()
        store.recover()
        for group in [[("describe", 1, b"")], *history]:
            before = dict(historian.rows)
            ops = [op for move in group for op in historian.writes(*move)]
            expected, got = await commit(twin, *ops), await commit(store, *ops)
            assert (expected is None) == (got is None), (expected, got)
            if expected is not None:
                historian.rows = before
            for box in (BOX, DEAD):
                assert everything(store, box) == everything(twin, box)
        await store.close()
        store = SqliteStore(folder)
        recovered, known = store.recover(), twin.recover()
        assert list(store.index()) == list(twin.index())
        assert list(store.payloads()) == list(twin.payloads())
        assert sorted(store.remembered(1)) == sorted(twin.remembered(1))
        assert recovered.entities == known.entities
        assert recovered.damage == []
        await store.close()

    asyncio.run(run())
