"""Passes once over the rows of ledgers, in Spark's workers: lines and table rows become records.

Laws of this file.
 1. The place of a line is (file, start of Spark's piece of the file, number within the piece). Pieces of a file are put
    together on the driver, however Spark cuts it and whichever task reads a piece.
 2. Sums are passed on once for each task; rows about one message, one by one.
 3. Entities, queues and namespaces are case-insensitive, and are in lower case from here on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pairbus.ledger.rows import FAILED_SEND, LOST_ROWS, SETTLED, RemovedFile
from pairbus.ledger.table.lines import NAMES, REASON_MAX, check_texts, check_values, fields_of, time_ms_of
from pairbus.ledger.table.lost import files_named, settlements_of, without
from pairbus.ledger.table.names import source_key
from pairbus.report.passes.records import (
    DayCount,
    FilePiece,
    LettersSum,
    LinePlace,
    MessageStep,
    RunEnd,
    Singles,
    StateChange,
    to_batch,
)
from pairbus.report.rules.availability import TRANSITIONS
from pairbus.report.rules.cells import Cells, begin_of
from pairbus.report.rules.rates import Rates

if TYPE_CHECKING:
    import pyarrow

SHOWN_MAX = 100  # places that are named; the others are counted
JUMP_MS = 1000  # the row of a second is written when the second is over, behind events of that second
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BATCH_RECORDS = 10_000
DIVERTED, MOVED, PING, FORWARDED = "diverted", "moved", "ping", "SpoolForwarded"
DEAD, REFUSED, MAYBE = "DeadLettered", "SpoolRefused", "MaybeDuplicated"
OF_ONE_MESSAGE = frozenset((DIVERTED, MOVED, MAYBE))
_STEPS_BY_KIND = frozenset((DIVERTED, MOVED, PING, FAILED_SEND))
_STEPS_BY_EVENT = frozenset((FORWARDED, DEAD, REFUSED, MAYBE))
_TRANSITIONS = frozenset(TRANSITIONS)


@dataclass(frozen=True, slots=True)
class RowsElsewhere:
    """A report leaves these rows out, because another form of the ledger has them."""

    taken: Mapping[str, int] = field(default_factory=dict)
    "Key of a file → bytes of it that are in a table: its lines before that position are left out."
    limits: Mapping[str, int] = field(default_factory=dict)
    "Key of a file → first position that does not count in tables, because its compaction was not finished."
    worse: frozenset[tuple[str, int, bool]] = frozenset()
    "Run, day and form (True: table) of which the other form has as many rows or more."
    sums: Mapping[str, RemovedFile] = field(default_factory=dict)
    "Key of a file → sums of its rows that are in a table: those of a removed file are not counted again."

    def of_removed(self, files: Mapping[str, RemovedFile]) -> dict[str, RemovedFile]:
        """Return the sums of removed files that are in a table: of the whole file, or of a part."""
        whole = {name: sums for name, sums in files.items() if self.taken.get(name, 0) >= sums.size}
        return {name: self.sums[name] for name in files if name in self.sums} | whole


class TaskSums:
    """Sums of one task."""

    def __init__(self, choice: RowsElsewhere, *, is_table: bool) -> None:
        self.out: list[Any] = []
        self._choice = choice
        self._is_table = is_table
        self._cells = Cells()
        self._rates = Rates()
        self._runs: dict[str, int] = {}
        self._singles: dict[str, list[int]] = {}
        self._letters: dict[tuple[str, str], int] = {}
        self._skip_below = 0
        self.begin("", 0)

    def begin(self, path: str, block: int) -> None:
        """Begin a piece of a file."""
        self._path, self._block = path, block
        self._lines = self._damaged = self._jumps = self._rows = self._lost = self._first_line = self._offset = 0
        self._first_ms: int | None = None
        self._last_ms: int | None = None
        self._above_ms: int | None = None
        self._below_ms: int | None = None
        self._shown = 0
        positions = self._choice.taken
        self._skip_below = positions.get(source_key(plain_path(path)), 0) if positions and block == 0 else 0

    def end(self) -> None:
        if self._path:
            sums = self._lines, self._damaged, self._jumps, self._rows, self._lost
            times = self._first_ms, self._last_ms, self._above_ms, self._below_ms
            self.out.append(FilePiece(self._path, self._block, *sums, *times, self._first_line))

    def finish(self) -> None:
        """Pass on the sums of the task."""
        self.end()
        self.out += self._cells.sums()
        self.out += self._rates.sums()
        self.out += [RunEnd(*item) for item in self._runs.items()]
        self.out += [Singles(name, *counts) for name, counts in self._singles.items()]
        self.out += [LettersSum(*key, count) for key, count in self._letters.items()]

    def line(self, line: bytes) -> None:
        self._lines += 1
        self._offset += len(line) + 1
        if self._offset <= self._skip_below:
            return
        try:
            row = fields_of(line)
        except ValueError as error:
            self._damage(self._lines, str(error)[:REASON_MAX])
            return
        time_ms = time_ms_of(row["time"])
        if self._below_ms is None:
            self._above_ms, self._first_line = time_ms, self._lines
        elif self._below_ms - time_ms > JUMP_MS:
            self._jumps += 1
            self._show(self._lines, None, self._below_ms - time_ms)
        self._below_ms = time_ms
        if row["kind"] == LOST_ROWS and self._choice.taken:
            remainder = without(row, self._choice.of_removed(files_named(row)))
            if remainder is None:
                return
            row = remainder
        self._add(row, time_ms, self._path, self._offset)

    def row(self, values: dict[str, Any], number: int) -> None:
        """Count a row of a table; `number` is its number within the file."""
        limits = self._choice.limits
        if limits and (values.get("position") or 0) >= limits.get(values.get("source") or "", 2**63):
            return
        try:
            check_values(values)
            values["details"] = _details_of(values)
        except ValueError as error:
            self._damage(number + 1, str(error)[:REASON_MAX])
            return
        source = values.get("source")
        place = (self._path, number) if source is None else (source, values["position"] or 0)
        self._add(values, time_ms_of(values["time"]), *place)

    def fit(self) -> None:
        """Keep memory in bounds; called once for a batch."""
        self._cells.fit()

    def _damage(self, line: int, reason: str) -> None:
        self._damaged += 1
        self._show(line, reason, None)

    def _show(self, line: int, reason: str | None, back_ms: int | None) -> None:
        if self._shown < SHOWN_MAX:
            self._shown += 1
            self.out.append(LinePlace(self._path, reason, self._block, line, back_ms))

    def _add(self, row: dict[str, Any], time_ms: int, path: str, line: int) -> None:
        get, run, kind = row.get, row["run"], row["kind"]
        if self._choice.worse and (run, time_ms // DAY_MS, self._is_table) in self._choice.worse:
            return
        self._rows += 1
        self._lost += get("rows") or 0
        if self._first_ms is None or time_ms < self._first_ms:
            self._first_ms = time_ms
        if self._last_ms is None or time_ms > self._last_ms:
            self._last_ms = time_ms
        if time_ms > self._runs.get(run, -(2**63)):
            self._runs[run] = time_ms
        self._rates.row(row, time_ms)
        operations = get("billable_operations")
        if operations is not None:
            count, place = get("count") or 0, (get("namespace"), get("side"), get("entity"))
            why = get("cause"), get("outcome") == "ok", _hour(self._cells, time_ms)
            if kind == LOST_ROWS and (settled := settlements_of(row)):
                self._cells.add((*place, SETTLED, *why), settled, settled, 0)
                count, operations = max(count - settled, 0), operations - settled
            self._cells.add((*place, kind, *why), count, operations, get("bytes") or 0)
        if kind in _STEPS_BY_KIND:
            self._step(kind, row, time_ms)
        event = get("event")
        if event in _STEPS_BY_EVENT:
            self._step(event, row, time_ms)
        elif event in _TRANSITIONS:
            details = row.get("details") or {}
            entity, reason = (get("entity") or "").lower(), text_of_detail(details.get("reason")) or ""
            forced = int(details.get("forced") in (True, "true"))
            self.out.append(StateChange(run, entity, event, reason, path, time_ms, forced, self._block, line))

    def _step(self, name: str, row: dict[str, Any], time_ms: int) -> None:
        get = row.get
        entity, queue, message_id = get("entity"), get("queue"), get("message_id")
        entity = entity.lower() if entity else entity
        queue = queue.lower() if queue else queue
        if not message_id and name in OF_ONE_MESSAGE:
            counts = self._singles.setdefault(entity or "", [0, 0, 0])
            counts[(DIVERTED, MOVED, MAYBE).index(name)] += 1
            return
        reason = None
        if name == FORWARDED:
            if (get("details") or {}).get("to") != "primary":
                return
        elif name == DEAD:
            reason = text_of_detail((get("details") or {}).get("reason"))
            if not message_id:
                key = queue or "", reason or ""
                self._letters[key] = self._letters.get(key, 0) + 1
                return
        amounts = (get("count") or 0, get("billable_operations") or 0, get("bytes") or 0)
        self.out.append(MessageStep(name, entity, queue, message_id, reason, time_ms, *amounts))


def _hour(cells: Cells, time_ms: int) -> int:
    hour = time_ms // HOUR_MS
    return begin_of(cells.grain, hour) if cells.grain else hour


def _details_of(values: dict[str, Any]) -> dict[str, Any] | None:
    """Parse the details of a row of a table where the report needs them; ValueError when they are no object."""
    event, text = values["event"], values["details"]
    is_needed = event in _STEPS_BY_EVENT or event in _TRANSITIONS or values["kind"] == LOST_ROWS
    if text is None or not is_needed:
        return None
    details = json.loads(text)
    if not isinstance(details, dict):
        raise ValueError(f"details is {text}")
    check_texts(details)
    return details


def text_of_detail(value: object) -> str | None:
    """Return the text of a field of an event, whatever its type in JSON is."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def plain_path(uri: str) -> str:
    """Return the path or URL of a file as a user writes it, from the URL that Spark gives."""
    parts = urlsplit(uri)
    return unquote(parts.path if parts.scheme in ("", "file") else uri)


