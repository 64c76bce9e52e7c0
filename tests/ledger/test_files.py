"""Names, rotation, and reading files that a kill left."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from pairbus.errors import LedgerNewer
from pairbus.ledger import Ledger, read
from pairbus.pairing.events import Moved
from tests.ledger.world import FLUSH_S, NOON_S, Clock, ids_of, rows_of, send

DAY_S = 86_400


def moved(*ids: str) -> Moved:
    return Moved("orders", "contoso/x-servicebus-transfer/0", len(ids), ids)


def test_a_file_names_its_day_client_and_process_and_is_private(tmp_path: Path) -> None:
    """The client's name may have any characters; ids and paths are private."""
    ledger = Ledger(tmp_path / "new" / "ledger", client="orders/api é", clock=Clock())
    send(ledger)
    assert ledger.close(FLUSH_S)
    [path] = (tmp_path / "new" / "ledger").iterdir()
    assert re.fullmatch(r"2026-03-01-orders-api--\d+-[0-9a-f]{8}-0\.jsonl", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert rows_of(path.parent)[0].client == "orders/api é"


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    """No file outgrows the limit, no line is cut in two, and order is kept."""
    ledger = Ledger(tmp_path, client="c", clock=Clock(), max_file_bytes=4096)
    ids = [f"id-{number:04}" for number in range(300)]
    for start in range(0, 300, 50):
        ledger.record(moved(*ids[start : start + 50]), NOON_S)
        assert ledger.flush(FLUSH_S)
    assert ledger.close(FLUSH_S)
    files = list(tmp_path.iterdir())
    assert len(files) > 5 and all(path.stat().st_size <= 4096 for path in files)
    numbered = sorted(files, key=lambda path: int(path.stem.rsplit("-", 1)[1]))
    assert [row.message_id for row in read(numbered)] == ids


def test_a_file_holds_rows_of_one_day(tmp_path: Path) -> None:
    """A day can be compacted or deleted as a whole, whenever its rows were written."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    for message_id, at_s in {"a": NOON_S, "b": NOON_S + DAY_S, "c": NOON_S, "d": NOON_S + DAY_S}.items():
        ledger.record(moved(message_id), at_s)
    assert ledger.close(FLUSH_S)
    days = {path.name[:10]: [row.message_id for row in read(path)] for path in tmp_path.iterdir()}
    assert days == {"2026-03-01": ["a", "c"], "2026-03-02": ["b", "d"]}


def test_a_file_that_was_taken_away_is_followed_by_another(tmp_path: Path) -> None:
    """Compaction moves files while their writers live; rows that they write later must be visible."""
    ledger = Ledger(tmp_path / "ledger", client="c", clock=Clock())
    ledger.record(moved("a"), NOON_S)
    assert ledger.flush(FLUSH_S)
    [path] = (tmp_path / "ledger").iterdir()
    path.rename(tmp_path / "compacted")
    ledger.record(moved("b"), NOON_S)
    assert ledger.close(FLUSH_S)
    assert ids_of(rows_of(tmp_path / "ledger")) == {"b": 1}
    assert ids_of(read(tmp_path / "compacted")) == {"a": 1}


def test_two_ledgers_may_share_a_folder(tmp_path: Path) -> None:
    """Two ledgers may even have the same name in the same process."""
    ledgers = [Ledger(tmp_path, client="c", clock=Clock()) for _ in range(2)]
    for number, ledger in enumerate(ledgers):
        ledger.record(moved(str(number)), NOON_S)
        assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    assert ids_of(rows) == {"0": 1, "1": 1} and len({row.run for row in rows}) == 2


def test_a_last_line_cut_anywhere_costs_only_itself(tmp_path: Path) -> None:
    """The file is cut at every byte: a kill may stop the writer anywhere."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(moved("a", "b", "c"), NOON_S)
    assert ledger.close(FLUSH_S)
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        rows = read(path)
        assert [row.message_id for row in rows] == ["a", "b"] and rows.skipped == 1
    path.write_bytes(whole[:-1])
    assert ids_of(rows_of(path)) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"null\n",
        b"[1]\n",
        b'{"schema":"1"}\n',
        b'{"schema":1}\n',
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"schema":1,"time":"t","client":"c","pid":1,"run":"r","kind":"send","count":"many"}\n',
        b'{"schema":1,"time":"t","client":"c","pid":true,"run":"r","kind":"send"}\n',
    ],
)
def test_a_line_that_is_not_a_row_is_skipped_and_counted(line: bytes, tmp_path: Path) -> None:
    """A foreign line is skipped; the rows around it count."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(moved("a", "b"), NOON_S)
    assert ledger.close(FLUSH_S)
    [path] = tmp_path.iterdir()
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + second)
    rows = read(str(tmp_path))
    assert [row.message_id for row in rows] == ["a", "b"] and rows.skipped == 1


def test_a_row_of_a_newer_version_is_an_error_that_says_where(tmp_path: Path) -> None:
    """A wrong bill would be worse than none."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"schema":2,"everything":"else"}\n')
    with pytest.raises(LedgerNewer, match=r"x\.jsonl, line 1: a row has schema 2.*upgrade"):
        list(read(tmp_path))


def test_fields_to_come_and_nulls_are_ignored(tmp_path: Path) -> None:
    """A field may be added without a new version."""
    row = (
        '{"schema":1,"time":"2026-03-01T12:00:00.000Z","client":"c","pid":1,"run":"r","kind":"x","new":1,"queue":null}'
    )
    (tmp_path / "x.jsonl").write_text(row)
    [found] = rows_of(tmp_path)
    assert found.kind == "x" and found.queue is None
