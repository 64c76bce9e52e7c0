"""Promises of every store about the states of sessions."""

from __future__ import annotations

from pairbus.broker.store import Insert, SetSessionState, StateRow
from tests.store.common import BOX, Opened, commit, message


async def test_the_state_of_a_session_is_kept_until_it_is_cleared(opened: Opened) -> None:
    """An acknowledged state survives a restart, and its row number is not given to anything else."""
    store = opened.store
    kept = store.number(2)
    cleared = kept + 1
    assert await commit(store, SetSessionState(1, kept, "größe", 5, b"one")) is None
    assert store.load_state(kept) == b"one"
    await commit(
        store,
        SetSessionState(1, kept, "größe", 7, b"two"),
        SetSessionState(1, cleared, "other", 6, b"x"),
        SetSessionState(1, cleared, "other", 6, None),
    )
    store, recovered = await opened.reopen()
    assert list(store.session_states()) == [StateRow(kept, 1, "größe", 7, 3)]
    assert (store.load_state(kept), store.load_state(cleared)) == (b"two", None)
    assert recovered.damage == []
    assert store.number() > kept


async def test_a_state_whose_commit_failed_is_not_there(opened: Opened) -> None:
    """The writes of one group happen together or not at all."""
    n = opened.store.number()
    again = SetSessionState(1, n, "s", 1, b"state")
    assert await commit(opened.store, Insert(BOX, [message(1, n=n + 1)]), again) is None
    assert await commit(opened.store, SetSessionState(1, n, "s", 2, b"new"), Insert(BOX, [message(2, n=n + 1)]))
    assert opened.store.load_state(n) == b"state"
