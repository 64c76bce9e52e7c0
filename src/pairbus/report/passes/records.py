"""Spark's workers pass on these records: sums and steps of a ledger, each kind with its fields.

All kinds travel in one table, so that one pass over the rows makes all of them: `what` names the kind, its texts are in
the columns t1 …, its numbers in n1 …, in the order of its fields: texts come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow

TEXTS, NUMBERS = 5, 11
COLUMNS = ("what", *(f"t{i}" for i in range(1, TEXTS + 1)), *(f"n{i}" for i in range(1, NUMBERS + 1)))
DDL = ", ".join(f"{name} {'bigint' if name[0] == 'n' else 'string'}" for name in COLUMNS)


class FilePiece(NamedTuple):
    """A piece of a file that one task read, with the sums that concern its lines."""

    path: str
    block: int
    "Position of the piece in its file."
    lines: int
    damaged: int
    jumps: int
    "Lines within the piece where the clock went back."
    rows: int
    lost: int
    first_ms: int | None
    last_ms: int | None
    above_ms: int | None
    "Time of the first usable row of the piece; with `below_ms` the clock is compared from one piece to the next."
    below_ms: int | None
    "Time of its last usable row."
    first_line: int
    "Number of the first usable row within the piece."


class LinePlace(NamedTuple):
    """A line that is damaged or where the clock went back, by its number within its piece."""

    path: str
    reason: str | None
    block: int
    line: int
    back_ms: int | None


class CellSum(NamedTuple):
    namespace: str
    side: str
    entity: str
    kind: str
    cause: str
    is_ok: int
    grain: int
    "Number of the grain of `hour` in `pairbus.report.rules.cells`."
    hour: int
    counted: int
    operations: int
    bytes: int


class RunEnd(NamedTuple):
    run: str
    last_ms: int


class StateChange(NamedTuple):
    """A transition of an entity, with its place: transitions of one process keep the order in which it wrote them."""

    run: str
    entity: str
    event: str
    reason: str
    path: str
    "File of the ledger; for a row of a table that does not name its file, the file of the table."
    time_ms: int
    forced: int
    block: int
    "Position of the piece in its file; 0 in a table."
    line: int
    "Position of the line's end in the piece; in a table, of the line's beginning in its file."


class Singles(NamedTuple):
    """Counts rows without an id, each of which is a message of its own."""

    entity: str
    diverted: int
    moved: int
    maybe_duplicated: int


class LettersSum(NamedTuple):
    """Dead letters of one reason."""

    entity: str
    reason: str
    messages: int


class RateSum(NamedTuple):
    """Sends of one span of time; `pairbus.report.rules.rates`."""

    grain: int
    second: int
    direct: int
    diverted: int
    failed: int


class MessageStep(NamedTuple):
    """A row about one message, or a ping or failed send: the second stage puts them together."""

    name: str
    entity: str | None
    queue: str | None
    message_id: str | None
    reason: str | None
    time_ms: int
    counted: int
    operations: int
    bytes: int


class WaySum(NamedTuple):
    """Messages of one outage that took the same way home; `Diversion` of the bill."""

    entity: str
    queue: str | None
    moved_queue: str | None
    outage: int
    is_moved: int
    messages: int
    waiting: int
    drained_ms: int | None


class MessagesSum(NamedTuple):
    entity: str
    diverted: int
    moved: int
    duplicated: int
    maybe_duplicated: int


class TroubleSum(NamedTuple):
    kind: str
    outage: int
    counted: int
    operations: int
    bytes: int


class Wait(NamedTuple):
    """One diverted message: the times when it left, when it came home, and when its wait ended."""

    entity: str
    diverted_ms: int
    home_ms: int | None
    ended_ms: int | None


class Sum(NamedTuple):
    """A count and the least time by a number, such as the second of a change, or a delay."""

    name: str
    entity: str
    number: int
    counted: int
    least_ms: int | None


class DayCount(NamedTuple):
    """Rows of one run and day in one form of the ledger."""

    run: str
    day: int
    is_table: int
    rows: int


KINDS: tuple[type[Any], ...] = (
    *(FilePiece, LinePlace, CellSum, RunEnd, StateChange, Singles, LettersSum, RateSum, MessageStep),
    *(WaySum, MessagesSum, TroubleSum, Wait, Sum, DayCount),
)
_TEXTS_OF = {
    kind: sum(str(hint).startswith(("str", "ForwardRef('str")) for hint in kind.__annotations__.values())
    for kind in KINDS
}
_KIND_OF = {kind.__name__: kind for kind in KINDS}
_HEADS = {kind: (kind.__name__,) for kind in KINDS}
_PADS = {
    kind: ((None,) * (TEXTS - texts), (None,) * (NUMBERS - len(kind._fields) + texts))
    for kind, texts in _TEXTS_OF.items()
}


def to_batch(records: Sequence[Any]) -> pyarrow.RecordBatch:
    """Put records of any kinds into a batch with the columns of DDL."""
    import pyarrow as pa

    rows = []
    for record in records:
        kind = type(record)
        texts, (text_pad, number_pad) = _TEXTS_OF[kind], _PADS[kind]
        rows.append(_HEADS[kind] + record[:texts] + text_pad + record[texts:] + number_pad)
    columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    types = [pa.string()] * (1 + TEXTS) + [pa.int64()] * NUMBERS
    arrays = [pa.array(values, type_) for values, type_ in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def records_of(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[Any]:
    """Yield the records of batches; those of one kind in a batch come together, in their order."""
    import pyarrow.compute as pc

    for batch in batches:
        kinds = batch.column("what")
        for kind_name in kinds.unique().to_pylist():
            kind = _KIND_OF[kind_name]
            texts = _TEXTS_OF[kind]
            names = COLUMNS[1 : texts + 1] + COLUMNS[1 + TEXTS : 1 + TEXTS + len(kind._fields) - texts]
            of_kind = batch.filter(pc.equal(kinds, kind_name))
            yield from map(kind._make, zip(*(of_kind.column(name).to_pylist() for name in names), strict=True))
