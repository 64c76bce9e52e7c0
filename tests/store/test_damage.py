"""Files that were cut or hit by flipped bits: what is served is what was written, and what is missing is announced."""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from pairbus.broker.store import Remember
from pairbus.broker.store.salvage import SalvageReport, salvage
from pairbus.broker.store.schema import PAGE_BYTES
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.errors import StoreDamaged, StoreError
from tests.store.common import BOXES, QUEUES, Fields, commit, fields, filled_store, sample_message

DATABASE, LOG, COMMITS = "messages.db", "messages.db-wal", "commits"
FILES = [("closed", DATABASE), ("closed", COMMITS), ("killed", DATABASE), ("killed", LOG), ("killed", COMMITS)]


@dataclass
class Original:
    """The files of a store, and what it holds."""

    folder: Path
    held: dict[int, set[int]]

    def copy(self, to: Path) -> Path:
        """The index of the log (-shm) is left out: after a death of the machine there is none."""
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        for name in (DATABASE, LOG, COMMITS):
            if (self.folder / name).exists():
                shutil.copyfile(self.folder / name, to / name)
        return to


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A store that was closed: everything is in the database."""
    folder = tmp_path_factory.mktemp("closed")

    async def fill() -> dict[int, set[int]]:
        store, held = await filled_store(folder)
        await store.close()
        return held

    return Original(folder, asyncio.run(fill()))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A store as a killed process leaves it: part is in the database, part in the log."""
    folder, image = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("killed")

    async def fill() -> dict[int, set[int]]:
        store, held = await filled_store(folder)
        Original(folder, held).copy(image)
        await store.close()
        return held

    return Original(image, asyncio.run(fill()))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def check_opening(folder: Path, held: dict[int, set[int]]) -> str:
    """Open the store and hold it to the rule. Returns "refused", "announced" or "whole"."""

    async def run() -> str:
        store = SqliteStore(folder)
        try:
            recovered = store.recover()
        except StoreError as error:
            assert str(folder) in str(error), "an error names the file"
            return "refused"
        served: dict[int, set[int]] = {}
        unreadable: list[int] = []
        rows = list(store.index())
        for box in BOXES:
            seqs = [row.n for row in rows if row.box == box]
            messages, damaged, _ = store.load(box, seqs)
            unreadable += damaged
            assert [fields(each) for each in messages] == [fields(sample_message(each.seq)) for each in messages]
            assert [each.seq for each in messages] == [seq for seq in seqs if seq not in damaged]
            served[box] = {each.seq for each in messages}
            assert served[box] <= held[box], "a message turned up where it never was"
        remembered = len(store.remembered(1))
        await store.close()
        queues = {queue.entity_id: queue.description for queue in recovered.entities}
        assert queues.items() <= QUEUES.items()
        high = {queue.entity_id: queue.last_seq for queue in recovered.entities}
        last = {queue_id: max(max(held[box]) for box in BOXES if BOXES[box] == queue_id) for queue_id in QUEUES}
        if served == held and queues == QUEUES and high == last and remembered == 12:
            return "announced" if recovered.damage else "whole"
        assert recovered.damage or unreadable, f"missing without a word: {served} {queues} {high} {remembered}"
        return "announced"

    return asyncio.run(run())


@pytest.mark.parametrize(("state", "name"), FILES)
def test_a_cut_file_is_refused_or_what_is_missing_is_announced(
    request: pytest.FixtureRequest, tmp_path: Path, state: str, name: str
) -> None:
    """SQLite itself says nothing about a log that ends early."""
    original: Original = request.getfixturevalue(state)
    size = (original.folder / name).stat().st_size
    source = random.Random(f"cut {state} {name}")
    sizes = {0, 1, 99, 100, PAGE_BYTES, PAGE_BYTES + 1, size // 2, size - PAGE_BYTES, size - 1}
    sizes |= {source.randrange(size) for _ in range(15)}
    for cut_size in sorted(each for each in sizes if 0 <= each < size):
        folder = original.copy(tmp_path / "store")
        cut(folder / name, cut_size)
        outcome = check_opening(folder, original.held)
        # The log may contain exactly the pages that were cut off the database: then nothing is missing.
        assert outcome != "whole" or (state, name) == ("killed", DATABASE), f"{name} cut to {cut_size} bytes"


@pytest.mark.parametrize(("state", "name"), FILES)
def test_a_flipped_bit_is_harmless_or_found(
    request: pytest.FixtureRequest, tmp_path: Path, state: str, name: str
) -> None:
    """Headers, pages, keys, checksums, bodies and free space are hit; only free space may go unnoticed."""
    original: Original = request.getfixturevalue(state)
    size = (original.folder / name).stat().st_size
    source = random.Random(f"flip {state} {name}")
    bits = [source.randrange(size * 8) for _ in range(60)]
    # Where the structure is densest: the file's header and the beginning of every page.
    bits += [source.randrange(min(size, 150) * 8) for _ in range(30)]
    bits += [page * 8 + source.randrange(64 * 8) for page in range(0, size - PAGE_BYTES, PAGE_BYTES)]
    found = 0
    for bit in bits:
        folder = original.copy(tmp_path / "store")
        flip(folder / name, bit)
        found += check_opening(folder, original.held) != "whole"
    assert found > len(bits) // 4, "the flips did not reach anything that matters"


def test_commits_behind_a_flipped_bit_are_counted_as_missing(killed: Original, tmp_path: Path) -> None:
    """The text says how many commits are gone, and says it once."""
    folder = killed.copy(tmp_path / "store")
    log_size = (folder / LOG).stat().st_size
    flip(folder / LOG, (log_size - 100) * 8)

    async def damage() -> list[str]:
        store = SqliteStore(folder)
        told = store.recover().damage
        list(store.index())
        await store.close()
        return told

    async def write_on() -> None:
        store = SqliteStore(folder)
        store.recover()
        list(store.index())
        for _ in range(3):
            assert await commit(store, Remember(1, [("more", 1)])) is None
        await store.close()

    [sentence] = asyncio.run(damage())
    asyncio.run(write_on())
    assert asyncio.run(damage()) == []
    assert "the last 1 acknowledged commits are missing" in sentence
    assert DATABASE in sentence


def test_a_refused_store_is_not_changed(killed: Original, tmp_path: Path) -> None:
    """A salvage, or a better tool than ours, must find everything that is still there."""
    folder = killed.copy(tmp_path / "store")
    flip(folder / DATABASE, 105 * 8)
    cut(folder / LOG, 0)
    before = digests(folder)
    with pytest.raises(StoreDamaged, match=f"pairbus store salvage {folder} --to"):
        SqliteStore(folder).recover()
    assert digests(folder) == before


# ── salvage ──


def digests(folder: Path) -> dict[str, str]:
    names = (DATABASE, LOG, COMMITS)
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in names if (folder / name).exists()}