# ── functions for mapInArrow ──


def tally_lines(choice: RowsElsewhere, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Tally lines; columns path, block and value, in the order in which a task reads them."""
    tally, place = TaskSums(choice, is_table=False), ("", 0)
    for batch in batches:
        if not batch.num_rows:
            continue
        texts = batch.column("value").to_pylist()
        begin = 0
        for end, line_place in _runs_of(batch):
            if line_place != place:
                tally.end()
                tally.begin(*line_place)
                place = line_place
            for text in texts[begin:end]:
                tally.line(text)
            begin = end
        yield from _full(tally)
    tally.finish()
    yield to_batch(tally.out)


def tally_rows(choice: RowsElsewhere, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Tally rows of tables; columns path, id, the fields of a row, and the source and position that it needs."""
    tally, path = TaskSums(choice, is_table=True), ""
    for batch in batches:
        names = [*NAMES, *(name for name in ("source", "position") if name in batch.schema.names)]
        values = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        places = zip(batch.column("path").to_pylist(), batch.column("id").to_pylist(), strict=True)
        for (row_path, number), row in zip(places, values, strict=True):
            if row_path != path:
                tally.end()
                tally.begin(row_path, 0)
                path = row_path
            tally.row(dict(zip(names, row, strict=True)), number or 0)
        yield from _full(tally)
    tally.finish()
    yield to_batch(tally.out)


def count_days(is_table: bool, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Count usable rows by run and day: texts in the column `value`, or the columns run, time of tables."""
    counts: dict[tuple[str, int], int] = {}
    for batch in batches:
        runs: Iterable[tuple[str, str]]
        if is_table:
            runs = zip(batch.column("run").to_pylist(), batch.column("time").to_pylist(), strict=True)
        else:
            runs = filter(None, map(_run_and_time, batch.column("value").to_pylist()))
        for run, time in runs:
            try:
                key = run, time_ms_of(time or "") // DAY_MS
            except ValueError:
                continue
            counts[key] = counts.get(key, 0) + 1
    yield to_batch([DayCount(run, day, int(is_table), rows) for (run, day), rows in counts.items()])


def _run_and_time(line: bytes) -> tuple[str, str] | None:
    try:
        row = fields_of(line)
    except ValueError:
        return None
    return row["run"], row["time"]


def _runs_of(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the ends of runs of rows from one piece of a file, each with its path and block."""
    paths, blocks = batch.column("path"), batch.column("block")
    last = batch.num_rows - 1
    first_place, last_place = ((paths[i].as_py(), blocks[i].as_py()) for i in (0, last))
    if first_place == last_place:  # pieces come one after the other, so all rows between belong to this one
        yield last + 1, last_place
        return
    current = first_place
    for number, place in enumerate(zip(paths.to_pylist(), blocks.to_pylist(), strict=True)):
        if place != current:
            yield number, current
            current = place
    yield last + 1, current


def _full(tally: TaskSums) -> Iterator[pyarrow.RecordBatch]:
    tally.fit()
    if len(tally.out) >= BATCH_RECORDS:
        yield to_batch(tally.out)
        tally.out.clear()
