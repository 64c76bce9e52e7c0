"""Messages in, messages out: order, limits, sharing, and messages that are refused."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.errors import SpoolError, SpoolFull
from pairbus.spool import Spool
from pairbus.spool.commits import SpoolChange
from pairbus.spool.files import FILE_NAME, Standing, look
from tests.spool.entries import entries, entry, number_of, waiting


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool")
    yield spool
    spool.close()


def reopened(spool: Spool) -> Spool:
    spool.close()
    return Spool(spool.folder, max_bytes=spool.max_bytes)


def test_messages_come_out_as_they_went_in_also_after_a_restart(spool: Spool) -> None:
    """Every field of an entry is kept: the envelope of a backlog message is made from them."""
    first = replace(entry(1, "Orders"), first_attempt_ms=7, sender="s", counter=3)
    assert spool.append([first, *entries(range(2, 5))]) == 4
    spool = reopened(spool)
    batch = spool.next_batch("ORDERS", 10, 10_000)
    assert [found for _, found in batch] == [first, *entries(range(2, 5))]
    assert waiting(spool) == [1, 2, 3, 4]
    assert spool.waiting == 4
    spool.close()


def test_a_path_has_messages_until_the_last_one_is_forwarded(spool: Spool) -> None:
    """Later sends queue behind them; the question is asked on every send, in any spelling of the path."""
    assert not spool.has("orders")
    spool.append(entries(range(3), "Orders"))
    numbers = [number for number, _ in spool.next_batch("orders", 10, 10_000)]
    spool.forwarded(numbers[:2])
    assert spool.has("ORDERS") and not spool.has("bills") and spool.waiting == 1
    spool.forwarded(numbers)
    assert not spool.has("orders") and spool.waiting == 0 and spool.stored_bytes == 0
    assert spool.paths() == []


def test_paths_come_by_their_oldest_message(spool: Spool) -> None:
    """The path whose message waits longest is served first; the order changes when that message is gone."""
    spool.append([entry(1, "b"), entry(2, "a"), entry(3, "B")])
    assert spool.paths() == ["b", "a"]
    [(number, _), *_] = spool.next_batch("b", 1, 1)
    spool.forwarded([number])
    assert spool.paths() == ["a", "B"]


def test_a_batch_ends_at_its_limits_and_is_never_empty(spool: Spool) -> None:
    """A message larger than the limit must come too, alone: otherwise it would block its lane for ever."""
    spool.append(entries(range(10), size=1000))
    size = len(entry(0, size=1000).payload)
    assert len(spool.next_batch("orders", 4, 1_000_000)) == 4
    assert len(spool.next_batch("orders", 100, 3 * size)) == 3
    assert len(spool.next_batch("orders", 100, 1)) == 1


def test_a_removed_number_is_not_given_again(spool: Spool) -> None:
    """A late second removal must not hit another message."""
    spool.append([entry(1)])
    [(number, _)] = spool.next_batch("orders", 1, 1000)
    spool.forwarded([number])
    spool.append([entry(2)])
    spool.forwarded([number])
    assert waiting(spool) == [2]


def test_a_full_spool_stores_nothing_of_what_does_not_fit(tmp_path: Path) -> None:
    """A list is stored whole or not at all, so its caller still owns all of it; forwarded messages make room."""
    spool = Spool(tmp_path / "spool", max_bytes=3 * entry(0).size)
    spool.append(entries(range(2)))
    with pytest.raises(SpoolFull, match="not stored"):
        spool.append(entries(range(2, 4)))
    spool.append([entry(4)])
    with pytest.raises(SpoolFull):
        spool.append([entry(5)])
    assert waiting(spool) == [0, 1, 4]
    spool = reopened(spool)
    with pytest.raises(SpoolFull):
        spool.append([entry(5)])
    spool.forwarded([spool.next_batch("orders", 1, 1)[0][0]])
    spool.append([entry(6)])
    assert waiting(spool) == [1, 4, 6]
    spool.close()


@contextmanager
def held_up(spool: Spool) -> Iterator[None]:
    """A commit is under way, and does not end before the block does."""
    began, goes_on = threading.Event(), threading.Event()

    def hold(connection: sqlite3.Connection) -> None:
        began.set()
        assert goes_on.wait(10)

    holder = threading.Thread(target=spool._change, args=(hold, lambda committed: None))
    holder.start()
    assert began.wait(10)
    try:
        yield
    finally:
        goes_on.set()
        holder.join(10)


def appending(spool: Spool, numbers: range) -> list[threading.Thread]:
    """Threads that append one message each, once all of them wait for their commit."""
    threads = [threading.Thread(target=spool.append, args=([entry(number)],)) for number in numbers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while len(spool._commits._pending) < len(threads):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return threads


def test_threads_that_append_at_once_share_a_commit(spool: Spool) -> None:
    """Six appends come while one commit is held up: they are stored by one more commit, not by six."""
    commits: list[str] = []
    with spool._commits.reading() as connection:
        connection.set_trace_callback(lambda sql: commits.append(sql) if sql.startswith("COMMIT") else None)
    with held_up(spool):
        threads = appending(spool, range(6))
        assert spool.waiting == 0, "nothing counts before it is committed"
    for thread in threads:
        thread.join(10)
    assert sorted(waiting(spool)) == list(range(6))
    assert len(commits) == 2


def test_appends_under_way_count_against_the_limit(tmp_path: Path) -> None:
    """Otherwise all callers that come during one slow commit would find room, and all would be stored."""
    spool = Spool(tmp_path / "spool", max_bytes=3 * entry(0).size)
    with held_up(spool):
        threads = appending(spool, range(3))
        with pytest.raises(SpoolFull):
            spool.append([entry(3)])
    for thread in threads:
        thread.join(10)
    assert sorted(waiting(spool)) == [0, 1, 2]
    spool.close()


def test_every_commit_is_synced_before_it_is_told(spool: Spool) -> None:
    """A process that is killed cannot show it, a loss of power would: 2 is FULL, an fsync at every commit."""
    with spool._commits.reading() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_each_thread_finds_its_own_messages_in_its_own_order(spool: Spool) -> None:
    """Leaders and followers: no thread's change is forgotten, and a thread's second message comes behind its first."""

    def work(name: int) -> None:
        for number in range(50):
            spool.append([entry(number, f"path-{name}")])

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert spool.waiting == 300
    for name in range(6):
        assert waiting(spool, f"PATH-{name}") == list(range(50))


def test_one_change_that_fails_does_not_take_its_group_along(spool: Spool) -> None:
    """A removal that shares a commit with an append that is too much must happen, or messages would be sent again."""
    spool.append(entries(range(2)))
    [(number, _), _] = spool.next_batch("orders", 2, 10_000)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO waiting (number, path) VALUES (1000, 'half')")
        connection.execute("this is not SQL")

    ended: list[bool] = []
    with spool._commits.turn:
        bad = spool._commits.enqueue(fail, ended.append)
        good = spool._commits.enqueue(
            lambda connection: connection.execute("DELETE FROM waiting WHERE number = ?", (number,)), ended.append
        )
    spool._commits.settle(good)
    with pytest.raises(SpoolError, match="not stored"):
        spool._commits.settle(bad)
    assert ended == [False, True]
    assert waiting(spool) == [1]


def test_an_interrupted_commit_leaves_a_spool_that_knows_what_it_holds(spool: Spool) -> None:
    """Ctrl-C in the thread that leads: the others are told, and the next append works."""

    def interrupt(connection: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    with spool._commits.turn:
        leader = spool._commits.enqueue(interrupt, lambda committed: None)
        follower = spool._commits.enqueue(lambda connection: None, lambda committed: None)
    with pytest.raises(KeyboardInterrupt):
        spool._commits.settle(leader)
    with pytest.raises(SpoolError, match="not known"):
        spool._commits.settle(follower)
    assert spool.append([entry(1)]) == 1
    assert waiting(spool) == [1]


def test_an_unknown_outcome_is_kept_and_the_first_one_counts(spool: Spool) -> None:
    """The backlog message says since when the primary may have it; the checksum goes along with the change."""
    spool.append([replace(entry(1), first_attempt_ms=5), entry(2)])
    spool.attempted(spool.next_batch("orders", 10, 10_000), 50)
    spool.attempted(spool.next_batch("orders", 10, 10_000), 60)
    spool = reopened(spool)
    assert [found.first_attempt_ms for _, found in spool.next_batch("orders", 10, 10_000)] == [5, 50]
    assert spool.refused == 0
    spool.close()


def test_refused_messages_stand_aside_and_can_be_put_back(spool: Spool) -> None:
    """Refused messages are never deleted: they count against the limit, are listed with the reason, and return to
    their place.
    """
    spool.append(entries(range(3)))
    batch = spool.next_batch("orders", 10, 10_000)
    spool.refuse([(batch[1][0], "too large")], refused_ms=9)
    size = spool.stored_bytes
    spool = reopened(spool)
    assert waiting(spool) == [0, 2] and spool.refused == 1 and spool.stored_bytes == size
    _, [standing] = look(spool.folder)
    assert (standing.waiting, standing.refused, standing.reasons) == (2, 1, ("too large",))
    assert spool.retry_refused() == 1
    assert waiting(spool) == [0, 1, 2] and spool.refused == 0 and spool.waiting == 3
    spool.close()


def test_damaged_message_is_set_aside_and_the_rest_goes_on(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped bit in one body must not hold back the others, and damaged bytes must not be sent."""
    spool.append(entries(range(4)))
    spool.close()
    file = spool.folder / FILE_NAME
    content = bytearray(file.read_bytes())
    at = content.index(entry(1).payload)
    content[at + len(entry(1).payload) - 1] ^= 1
    file.write_bytes(content)
    spool = Spool(spool.folder)
    with caplog.at_level(logging.ERROR):
        assert waiting(spool) == [0, 2, 3]
    assert "1 damaged messages for orders are refused" in caplog.text
    _, [standing] = look(spool.folder)
    assert standing.refused == 1 and standing.reasons == ("damaged: the checksum is wrong",)
    spool.close()


