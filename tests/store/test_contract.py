"""One body of tests for every store: what `pairbus.broker.store` promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.broker.store import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    Delete,
    DropQueue,
    Forget,
    Insert,
    Move,
    PutQueue,
    Recovered,
    Remember,
    Store,
    StoredMessage,
    Update,
    Write,
    box_of,
    dead_box_of,
)
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreError
from tests.store.common import commit, fields

BOX, DEAD = box_of(1), dead_box_of(1)


def message(seq: int, body: bytes = b"body", **others: object) -> StoredMessage:
    return StoredMessage(seq, body, **others)  # type: ignore[arg-type]


def full_message(seq: int) -> StoredMessage:
    return StoredMessage(
        seq,
        bytes(range(256)) * 5,
        annotations=b"\xa3\x01a\x40",
        message_id="größe-\N{SNOWMAN}",
        state=SCHEDULED,
        enqueued_ms=1_700_000_000_000,
        expires_ms=2**62,
        scheduled_ms=1_700_000_000_001,
        ttl_ms=5,
        delivery_count=2**31,
        patch=b"\xa3\x01b\x41",
    )


def everything(store: Store, box: int) -> list[tuple[object, ...]]:
    return [fields(each) for each in store.scan(box, 0, 10_000)]


@dataclass
class Opened:
    """A store with one queue, and how to open it again with what it kept."""

    store: Store
    reopen: Callable[[], Awaitable[tuple[Store, Recovered]]]


@pytest.fixture(params=["memory", "sqlite"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    current: list[Store] = [MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)]

    async def reopen() -> tuple[Store, Recovered]:
        if request.param == "sqlite":
            await current[0].close()
            current[0] = SqliteStore(tmp_path)
        return current[0], current[0].recover()

    assert current[0].recover() == Recovered([], [], 0)
    assert await commit(current[0], PutQueue(1, '{"name": "q"}')) is None
    yield Opened(current[0], reopen)
    await current[0].close()


async def test_a_message_comes_back_with_every_field_as_it_was_written(opened: Opened) -> None:
    """A field that is not kept would change the message over a restart."""
    assert await commit(opened.store, Insert(BOX, [full_message(7), message(8)])) is None
    loaded, damaged = opened.store.load(BOX, [7, 8])
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
    [stored], _ = opened.store.load(BOX, [1])
    assert stored.delivery_count == 0
    stored.state = DEFERRED
    assert opened.store.load(BOX, [1])[0][0].state == ACTIVE


async def test_reads_see_only_what_is_committed(opened: Opened) -> None:
    """A message that is delivered before its commit could be lost after its completion."""
    opened.store.write(Insert(BOX, [message(1)]))
    assert opened.store.load(BOX, [1]) == ([], [])
    assert opened.store.scan(BOX, 0, 10) == []
    await commit(opened.store)
    assert [each.seq for each in opened.store.scan(BOX, 0, 10)] == [1]


async def test_load_gives_the_wanted_numbers_ascending_and_skips_absent_ones(opened: Opened) -> None:
    """Dense, scattered, repeated and unordered requests take different ways through SQLite."""
    await commit(opened.store, Insert(BOX, [message(seq) for seq in range(1, 1001) if seq % 7]))
    for wanted in ([3], [7], [9, 8, 8], list(range(1, 400)), list(range(1, 1000, 13)), [1, 7, 1000, 5000], [14, 6, 8]):
        loaded, damaged = opened.store.load(BOX, wanted)
        assert [each.seq for each in loaded] == sorted({seq for seq in wanted if seq % 7 and seq <= 1000})
        assert damaged == []
    assert opened.store.load(BOX, [6, 8, 700])[0][0].seq == 6
    assert opened.store.load(BOX, []) == ([], [])
    assert opened.store.load(99, [1]) == ([], [])


async def test_an_absent_number_between_wanted_ones_brings_no_neighbour(opened: Opened) -> None:
    """Numbers 1 and 3 are asked for as a range; the 2 between them was not asked for."""
    await commit(opened.store, Insert(BOX, [message(2)]))
    assert opened.store.load(BOX, [1, 3]) == ([], [])


async def test_scan_starts_at_a_number_and_stops_at_the_limit(opened: Opened) -> None:
    """Peek pages through a queue this way."""
    await commit(opened.store, Insert(BOX, [message(seq) for seq in (2, 4, 6, 8)]))
    assert [each.seq for each in opened.store.scan(BOX, 3, 2)] == [4, 6]
    assert [each.seq for each in opened.store.scan(BOX, 8, 5)] == [8]
    assert opened.store.scan(BOX, 9, 5) == []
    assert opened.store.scan(99, 0, 5) == []


async def test_the_index_lists_a_box_in_order_with_sizes(opened: Opened) -> None:
    """From it the broker rebuilds a queue at start, without the bodies."""
    late = message(5, b"x" * 3000, annotations=b"ab", patch=b"c", expires_ms=9, state=SCHEDULED, scheduled_ms=8)
    await commit(opened.store, Insert(BOX, [late, message(2, b"")]))
    store, _ = await opened.reopen()
    assert list(store.index(BOX)) == [(2, ACTIVE, 0, 0, 0), (5, SCHEDULED, 9, 8, 3003)]
    assert list(store.index(DEAD)) == []
    assert list(store.index(99)) == []


async def test_an_update_replaces_every_field_but_the_body(opened: Opened) -> None:
    """An abandoned message is updated from an object whose body may be gone already."""
    await commit(opened.store, Insert(BOX, [full_message(1), message(2)]))
    changed = message(1, b"", delivery_count=3, patch=b"new", message_id="m", state=DEFERRED)
    await commit(opened.store, Update(BOX, changed), Update(BOX, message(77)))
    changed.body = full_message(1).body
    assert everything(opened.store, BOX) == [fields(changed), fields(message(2))]


async def test_a_move_takes_the_body_to_another_box_or_number(opened: Opened) -> None:
    """Dead-lettering keeps the number, activation of a scheduled message gives a new one."""
    await commit(opened.store, Insert(BOX, [full_message(1), full_message(2), message(3)]))
    dead, active = message(1, b"", patch=b"reason"), message(4, b"")
    await commit(opened.store, Move(BOX, 1, DEAD, dead), Move(BOX, 2, BOX, active), Move(BOX, 50, DEAD, message(50)))
    dead.body = active.body = full_message(1).body
    assert everything(opened.store, DEAD) == [fields(dead)]
    assert everything(opened.store, BOX) == [fields(message(3)), fields(active)]


async def test_moves_that_follow_each_other_happen_one_after_the_other(opened: Opened) -> None:
    """A chain within one group: 1 becomes 2, 2 becomes 3, and the freed 1 is taken by 5."""
    await commit(opened.store, Insert(BOX, [message(1, b"one"), message(5, b"five")]))
    chain = (Move(BOX, 1, BOX, message(2)), Move(BOX, 2, BOX, message(3)), Move(BOX, 5, BOX, message(1)))
    assert await commit(opened.store, *chain) is None
    assert [(each.seq, each.body) for each in opened.store.scan(BOX, 0, 9)] == [(1, b"five"), (3, b"one")]
    assert await commit(opened.store, Move(BOX, 1, BOX, message(7)), Move(BOX, 3, BOX, message(1))) is None
    assert [(each.seq, each.body) for each in opened.store.scan(BOX, 0, 9)] == [(1, b"one"), (7, b"five")]


async def test_a_move_to_its_own_place_changes_the_fields_only(opened: Opened) -> None:
    """A move to where a message already is must not count as a second message of that number."""
    await commit(opened.store, Insert(BOX, [message(1, b"one")]))
    assert await commit(opened.store, Move(BOX, 1, BOX, message(1, b"", delivery_count=2))) is None
    assert [(each.body, each.delivery_count) for each in opened.store.scan(BOX, 0, 9)] == [(b"one", 2)]


async def test_writes_to_one_number_in_one_group_keep_their_order(opened: Opened) -> None:
    """Groups are put together from many writes; the last word must stay the last."""
    await commit(opened.store, Insert(BOX, [message(1, b"old")]))
    ops = (
        Delete(BOX, [1]),
        Insert(BOX, [message(1, b"new")]),
        Insert(BOX, [message(2)]),
        Delete(BOX, [2]),
        Update(BOX, message(3, state=DEFERRED)),
        Insert(BOX, [message(3)]),
        Insert(BOX, [message(4)]),
        Update(BOX, message(4, state=DEFERRED)),
        Update(BOX, message(4, state=SCHEDULED)),
    )
    assert await commit(opened.store, *ops) is None
    assert [(each.seq, each.body, each.state) for each in opened.store.scan(BOX, 0, 9)] == [
        (1, b"new", ACTIVE),
        (3, b"body", ACTIVE),
        (4, b"body", SCHEDULED),
    ]


async def test_the_last_sequence_number_outlives_its_message(opened: Opened) -> None:
    """A number that is given twice would make two messages one for a client that remembers numbers."""
    await commit(opened.store, Insert(BOX, [message(41)]), PutQueue(2, "{}"))
    await commit(opened.store, Move(BOX, 41, DEAD, message(42)))
    await commit(opened.store, Delete(DEAD, [42]), Delete(BOX, [41, 1000]))
    _, recovered = await opened.reopen()
    assert [(each.queue_id, each.last_seq) for each in recovered.queues] == [(1, 42), (2, 0)]
    assert recovered.damage == []


async def test_a_dropped_queue_is_gone_and_its_id_is_not_forgotten(opened: Opened) -> None:
    """Ids name boxes: a new queue must not find the messages of an old one."""
    filled = (PutQueue(5, "five"), Insert(box_of(5), [message(1)]), Insert(dead_box_of(5), [message(2)]))
    await commit(opened.store, *filled, Remember(5, [("m", 10)]), PutQueue(1, "changed"))
    assert await commit(opened.store, DropQueue(5)) is None
    assert opened.store.load(box_of(5), [1]) == ([], [])
    assert opened.store.scan(dead_box_of(5), 0, 10) == []
    store, recovered = await opened.reopen()
    assert [(each.queue_id, each.description) for each in recovered.queues] == [(1, "changed")]
    assert recovered.last_queue_id == 5
    assert store.remembered(5) == []


async def test_a_queue_made_again_in_the_group_that_drops_it_is_empty(opened: Opened) -> None:
    """The order of drop and put decides; put again later, it starts with its numbers anew."""
    await commit(opened.store, Insert(BOX, [message(9)]), Remember(1, [("m", 10)]))
    assert await commit(opened.store, DropQueue(1), PutQueue(1, "again"), Insert(BOX, [message(1)])) is None
    store, recovered = await opened.reopen()
    assert [(each.description, each.last_seq) for each in recovered.queues] == [("again", 1)]
    assert [each[0] for each in store.index(BOX)] == [1]
    assert store.remembered(1) == []
    assert recovered.damage == []
    await commit(store, DropQueue(1))
    await commit(store, PutQueue(1, "{}"))
    _, recovered = await opened.reopen()
    assert [each.last_seq for each in recovered.queues] == [0]


async def test_remembered_ids_count_until_their_latest_time(opened: Opened) -> None:
    """Duplicate detection must work over a restart, and must not grow for ever."""
    await commit(opened.store, Remember(1, [("a", 10), ("b", 20), ("é", 30)]), Remember(1, [("a", 25)]))
    await commit(opened.store, Remember(2, [("a", 5)]), Forget(1, 20))
    store, _ = await opened.reopen()
    assert sorted(store.remembered(1)) == [("a", 25), ("é", 30)]
    assert store.remembered(2) == [("a", 5)]


@pytest.mark.parametrize(
    "wrong", [Insert(BOX, [message(1)]), Insert(99, [message(5)]), Move(BOX, 2, DEAD, message(1))], ids=repr
)
async def test_a_group_fails_whole_and_the_next_one_succeeds(opened: Opened, wrong: Write) -> None:
    """A batch is atomic: half of it stored would be the worst answer to an error."""
    await commit(opened.store, Insert(BOX, [message(1), message(2)]), Insert(DEAD, [message(1)]))
    before = everything(opened.store, BOX)
    ops = (PutQueue(7, "{}"), Insert(BOX, [message(100)]), Delete(BOX, [1]), Insert(BOX, [message(1)]), wrong)
    assert isinstance(await commit(opened.store, *ops), StoreError)
    assert everything(opened.store, BOX) == before
    assert await commit(opened.store, Insert(BOX, [message(3)])) is None
    store, recovered = await opened.reopen()
    assert [each[0] for each in store.index(BOX)] == [1, 2, 3]
    assert [(each.queue_id, each.last_seq) for each in recovered.queues] == [(1, 3)]
    assert (recovered.last_queue_id, recovered.damage) == (1, [])


async def test_callbacks_come_later_in_order_and_each_once(opened: Opened) -> None:
    """Everything that a connection says stays in order behind its commit."""
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
    """`None` means that everything written before is durable, also when the group was already on its way."""
    told: list[StoreError | None] = []
    opened.store.write(Insert(99, [message(1)]))
    opened.store.after_commit(told.append)
    opened.store.after_commit(told.append)
    await commit(opened.store)
    assert len(told) == 2
    assert all(isinstance(each, StoreError) for each in told)


async def test_a_probe_tells_that_the_store_writes_and_fails_nobody(opened: Opened) -> None:
    """It comes later, behind what was written, leaves nothing to read, and is refused after the close."""
    told: list[str] = []
    opened.store.write(Insert(BOX, [message(1)]))
    opened.store.after_commit(lambda error: told.append(f"written {error}"))
    opened.store.probe(lambda error: told.append(f"probe {error}"))
    assert told == []
    for _ in range(2):
        assert await probed(opened.store) is None
    assert await commit(opened.store, Insert(BOX, [message(2)])) is None
    assert sorted(told) == ["probe None", "written None"]
    store, recovered = await opened.reopen()
    assert [row[0] for row in store.index(BOX)] == [1, 2] and recovered.damage == []
    await store.close()
    assert isinstance(await probed(store), StoreError)


async def probed(store: Store) -> StoreError | None:
    result: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    store.probe(result.set_result)
    return await result


async def test_close_commits_what_was_written_and_tells(opened: Opened) -> None:
    """A clean stop loses nothing and leaves nobody waiting."""
    told: list[StoreError | None] = []
    opened.store.write(Insert(BOX, [message(1)]))
    opened.store.after_commit(told.append)
    if isinstance(opened.store, MemoryStore):
        await opened.store.close()
    store, recovered = await opened.reopen()
    assert told == [None]
    assert [each[0] for each in store.index(BOX)] == [1]
    assert recovered.damage == []


async def test_after_the_close_nothing_is_stored_or_read_and_whoever_asks_hears_it(opened: Opened) -> None:
    """Somebody may come as late as that: he must not wait for ever, and no message may pass for damaged."""
    assert await commit(opened.store, Insert(BOX, [message(1)])) is None
    await opened.store.close()
    async with asyncio.timeout(5):
        error = await commit(opened.store, Insert(BOX, [message(2)]))
    assert error is not None and "closed" in str(error)
    with pytest.raises(StoreError, match="closed"):
        opened.store.load(BOX, [1])
    with pytest.raises(StoreError, match="closed"):
        opened.store.scan(BOX, 0, 10)
    store, recovered = await opened.reopen()
    assert [each[0] for each in store.index(BOX)] == [1]
    assert recovered.damage == []


SEQS = st.integers(1, 12)
BOXES = st.sampled_from([BOX, DEAD])
MESSAGES = st.builds(message, SEQS, st.binary(max_size=3), state=st.integers(0, 2), patch=st.binary(max_size=2))
OPS = st.one_of(
    st.builds(Insert, BOXES, st.lists(MESSAGES, max_size=4)),
    st.builds(Delete, BOXES, st.lists(SEQS, max_size=6)),
    st.builds(Update, BOXES, MESSAGES),
    st.builds(Move, BOXES, SEQS, BOXES, MESSAGES),
    st.builds(DropQueue, st.just(1)),
    st.builds(PutQueue, st.just(1), st.sampled_from(["a", "b"])),
    st.builds(Remember, st.just(1), st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 9)), max_size=3)),
    st.builds(Forget, st.just(1), st.integers(1, 9)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPS, min_size=1, max_size=8), max_size=6))
def test_any_history_leaves_both_stores_the_same(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[Write]]
) -> None:
    """Groups are rearranged for speed; no history of groups may come out differently from the plain twin's."""

    async def run() -> None:
        folder = tmp_path_factory.mktemp("history")
        twin, store = MemoryStore(), SqliteStore(folder)
        store.recover()
        groups: list[list[Write]] = [[PutQueue(1, "a")], *history]
        for group in groups:
            expected, got = await commit(twin, *group), await commit(store, *group)
            assert (expected is None) == (got is None), (expected, got)
            for box in (BOX, DEAD):
                assert everything(store, box) == everything(twin, box)
        await store.close()
        store = SqliteStore(folder)
        recovered, known = store.recover(), twin.recover()
        for box in (BOX, DEAD):
            assert list(store.index(box)) == list(twin.index(box))
        assert sorted(store.remembered(1)) == sorted(twin.remembered(1))
        assert [each.description for each in recovered.queues] == [each.description for each in known.queues]
        # A move of a message that is not there may still use up its new number.
        assert all(a.last_seq >= b.last_seq for a, b in zip(recovered.queues, known.queues, strict=True))
        assert recovered.damage == []
        await store.close()

    asyncio.run(run())
