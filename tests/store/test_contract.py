"""One body of tests for every store: the promises of `pairbus.broker.store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pairbus.broker.store import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    Delete,
    DropEntity,
    EraseEntity,
    Forget,
    IndexRow,
    Insert,
    InsertPayload,
    Move,
    PutEntity,
    RaiseSeq,
    Remember,
    SetSessionState,
    Store,
    Update,
    Write,
    box_of,
    dead_box_of,
)
from pairbus.broker.store.memory import MemoryStore
from pairbus.errors import StoreError, StoreFull
from tests.store.common import BOX, DEAD, Opened, commit, everything, fields, full_message, index, message


async def test_a_message_comes_back_with_every_field_as_it_was_written(opened: Opened) -> None:
    """A field that is not kept would change the message over a restart."""
    assert await commit(opened.store, Insert(BOX, [full_message(7), message(8)])) is None
    loaded, damaged, _ = opened.store.load(BOX, [7, 8])
    assert [fields(each) for each in loaded] == [fields(full_message(7)), fields(message(8))]
    assert damaged == []
    store, recovered = await opened.reopen()
    assert everything(store, BOX) == [fields(full_message(7)), fields(message(8))]
    assert recovered.damage == []


async def test_what_a_caller_changes_after_writing_is_not_written(opened: Opened) -> None:
    """The broker goes on working with its objects while the commit is under way."""
    mine = message(1)
    opened.store.write(Insert(BOX, [mine]))
    mine.delivery_count = 9
    await commit(opened.store)
    [stored] = opened.store.load(BOX, [1]).messages
    assert stored.delivery_count == 0
    stored.state = DEFERRED
    assert opened.store.load(BOX, [1])[0][0].state == ACTIVE


async def test_reads_see_only_what_is_committed(opened: Opened) -> None:
    """A message that is delivered before its commit could be lost after its completion."""
    opened.store.write(Insert(BOX, [message(1)]))
    assert opened.store.load(BOX, [1]) == ([], [], [])
    assert opened.store.seq_of(BOX, 1) == 0
    await commit(opened.store)
    assert [each.seq for each in opened.store.load(BOX, [1])[0]] == [1]
    assert opened.store.seq_of(BOX, 1) == 1


async def test_load_gives_the_wanted_numbers_ascending_and_skips_absent_ones(opened: Opened) -> None:
    """Dense, scattered, repeated and unordered requests take different ways through SQLite."""
    await commit(opened.store, Insert(BOX, [message(seq) for seq in range(1, 1001) if seq % 7]))
    for wanted in ([3], [7], [9, 8, 8], list(range(1, 400)), list(range(1, 1000, 13)), [1, 7, 1000, 5000], [14, 6, 8]):
        loaded, damaged, _ = opened.store.load(BOX, wanted)
        assert [each.seq for each in loaded] == sorted({seq for seq in wanted if seq % 7 and seq <= 1000})
        assert damaged == []
    assert opened.store.load(BOX, [6, 8, 700])[0][0].seq == 6
    assert opened.store.load(BOX, []) == ([], [], [])
    assert opened.store.load(99, [1]) == ([], [], [])


async def test_an_absent_number_between_wanted_ones_brings_no_neighbour(opened: Opened) -> None:
    """Numbers 1 and 3 are asked for as a range; the 2 between them was not asked for."""
    await commit(opened.store, Insert(BOX, [message(2)]))
    assert opened.store.load(BOX, [1, 3]) == ([], [], [])


async def test_rows_of_another_box_are_never_loaded(opened: Opened) -> None:
    """Rows of all boxes lie side by side; a number of another box must not bring its message."""
    await commit(opened.store, Insert(BOX, [message(1, n=1), message(2, n=3)]), Insert(DEAD, [message(5, n=2)]))
    assert [each.seq for each in opened.store.load(BOX, [1, 2, 3])[0]] == [1, 2]
    assert [each.seq for each in opened.store.load(DEAD, [1, 2, 3])[0]] == [5]
    assert [opened.store.seq_of(DEAD, n) for n in (1, 2, 3, 4)] == [0, 5, 0, 0]


async def test_the_index_lists_every_box_in_order_with_sizes(opened: Opened) -> None:
    """The broker rebuilds its entities from the index at start, without the bodies."""
    late = message(5, b"x" * 3000, annotations=b"ab", patch=b"c", expires_ms=9, state=SCHEDULED, scheduled_ms=8)
    await commit(opened.store, Insert(BOX, [late, message(2, b"", session_id="s")]), Insert(DEAD, [message(1, n=3)]))
    store, _ = await opened.reopen()
    assert list(store.index()) == [
        IndexRow(2, BOX, 2, ACTIVE, 0, 0, 0, 0, "s"),
        IndexRow(3, DEAD, 1, ACTIVE, 0, 0, 4, 0, ""),
        IndexRow(5, BOX, 5, SCHEDULED, 9, 8, 3003, 0, ""),
    ]


async def test_numbers_ascend_and_none_that_was_committed_is_given_again(opened: Opened) -> None:
    """The number is the key of the row: given twice, it would make two messages one."""
    first = opened.store.number(3)
    assert opened.store.number() == first + 3
    shared = opened.store.number()
    await commit(opened.store, Insert(BOX, [message(1, n=first)]), InsertPayload(shared, 1, b"p"))
    await commit(opened.store, Delete(BOX, [first]))
    store, _ = await opened.reopen()
    assert list(store.index()) == []
    assert store.number() > shared


async def test_an_update_replaces_every_field_but_the_body(opened: Opened) -> None:
    """An abandoned message is updated from an object whose body may be gone already."""
    await commit(opened.store, Insert(BOX, [full_message(1), message(2)]))
    changed = message(1, b"", delivery_count=3, patch=b"new", message_id="m", state=DEFERRED)
    await commit(opened.store, Update(BOX, changed), Update(BOX, message(77)))
    changed = changed.revised(body=full_message(1).body)
    assert everything(opened.store, BOX) == [fields(changed), fields(message(2))]


async def test_an_update_may_put_a_message_into_another_box(opened: Opened) -> None:
    """Dead-lettering: number, sequence number and body stay."""
    await commit(opened.store, Insert(BOX, [full_message(1), message(2)]))
    dead = message(1, b"", patch=b"reason")
    await commit(opened.store, Update(DEAD, dead))
    dead = dead.revised(body=full_message(1).body)
    assert (everything(opened.store, BOX), everything(opened.store, DEAD)) == ([fields(message(2))], [fields(dead)])
    store, recovered = await opened.reopen()
    assert (index(store, BOX), index(store, DEAD), recovered.damage) == ([2], [1], [])


async def test_a_move_takes_the_body_to_another_number_and_box(opened: Opened) -> None:
    """Activation of a scheduled message, and forwarding to another entity."""
    await commit(opened.store, PutEntity(2, "{}"), Insert(BOX, [full_message(1), full_message(2), message(3)]))
    away, active = message(1, b"", n=5, patch=b"reason"), message(4, b"")
    await commit(opened.store, Move(BOX, 1, box_of(2), away), Move(BOX, 2, BOX, active))
    body = full_message(1).body
    away, active = away.revised(body=body), active.revised(body=body)
    assert everything(opened.store, box_of(2)) == [fields(away)]
    assert everything(opened.store, BOX) == [fields(message(3)), fields(active)]
    _, recovered = await opened.reopen()
    assert [each.last_seq for each in recovered.entities] == [4, 1]


async def test_moves_that_follow_each_other_happen_one_after_the_other(opened: Opened) -> None:
    """A chain within one group: 1 becomes 2, 2 becomes 3, and the freed 1 is taken by 5."""
    await commit(opened.store, Insert(BOX, [message(1, b"one"), message(5, b"five")]))
    chain = (Move(BOX, 1, BOX, message(2)), Move(BOX, 2, BOX, message(3)), Move(BOX, 5, BOX, message(1)))
    assert await commit(opened.store, *chain) is None
    assert [(each.seq, each.body) for each in opened.store.load(BOX, range(9))[0]] == [(1, b"five"), (3, b"one")]
    assert await commit(opened.store, Move(BOX, 1, BOX, message(7)), Move(BOX, 3, BOX, message(1))) is None
    assert [(each.seq, each.body) for each in opened.store.load(BOX, range(9))[0]] == [(1, b"one"), (7, b"five")]


async def test_writes_to_one_number_in_one_group_keep_their_order(opened: Opened) -> None:
    """Groups are put together from many writes; the last word must stay the last."""
    await commit(opened.store, Insert(BOX, [message(1, b"old")]))
    ops = (
        Delete(BOX, [1]),
        Insert(BOX, [message(1, b"new")]),
        Insert(BOX, [message(2)]),
        Delete(BOX, [2]),
        Insert(BOX, [message(3)]),
        Insert(BOX, [message(4)]),
        Update(BOX, message(4, state=DEFERRED)),
        Update(BOX, message(4, state=SCHEDULED)),
    )
    assert await commit(opened.store, *ops) is None
    assert [(each.seq, each.body, each.state) for each in opened.store.load(BOX, range(9))[0]] == [
        (1, b"new", ACTIVE),
        (3, b"body", ACTIVE),
        (4, b"body", SCHEDULED),
    ]


async def test_the_last_sequence_number_outlives_its_message(opened: Opened) -> None:
    """A number that is given twice would make two messages one for a client that remembers numbers."""
    await commit(opened.store, Insert(BOX, [message(41)]), PutEntity(2, "{}"))
    await commit(opened.store, Move(BOX, 41, DEAD, message(42)))
    await commit(opened.store, Delete(DEAD, [42]))
    _, recovered = await opened.reopen()
    assert [(each.entity_id, each.last_seq) for each in recovered.entities] == [(1, 42), (2, 0)]
    assert recovered.damage == []


async def test_raised_sequence_number_needs_no_row(opened: Opened) -> None:
    """A topic gives out numbers, and its subscriptions have the rows."""
    await commit(opened.store, PutEntity(2, "{}"), RaiseSeq(2, 7), Insert(BOX, [message(5)]))
    await commit(opened.store, RaiseSeq(2, 6))
    _, recovered = await opened.reopen()
    assert [(each.entity_id, each.last_seq) for each in recovered.entities] == [(1, 5), (2, 7)]
    assert recovered.damage == []


async def test_a_dropped_entity_is_gone_and_its_id_is_not_forgotten(opened: Opened) -> None:
    """Ids name boxes: a new entity must not find the messages of an old one."""
    rows = (Insert(box_of(5), [message(1)]), Insert(dead_box_of(5), [message(2)]))
    await commit(opened.store, PutEntity(5, "five"), *rows, Remember(5, [("m", 10)]), PutEntity(1, "changed"))
    assert await commit(opened.store, DropEntity(5)) is None
    store, recovered = await opened.reopen()
    assert [(each.entity_id, each.description) for each in recovered.entities] == [(1, "changed")]
    assert (recovered.last_entity_id, recovered.dropped) == (5, [5])
    assert [(row.n, row.box) for row in store.index()] == [(1, box_of(5)), (2, dead_box_of(5))]
    assert recovered.damage == []
    await commit(store, Delete(box_of(5), [1]))
    await commit(store, Delete(dead_box_of(5), [2]), EraseEntity(5))
    store, recovered = await opened.reopen()
    assert (list(store.index()), store.remembered(5), recovered.dropped) == ([], [], [])
    assert (recovered.last_entity_id, recovered.damage) == (5, [])


async def test_remembered_ids_count_until_their_latest_time(opened: Opened) -> None:
    """Duplicate detection must work over a restart, and must not grow for ever."""
    await commit(opened.store, Remember(1, [("a", 10), ("b", 20), ("é", 30)]), Remember(1, [("a", 25)]))
    await commit(opened.store, Remember(2, [("a", 5)]), Forget(1, 20))
    store, _ = await opened.reopen()
    assert sorted(store.remembered(1)) == [("a", 25), ("é", 30)]
    assert store.remembered(2) == [("a", 5)]


WRONG: list[Write] = [Insert(BOX, [message(1)]), Move(BOX, 2, DEAD, message(1)), InsertPayload(60, 1, b"again")]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_a_group_fails_whole_and_the_next_one_succeeds(opened: Opened, wrong: Write) -> None:
    """A batch is atomic: half of it stored would be the worst answer to an error."""
    copy = message(5, n=61, payload=60)
    await commit(opened.store, Insert(BOX, [message(1), message(2), copy]), InsertPayload(60, 1, b"p"))
    before = everything(opened.store, BOX)
    ops = (PutEntity(7, "{}"), Insert(BOX, [message(100)]), Delete(BOX, [1]), Insert(BOX, [message(1)]), wrong)
    assert isinstance(await commit(opened.store, *ops), StoreError)
    assert everything(opened.store, BOX) == before
    assert await commit(opened.store, Insert(BOX, [message(3)])) is None
    store, recovered = await opened.reopen()
    assert index(store, BOX) == [1, 2, 3, 61]
    assert [(each.entity_id, each.last_seq) for each in recovered.entities] == [(1, 5)]
    assert (recovered.last_entity_id, recovered.damage) == (1, [])


async def test_callbacks_come_later_in_order_and_each_once(opened: Opened) -> None:
    """Answers of a connection stay in order, each behind its commit."""
    told: list[tuple[int, StoreError | None]] = []

    def note(n: int) -> Callable[[StoreError | None], None]:
        return lambda error: told.append((n, error))

    opened.store.after_commit(note(0))
    for n in range(1, 6):
        opened.store.write(Insert(BOX, [message(n)]))
        opened.store.after_commit(note(n))
        await asyncio.sleep(0)
    opened.store.after_commit(note(6))
    assert (6, None) not in told
    await commit(opened.store)
    assert told == [(n, None) for n in range(7)]


async def test_a_callback_after_the_last_write_shares_the_fate_of_its_group(opened: Opened) -> None:
    """The result `None` means that all earlier writes are durable, also when the group was already on its way."""
    told: list[StoreError | None] = []
    opened.store.write(Insert(BOX, [message(1), message(1)]))
    opened.store.after_commit(told.append)
    opened.store.after_commit(told.append)
    await commit(opened.store)
    assert len(told) == 2
    assert all(isinstance(each, StoreError) for each in told)


async def test_a_probe_tells_that_the_store_writes_and_fails_nobody(opened: Opened) -> None:
    """The probe's answer comes behind earlier writes, leaves nothing to read, and is refused after the close."""
    told: list[str] = []
    opened.store.write(Insert(BOX, [message(1)]))
    opened.store.after_commit(lambda error: told.append(f"written {error}"))
    opened.store.probe(lambda error: told.append(f"probe {error}"))
    assert told == []
    for _ in range(2):
        assert await probed(opened.store) is None
    assert await commit(opened.store, Insert(BOX, [message(2)])) is None
    assert told == ["written None", "probe None"]
    store, recovered = await opened.reopen()
    assert index(store, BOX) == [1, 2] and recovered.damage == []
    await store.close()
    assert isinstance(await probed(store), StoreError)