def test_a_batch_of_damaged_messages_does_not_end_the_lane(spool: Spool) -> None:
    """Messages behind the damaged ones are read at once: an empty batch would say that nothing waits."""
    spool.append(entries(range(5)))
    with spool._commits.reading() as connection:
        connection.execute("UPDATE waiting SET payload = NULL WHERE number <= 2")
    [(_, found)] = spool.next_batch("orders", 1, 10_000)
    assert number_of(found.payload) == 2 and spool.refused == 2


def test_an_emptied_spool_gives_the_disk_back(spool: Spool) -> None:
    """An outage may fill a gigabyte; the next one may be a year away."""
    spool.append(entries(range(100), size=50_000))
    spool.forwarded([number for number, _ in spool.next_batch("orders", 1000, 1 << 30)])
    held = sum(file.stat().st_size for file in spool.folder.glob(f"{FILE_NAME}*"))
    assert held < 1 << 20


def test_looking_shows_every_path_while_the_owner_lives(spool: Spool) -> None:
    """The path that waits longest comes first; looking changes no file."""
    spool.append([entry(1, "b"), entry(2, "a"), entry(3, "B")])
    _, found = look(spool.folder)
    assert found == [Standing("b", 2, 2 * entry(1, "b").size, 1001), Standing("a", 1, entry(2, "a").size, 1002)]
    assert spool.append([entry(4)]) == 4


