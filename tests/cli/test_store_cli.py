"""`pairbus store salvage`: what was copied, what is lost, and errors of one line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pairbus.broker.description import QueueDescription
from pairbus.broker.store import Insert, PutEntity, box_of, dead_box_of
from pairbus.broker.store.schema import PAGE_BYTES
from pairbus.broker.store.sqlite import SqliteStore
from pairbus.cli import main
from tests.store.common import commit, sample_message


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["store", "salvage", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The store of a namespace: 40 messages and 5 dead letters in `orders`, an empty queue `invoices`."""
    folder = tmp_path / "data" / "contoso"

    async def fill() -> None:
        store = SqliteStore(folder)
        store.recover()
        for queue_id, path in ((1, "orders"), (2, "invoices")):
            assert await commit(store, PutEntity(queue_id, QueueDescription(path).to_json())) is None
        for box, seqs in ((box_of(1), range(1, 41)), (dead_box_of(1), range(41, 46))):
            assert await commit(store, Insert(box, [sample_message(seq) for seq in seqs])) is None
        await store.close()

    asyncio.run(fill())
    return folder


def served(folder: Path) -> list[int]:
    """Sequence numbers that a broker would serve of `orders`; the store must be free of damage."""

    async def read() -> list[int]:
        store = SqliteStore(folder)
        assert store.recover().damage == []
        seqs = [row.seq for row in store.index()]
        await store.close()
        return seqs

    return asyncio.run(read())


def test_an_intact_store_is_copied_whole(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each queue, tab-separated outside a terminal; dead letters count with their queue."""
    to = tmp_path / "rescued"
    assert run(folder, "--to", to) == 0
    assert capsys.readouterr().out.splitlines() == ["queue\tcopied\tlost", "orders\t45\t0", "invoices\t0\t0"]
    assert served(to) == list(range(1, 46))


def test_what_is_damaged_is_counted_as_lost(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page of the messages is full of zeros: the rest arrives, and copied + lost is the number before."""
    file = folder / "messages.db"
    content = bytearray(file.read_bytes())
    place = content.index(sample_message(20).body)
    start = place - place % PAGE_BYTES
    content[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
    file.write_bytes(content)
    to = tmp_path / "rescued"
    assert run(folder, "--to", to, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    orders = report["queues"][0]
    assert orders["queue"] == "orders" and 0 < orders["lost"] < 40
    assert orders["copied"] + orders["lost"] == 45
    assert len(served(to)) == orders["copied"]
    assert file.read_bytes() == content, "the damaged store was changed"


def test_the_data_folder_is_not_the_folder_of_a_namespace(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likely mistake is answered with the command that works."""
    assert run(folder.parent, "--to", tmp_path / "rescued") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "holds the namespaces contoso" in error
    assert f"pairbus store salvage {folder} --to" in error


def test_a_store_in_use_is_left_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A running broker would go on writing while we copy."""

    async def salvage_while_open() -> int:
        store = SqliteStore(folder)
        store.recover()
        try:
            return run(folder, "--to", tmp_path / "rescued")
        finally:
            await store.close()

    assert asyncio.run(salvage_while_open()) == 1
    assert "is in use by another broker" in capsys.readouterr().err
    assert not (tmp_path / "rescued").exists()


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("nowhere", "rescued", "There is no folder"),
        ("empty", "rescued", "There is no store in"),
        ("data/contoso", "full", "is not empty"),
        ("foreign", "rescued", "is not a Pairbus store"),
        ("data/contoso", "file/inside", "The salvage stopped: Not a directory"),
    ],
)
def test_what_cannot_be_salvaged_is_told_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, target: str, words: str
) -> None:
    """The exit code is 1, and the command writes nothing."""
    (tmp_path / "empty").mkdir()
    for name, content in {"full/x": b"", "foreign/messages.db": b"hello" * 100, "file": b""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert run(tmp_path / source, "--to", tmp_path / target) == 1
    error = capsys.readouterr().err
    assert words in error and error.startswith("pairbus: ") and error.count("\n") == 1
    assert not (tmp_path / "rescued").exists()


def test_both_folders_are_needed(tmp_path: Path) -> None:
    """Wrong usage is exit code 2."""
    assert run(tmp_path) == 2


def test_help_shows_how_to_go_on_with_the_copy(capsys: pytest.CaptureFixture[str]) -> None:
    """A salvage is half of the way: the broker must be started on the new folder."""
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert "pairbus store salvage pairbus-data/contoso --to rescued/contoso" in out
    assert "--data rescued" in out