def salvaged(folder: Path, to_folder: Path) -> tuple[SalvageReport, dict[int, list[Fields]]]:
    """Salvage, then open the result like any store. It must be intact, and the source untouched."""
    before = digests(folder)
    report = salvage(folder, to_folder)
    assert digests(folder) == before

    async def content() -> dict[int, list[Fields]]:
        store = SqliteStore(to_folder)
        recovered = store.recover()
        boxes = {box: [fields(each) for each in store.load(box, range(1, 10_000))[0]] for box in BOXES}
        assert len(list(store.index())) == sum(map(len, boxes.values()))
        assert recovered.damage == []
        await store.close()
        return boxes

    return report, asyncio.run(content())


def intact(held: dict[int, set[int]]) -> dict[int, list[Fields]]:
    return {box: [fields(sample_message(seq)) for seq in sorted(seqs)] for box, seqs in held.items()}


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_salvage_copies_everything_of_an_intact_store(
    request: pytest.FixtureRequest, tmp_path: Path, state: str
) -> None:
    """Including what is still in the log alone, and the highest sequence numbers."""
    original: Original = request.getfixturevalue(state)
    report, boxes = salvaged(original.copy(tmp_path / "store"), tmp_path / "new")
    assert boxes == intact(original.held)
    assert [(queue.entity_id, queue.copied, queue.lost) for queue in report.entities] == [(1, 72, 0), (2, 72, 0)]
    assert [queue.description for queue in report.entities] == list(QUEUES.values())
    assert report.notes == []


def test_salvage_goes_around_pages_that_cannot_be_read(tmp_path: Path) -> None:
    """Destroyed pages cost their own messages and no others."""
    folder = tmp_path / "store"

    async def fill() -> dict[int, set[int]]:
        store, held = await filled_store(folder, rounds=5, per_round=100)
        await store.close()
        return held

    held = asyncio.run(fill())
    data = bytearray((folder / DATABASE).read_bytes())
    pages = len(data) // PAGE_BYTES
    for page in range(20, pages, pages // 8):
        data[page * PAGE_BYTES : page * PAGE_BYTES + 200] = b"\xff" * 200
    (folder / DATABASE).write_bytes(data)
    with pytest.raises(StoreDamaged):
        SqliteStore(folder).recover()

    report, boxes = salvaged(folder, tmp_path / "new")
    complete = intact(held)
    for box, messages in boxes.items():
        assert [each for each in messages if each not in complete[box]] == []
    copied = sum(len(messages) for messages in boxes.values())
    assert sum(queue.copied for queue in report.entities) == copied
    assert sum(queue.lost or 0 for queue in report.entities) == 2000 - copied
    assert 0 < 2000 - copied < 9 * 8, "each of nine pages holds no more than eight messages"


def test_salvage_copies_only_written_messages_and_reports_losses(closed: Original, tmp_path: Path) -> None:
    """Cuts and flips as above; a loss is in the report or the salvage refuses."""
    size = (closed.folder / DATABASE).stat().st_size
    source = random.Random("salvage")
    complete = intact(closed.held)
    for attempt in range(60):
        folder = closed.copy(tmp_path / "store")
        if attempt % 4 == 0:
            cut(folder / DATABASE, source.randrange(size))
        else:
            page = source.randrange(size // PAGE_BYTES) * PAGE_BYTES
            flip(folder / DATABASE, page * 8 + source.randrange(64 * 8))
        try:
            report, boxes = salvaged(folder, tmp_path / f"new {attempt}")
        except StoreError:
            continue
        for box, messages in boxes.items():
            assert [each for each in messages if each not in complete[box]] == []
        if boxes != complete:
            told = (
                report.notes or any(queue.lost != 0 for queue in report.entities) or len(report.entities) < len(QUEUES)
            )
            assert told, f"attempt {attempt} lost messages without a word"


def test_salvage_needs_a_store_and_a_new_folder(closed: Original, tmp_path: Path) -> None:
    """Salvage must never mix two stores or overwrite one."""
    folder = closed.copy(tmp_path / "store")
    with pytest.raises(StoreError, match="not empty"):
        salvage(folder, folder)
    with pytest.raises(StoreError, match="no store"):
        salvage(tmp_path / "nowhere", tmp_path / "new")
