"""Units of several steps, for every store: all of their writes are committed, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pairbus.broker.store import Delete, Insert, Remember, SetSessionState
from pairbus.broker.store.group import LARGE
from pairbus.errors import StoreError, StoreFull
from tests.store.common import BOX, DEAD, Opened, commit, index, message

Told = list[tuple[str, StoreError | None]]


def noting(told: Told) -> Callable[[str], Callable[[StoreError | None], None]]:
    return lambda name: lambda error: told.append((name, error))


async def test_steps_of_a_unit_are_told_together_and_in_order(opened: Opened) -> None:
    """Each step waits for its own writes, and the unit is one step to all others."""
    store, told = opened.store, Told()
    note = noting(told)
    store.write(Insert(BOX, [message(1)]))
    store.after_commit(note("before"))
    with store.unit():
        store.write(Insert(BOX, [message(2)]))
        store.after_commit(note("first"))
        store.after_commit(note("without writes"))
        store.write(Delete(BOX, [1]))
        store.after_commit(note("second"))
    assert not told
    await commit(store)
    assert told == [(name, None) for name in ("before", "first", "without writes", "second")]
    reopened, _ = await opened.reopen()
    assert index(reopened, BOX) == [2]


async def test_unit_is_never_split_by_its_size(opened: Opened) -> None:
    """A large group is committed at once, but not before the unit has ended."""
    store, told = opened.store, Told()
    note = noting(told)
    with store.unit():
        store.write(Insert(BOX, [message(seq) for seq in range(1, 3 * LARGE)]))
        store.after_commit(note("first"))
        await asyncio.sleep(0.05)  # nothing must be committed, however long the unit takes
        assert not told and not store.load(BOX, [1]).messages
        store.write(Insert(DEAD, [message(3 * LARGE)]))
        store.after_commit(note("second"))
    await commit(store)
    assert told == [("first", None), ("second", None)]


async def test_unit_that_ends_by_an_error_writes_nothing(opened: Opened) -> None:
    """The steps before the error are told at once, so that each can undo what it did in memory."""
    store, told = opened.store, Told()
    note = noting(told)
    with pytest.raises(ValueError, match="refused"), store.unit():
        store.write(Insert(BOX, [message(1)]))
        store.after_commit(note("first"))
        raise ValueError("refused")
    assert [(name, type(error)) for name, error in told] == [("first", StoreError)]
    assert await commit(store, Insert(BOX, [message(2)])) is None
    reopened, _ = await opened.reopen()
    assert index(reopened, BOX) == [2]


async def test_full_disk_fails_a_unit_whole(opened: Opened) -> None:
    """Settlements of a unit with sends are not committed without these; a unit of settlements alone is."""
    store, told = opened.store, Told()
    note = noting(told)
    assert await commit(store, Insert(BOX, [message(1), message(2), message(3)])) is None
    full, loop = StoreFull("no space left"), asyncio.get_running_loop()
    store.hindrance = lambda takes_room, done: loop.call_soon(done, full if takes_room else None)  # type: ignore[assignment]
    state = store.number()
    for name, others in (
        ("with a send", Insert(BOX, [message(4)])),
        ("with an id", Remember(1, [("id", 9)])),
        ("with a state", SetSessionState(1, state, "s", 1, b"state")),
        ("alone", Delete(BOX, [2])),
    ):
        with store.unit():
            store.write(Delete(BOX, [3 if name == "alone" else 1]))
            store.after_commit(note(f"settlement {name}"))
            store.write(others)
            store.after_commit(note(name))
    await commit(store)
    assert told[:6:2] == [(f"settlement with {what}", full) for what in ("a send", "an id", "a state")]
    assert told[6:] == [("settlement alone", None), ("alone", None)]
    reopened, _ = await opened.reopen()
    assert index(reopened, BOX) == [1]


async def test_step_that_raises_when_it_is_told_keeps_no_other_from_being_told(opened: Opened) -> None:
    """A bug in one step must not leave others waiting for ever."""
    store, told = opened.store, Told()
    note = noting(told)

    def raises(error: StoreError | None) -> None:
        raise ValueError("a bug")

    reported: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: reported.set_result(context.get("exception"))
    )
    with store.unit():
        store.write(Insert(BOX, [message(1)]))
        store.after_commit(raises)
        store.after_commit(note("second"))
    assert isinstance(await asyncio.wait_for(reported, 5), ValueError)
    assert told == [("second", None)]