@pytest.mark.parametrize("has_send", [False, True])
async def test_failed_probe_fails_no_write_and_keeps_its_place(opened: Opened, has_send: bool) -> None:
    """Pings and other clients share commits: a ping to a full disk must not cost them theirs, nor overtake answers."""
    assert await commit(opened.store, Insert(BOX, [message(1), message(2)])) is None
    full, loop = StoreFull("no space left"), asyncio.get_running_loop()
    opened.store.hindrance = lambda takes_room, done: loop.call_soon(done, full if takes_room else None)  # type: ignore[assignment]
    told: list[tuple[str, StoreError | None]] = []

    def note(name: str) -> Callable[[StoreError | None], None]:
        return lambda error: told.append((name, error))

    opened.store.probe(note("first probe"))
    opened.store.after_commit(note("without writes"))
    opened.store.probe(note("second probe"))
    await commit(opened.store)
    assert told == [("first probe", full), ("without writes", None), ("second probe", full)]
    told.clear()
    opened.store.write(DropEntity(1))
    opened.store.after_commit(note("drop"))
    opened.store.probe(note("probe"))
    if has_send:
        await commit(opened.store)
        opened.store.write(Insert(BOX, [message(3)]))
        opened.store.after_commit(note("send"))
        opened.store.probe(note("probe after the send"))
    opened.store.write(Delete(BOX, [1]))
    opened.store.after_commit(note("settlement"))
    await commit(opened.store)
    names = ["drop", "probe", *(["send", "probe after the send"] if has_send else []), "settlement"]
    assert [name for name, _ in told] == names
    results = dict(told)
    assert results["drop"] is None
    assert {results[name] for name in names[1:-1]} == {full}
    assert results["settlement"] is None


