"""Promises of every store about payloads: bodies that several messages share."""

from __future__ import annotations

from pairbus.broker.store import (
    Delete,
    Insert,
    InsertPayload,
    Move,
    Update,
)
from pairbus.errors import StoreError
from tests.store.common import BOX, DEAD, Opened, commit, message


async def test_a_payload_is_kept_once_and_each_message_has_it(opened: Opened) -> None:
    """Any number of boxes may hold a message; the index counts the payload to none of them."""
    copies = [message(1, b"ignored", n=2, payload=1, annotations=b"a"), message(9, b"", n=3, payload=1)]
    assert (
        await commit(opened.store, InsertPayload(1, 7, b"shared"), Insert(BOX, copies[:1]), Insert(DEAD, copies[1:]))
        is None
    )
    for box, number in ((BOX, 2), (DEAD, 3)):
        assert [each.body for each in opened.store.load(box, [number])[0]] == [b"shared"]
    assert opened.store.payloads_of([2, 3, 4]) == [1, 1]
    store, _ = await opened.reopen()
    assert list(store.payloads()) == [(1, 7, 6)]
    assert [(row.size, row.payload) for row in store.index()] == [(1, 1), (0, 1)]


async def test_a_payload_goes_in_the_commit_of_its_last_message(opened: Opened) -> None:
    """Not before: a message without its body would be lost. Not after: a crash between would leave it for ever."""
    copies = [message(seq, b"", n=seq + 1, payload=1) for seq in (1, 2, 3)]
    await commit(opened.store, InsertPayload(1, 7, b"shared"), Insert(BOX, copies))
    await commit(opened.store, Delete(BOX, [2], [1]), Update(DEAD, copies[1]))
    assert [each.body for each in opened.store.load(DEAD, [3])[0]] == [b"shared"]
    moved = message(8, b"", n=5, payload=1)
    await commit(opened.store, Move(BOX, 4, BOX, moved), Delete(DEAD, [3], [1]))
    assert [each.body for each in opened.store.load(BOX, [5])[0]] == [b"shared"]
    store, _ = await opened.reopen()
    assert len(list(store.payloads())) == len(list(store.index())) == 1
    await commit(store, Delete(BOX, [5], [1]))
    store, recovered = await opened.reopen()
    assert (list(store.payloads()), list(store.index()), recovered.damage) == ([], [], [])


async def test_a_payload_stays_when_its_last_message_is_forwarded(opened: Opened) -> None:
    """Forwarding deletes the row in the source and inserts another one in the destination, in this order."""
    await commit(opened.store, InsertPayload(1, 7, b"shared"), Insert(BOX, [message(1, b"", n=2, payload=1)]))
    await commit(opened.store, Delete(BOX, [2], [1]), Insert(DEAD, [message(1, b"", n=3, payload=1)]))
    assert [each.body for each in opened.store.load(DEAD, [3])[0]] == [b"shared"]
    store, recovered = await opened.reopen()
    assert (list(store.payloads()), recovered.damage) == ([(1, 7, 6)], [])
    await commit(store, Delete(DEAD, [3], [1]))
    store, _ = await opened.reopen()
    assert list(store.payloads()) == []


async def test_a_failed_group_leaves_the_references_as_they_were(opened: Opened) -> None:
    """Otherwise the next deletion would take the payload away from a message that still has it."""
    copies = [message(seq, b"", n=seq + 1, payload=1) for seq in (1, 2)]
    await commit(opened.store, InsertPayload(1, 7, b"shared"), Insert(BOX, copies))
    taken = Insert(BOX, [message(9, n=3)])
    assert isinstance(await commit(opened.store, Delete(BOX, [2], [1]), taken), StoreError)
    assert await commit(opened.store, Delete(BOX, [3], [1])) is None
    assert [each.body for each in opened.store.load(BOX, [2])[0]] == [b"shared"]
