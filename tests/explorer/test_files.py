"""Export and import of messages as JSON lines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pairbus.errors import ConfigError, EntityNotFound
from pairbus.explorer import BadMessage, Choice, ImportFile, Progress, encoded, export, import_file, peek
from tests.explorer.world import ORDERS, OTHER, World, message, world


def _source(w: World, file: Path) -> ImportFile:
    return ImportFile(file, f"{w.carrier.endpoint.authority}/other")


async def test_exported_messages_are_imported_as_they_were(tmp_path: Path) -> None:
    """Export only looks; import sends the same bytes."""
    file = tmp_path / "orders.jsonl"
    async with world() as w:
        sent = [message(0, b"\xff"), message(1, b"", subject="s"), message(2)]
        await w.put(*sent)
        with file.open("w") as out:
            progress = await export(w.carrier, ORDERS, out.write, choice=Choice(where="number < 2"))
        assert progress.done == 2
        assert len(await w.ids()) == 3
        progress = await import_file(w.carrier, "other", _source(w, file))
        assert progress.done == 2
        for got, one in zip(await peek(w.carrier, OTHER), sent, strict=False):
            assert got.endswith(one)
    assert list(tmp_path.iterdir()) == [file], "notes are removed when everything is imported"  # noqa: ASYNC240


async def test_interrupted_import_goes_on_where_it_was(tmp_path: Path) -> None:
    """At least once: nothing is left out, and little is repeated."""
    file, total = tmp_path / "many.jsonl", 5_000
    file.write_text("".join(json.dumps({"message_id": f"m{n}", "body": "x"}) + "\n" for n in range(total)))
    async with world() as w:
        progress, begun = Progress(), asyncio.Event()
        progress.tell = lambda now: begun.set() if now.done > 1_000 else None
        task = asyncio.create_task(import_file(w.carrier, "other", _source(w, file), progress))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert 1_000 < progress.done < total
        again = await import_file(w.carrier, "other", _source(w, file))
        assert again.notes == [f"goes on behind line {progress.done}, where an earlier import was interrupted"]
        assert again.done == total - progress.done
        assert set(await w.ids(OTHER)) == {f"m{n}" for n in range(total)}


async def test_changed_file_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """Lines of a changed file may be others; the user decides."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "a"}\n{"body": "b"}\n{"boddy": "c"}\n')
    async with world() as w:
        with pytest.raises(BadMessage, match=r"a.jsonl, line 3: field 'boddy' is not known"):
            await import_file(w.carrier, "other", _source(w, file))
        assert len(await w.ids(OTHER)) == 2
        file.write_text('{"body": "A"}\n{"body": "b"}\n{"body": "c"}\n')
        with pytest.raises(ConfigError, match="was changed since its import was interrupted"):
            await import_file(w.carrier, "other", _source(w, file))
        file.write_text('{"body": "a"}\n{"body": "b"}\n{"body": "c"}\n')
        with pytest.raises(ConfigError, match="unfinished import into"):
            await import_file(w.carrier, "orders", ImportFile(file, "elsewhere/orders"))
        progress = await import_file(w.carrier, "other", _source(w, file))
        assert progress.done == 1


@pytest.mark.parametrize("line", ["[1]", "{", "nul", '"x"'])
async def test_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    """The number of the line helps in a file of a million."""
    file = tmp_path / "a.jsonl"
    file.write_text(f"\n{line}\n")
    async with world() as w:
        with pytest.raises(BadMessage, match=r"a.jsonl, line 2: "):
            await import_file(w.carrier, "other", _source(w, file))


async def test_plain_objects_are_messages_too() -> None:
    """A person who writes a file by hand needs a body only."""
    async with world() as w:
        await w.put(encoded({"body": "hello"}))
        assert [one.endswith(b"hello") for one in await peek(w.carrier, ORDERS)] == [True]


async def test_nothing_is_sent_when_notes_cannot_be_written(tmp_path: Path) -> None:
    """Each repetition of the command would send the same messages again."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "a"}\n')
    async with world() as w:
        source = ImportFile(file, f"{w.carrier.endpoint.authority}/other", tmp_path / "missing" / "notes")
        with pytest.raises(ConfigError, match=r"notes .* cannot be written"):
            await import_file(w.carrier, "other", source)
        assert await w.ids(OTHER) == []


@pytest.mark.parametrize(
    "notes",
    [
        '{"destination": "D", "lines": 1, "offset": "x", "digest": ""}',
        '{"destination": "D", "lines": null, "offset": 1, "digest": ""}',
        '{"destination": "D", "lines": 1, "offset": -1, "digest": ""}',
        '{"destination": "D", "lines": 1, "offset": 1, "digest": 5}',
        '["D"]',
        "5",
    ],
)
async def test_damaged_notes_are_told(tmp_path: Path, notes: str) -> None:
    """A person may have edited them; nothing is sent before that is clear."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "a"}\n')
    async with world() as w:
        source = _source(w, file)
        source.notes_file.write_text(notes.replace("D", f"{w.carrier.endpoint.authority}/other"))
        with pytest.raises(ConfigError, match="delete them to begin anew"):
            await import_file(w.carrier, "other", source)
        assert await w.ids(OTHER) == []


async def test_import_that_sent_nothing_leaves_no_notes(tmp_path: Path) -> None:
    """After a wrong name of the entity, the same file must be free for the right one."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "a"}\n')
    async with world() as w:
        with pytest.raises(EntityNotFound):
            await import_file(w.carrier, "wrong", ImportFile(file, f"{w.carrier.endpoint.authority}/wrong"))
        assert (await import_file(w.carrier, "other", _source(w, file))).done == 1
