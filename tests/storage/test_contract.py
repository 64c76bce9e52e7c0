"""The contract, over every storage: whole objects, one winner, and the same answers from all."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from pairbus.spark.storage import LargeStorage
from pairbus.spark.storage.entries import publish, read
from pairbus.spark.storage.opening import check_access

WRITERS = 8
KEYS = 25


def test_an_object_is_there_until_it_is_deleted(storage: LargeStorage) -> None:
    """The calls come one after another; each sees the results of those before."""
    assert storage.get("a/1") is None and not storage.exists("a/1") and storage.list("a/") == []
    assert storage.put_new("a/1", b"one")
    assert storage.get("a/1") == b"one" and storage.exists("a/1")
    assert not storage.put_new("a/1", b"two"), "the object exists already"
    assert storage.get("a/1") == b"one"
    storage.put("a/1", b"three")
    storage.put("a/b/2", b"")
    assert storage.get("a/1") == b"three" and storage.get("a/b/2") == b""
    storage.delete("a/1")
    storage.delete("a/1")
    assert storage.get("a/1") is None and storage.exists("a/b/2")


def test_a_list_has_all_names_below_and_no_others(storage: LargeStorage) -> None:
    """The names are in order and without the prefix; a folder whose name only begins alike is another one."""
    for key in ("log/2", "log/1", "log/day=1/x.jsonl", "logs/3", "lo"):
        storage.put(key, b".")
    assert storage.list("log/") == ["1", "2", "day=1/x.jsonl"]
    assert storage.list("nothing/") == []


def test_of_many_who_create_one_object_exactly_one_succeeds(storage: LargeStorage) -> None:
    """A seal relies on this. Every reader finds the whole object of the winner."""
    start = Barrier(WRITERS)

    def race(writer: int) -> list[bool]:
        start.wait()
        return [storage.put_new(f"seals/{key:04d}", b"%d" % writer * 1000) for key in range(KEYS)]

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(race, range(WRITERS)))
    for key in range(KEYS):
        winners = [writer for writer in range(WRITERS) if won[writer][key]]
        assert len(winners) == 1
        assert storage.get(f"seals/{key:04d}") == b"%d" % winners[0] * 1000
    assert len(storage.list("seals/")) == KEYS, "the drafts were removed"


def test_entries_of_two_writers_are_never_alike(storage: LargeStorage) -> None:
    """Two writers publish the same entry: one wins, and reading gives the entry without the writer's token."""
    assert publish(storage, "log/1.json", {"rows": 0})
    assert not publish(storage, "log/1.json", {"rows": 0})
    assert read(storage, "log/1.json") == {"rows": 0}
    assert read(storage, "log/2.json") is None


def test_a_large_object_appears_when_it_is_published(storage: LargeStorage) -> None:
    """The object does not appear while it is written, and never appears when its writer gives up."""
    data = bytes(range(256)) * 40_000
    with storage.draft("stages/1") as draft:
        draft.file.write(data)
        assert storage.open("stages/1") is None and storage.list("stages/") == []
        draft.publish()
    with storage.draft("stages/2") as given_up:
        given_up.file.write(b"half")
    assert storage.list("stages/") == ["1"]
    for _ in range(2):  # from the draft that is still open, then from the storage
        file = storage.open("stages/1")
        assert file is not None
        with file:
            file.seek(256 * 1000)
            assert file.read(256) == data[:256]
            file.seek(0)
            assert file.read() == data


def test_a_record_has_what_was_appended_in_order(storage: LargeStorage) -> None:
    """A record is one file or many objects: read in the order of their names they are the record."""
    record = storage.appender("journal/day=1/a.jsonl")
    for line in (b"1\n", b"2\n", b"3\n"):
        record.append(line)
    record.close()
    storage.appender("journal/day=1/b.jsonl").close()
    names = storage.list("journal/")
    assert all(name.startswith("day=1/a") and name.endswith(".jsonl") for name in names), (
        "no object of the other record"
    )
    assert b"".join(storage.get(f"journal/{name}") or b"" for name in names) == b"1\n2\n3\n"


def test_a_pickled_storage_is_the_same_place(storage: LargeStorage) -> None:
    """The storage travels to every task."""
    storage.put("a", b"1")
    copy: LargeStorage = pickle.loads(pickle.dumps(storage))
    assert copy.get("a") == b"1" and copy.location == storage.location


def test_a_check_leaves_nothing_behind(storage: LargeStorage) -> None:
    """Every call is made once before anything depends on it."""
    check_access(storage)
    assert storage.list("") == []