async def test_full_disk_fails_the_units_that_take_room_and_no_other(opened: Opened) -> None:
    """Receivers can empty their queues although senders try again and again in the same commits."""
    assert await commit(opened.store, Insert(BOX, [message(1), message(2)])) is None
    full, loop = StoreFull("no space left"), asyncio.get_running_loop()
    opened.store.hindrance = lambda takes_room, done: loop.call_soon(done, full if takes_room else None)  # type: ignore[assignment]
    told: list[StoreError | None] = []
    state = opened.store.number()
    for op in (
        Insert(BOX, [message(3)]),
        Delete(BOX, [1]),
        SetSessionState(1, state, "s", 1, b"state"),
        Delete(BOX, [2]),
        Insert(BOX, [message(4)]),
    ):
        opened.store.write(op)
        opened.store.after_commit(told.append)
    await commit(opened.store)
    assert told == [full, None, full, None, full]
    assert await commit(opened.store, SetSessionState(1, state, "s", 1, b"state")) is full
    assert await commit(opened.store, SetSessionState(1, state, "s", 1, None)) is None
    store, _ = await opened.reopen()
    assert (index(store, BOX), store.load_state(state)) == ([], None)


async def probed(store: Store) -> StoreError | None:
    result: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.probe(result.set_result)
    return await result


async def test_close_commits_what_was_written_and_tells(opened: Opened) -> None:
    """A clean stop loses no write and leaves no caller waiting."""
    told: list[StoreError | None] = []
    opened.store.write(Insert(BOX, [message(1)]))
    opened.store.after_commit(told.append)
    if isinstance(opened.store, MemoryStore):
        await opened.store.close()
    store, recovered = await opened.reopen()
    assert told == [None]
    assert index(store, BOX) == [1]
    assert recovered.damage == []


async def test_closed_store_refuses_reads_and_writes(opened: Opened) -> None:
    """A late caller must not wait for ever, and no message may pass for damaged."""
    assert await commit(opened.store, Insert(BOX, [message(1)])) is None
    await opened.store.close()
    async with asyncio.timeout(5):
        error = await commit(opened.store, Insert(BOX, [message(2)]))
    assert error is not None and "closed" in str(error)
    with pytest.raises(StoreError, match="closed"):
        opened.store.load(BOX, [1])
    with pytest.raises(StoreError, match="closed"):
        opened.store.seq_of(BOX, 1)
    store, recovered = await opened.reopen()
    assert index(store, BOX) == [1]
    assert recovered.damage == []