def test_a_closed_spool_says_so(spool: Spool) -> None:
    """Closing a spool twice is harmless."""
    spool.close()
    spool.close()
    with pytest.raises(SpoolError, match="not open in this process"):
        spool.append([entry(1)])
    with pytest.raises(SpoolError, match="not open in this process"):
        spool.next_batch("orders", 1, 1)
    assert "closed" in repr(spool)


def test_whoever_listens_hears_of_an_append_when_it_is_durable(spool: Spool) -> None:
    """The forwarder is woken by it."""
    heard: list[int] = []
    spool.on_append = lambda: heard.append(spool.waiting)
    spool.append(entries(range(2)))
    assert heard == [2]


def test_close_commits_a_change_whose_thread_was_interrupted(tmp_path: Path) -> None:
    """The change was in the line, and no thread is left to lead it: `close` would wait for ever."""
    spool, ended = Spool(tmp_path), list[bool]()
    with spool._commits.turn:
        spool._commits.enqueue(lambda connection: None, ended.append)
    closing = threading.Thread(target=spool.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive() and ended == [True]
    Spool(tmp_path).close()


def test_close_waits_for_a_leader_that_has_its_group(tmp_path: Path) -> None:
    """The leader may be paused before it uses the connection, which `close` must not take away from it."""
    spool, stored = Spool(tmp_path), list[int]()
    commits, taken, go = spool._commits, threading.Event(), threading.Event()
    commit, wait = commits._commit, commits.turn.wait

    def commit_later(group: list[SpoolChange]) -> None:
        taken.set()
        assert go.wait(10)
        commit(group)

    def go_on_and_wait(timeout: float | None = None) -> bool:
        go.set()
        return wait(timeout)

    commits._commit = commit_later  # type: ignore[method-assign]
    commits.turn.wait = go_on_and_wait  # type: ignore[method-assign]
    leader = threading.Thread(target=lambda: stored.append(spool.append(entries(range(3)))), daemon=True)
    leader.start()
    assert taken.wait(10)
    spool.close()
    go.set()
    leader.join(10)
    assert stored == [3]
