"""The stages of a report without Spark: whatever parts workers get, the figures are the same."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pairbus.ledger.rows import decode
from pairbus.pairing import events
from pairbus.report.passes.places import find_places
from pairbus.report.passes.records import FilePiece, Sum, Wait, records_of, to_batch
from pairbus.report.passes.stages import _block_of
from pairbus.report.passes.sums import MessageSums, RowSums, gathered
from pairbus.report.passes.tally import RowsElsewhere, TaskSums, tally_lines
from pairbus.report.rules import backlog
from pairbus.report.rules.availability import merged, spans
from pairbus.report.rules.backlog import Block, FirstLook, Question, backlog_and_delays
from pairbus.report.rules.cells import DAILY, HOURLY, MONTHLY, Cells
from pairbus.report.rules.messages import Outages, sums_of
from tests.report import plain
from tests.report.worlds import NOON_S, RandomWorld, Writer

SEED = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    RandomWorld(SEED).write(folder)
    return folder


def pieces_of(folder: Path, rng: random.Random | None) -> Iterator[tuple[str, int, list[bytes]]]:
    """Files as lines; with a generator, cut into pieces at random, which come in any order."""
    found: list[tuple[str, int, list[bytes]]] = []
    for path in folder.glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        cuts = sorted(rng.sample(range(1, len(lines)), 4)) if rng else []
        for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
            found.append((path.as_uri(), begin, lines[begin:end]))
    if rng:
        rng.shuffle(found)
    return iter(found)


def passed(folder: Path, rng: random.Random | None = None) -> RowSums:
    """Sums of the pass, each piece in a batch of its own, and two pieces in a task."""
    import pyarrow as pa

    made: list[Any] = []
    pieces = list(pieces_of(folder, rng))
    for some in (pieces[i : i + 2] for i in range(0, len(pieces), 2)):
        batches = [
            pa.RecordBatch.from_arrays(
                [pa.array([path] * len(lines)), pa.array([block] * len(lines)), pa.array(lines, pa.binary())],
                names=["path", "block", "value"],
            )
            for path, block, lines in some
        ]
        made += records_of(tally_lines(RowsElsewhere(), iter(batches)))
    sums: RowSums = gathered(made, RowSums())
    return sums


def test_row_of_a_table_with_half_a_surrogate_pair_is_damaged() -> None:
    """Workers pass on texts in UTF-8, which has no such text. Tables store details as JSON, where it is escaped."""
    writer = Writer("api", 1, "aaaaaaaa")
    writer.event(NOON_S, events.Suspected("orders", "no answer", 60.0))
    values = asdict(decode(writer.lines[0])) | {"details": '{"reason":"a\\ud83d"}'}
    sums = TaskSums(RowsElsewhere(), is_table=True)
    sums.begin("/table", 0)
    sums.row(values, 0)
    sums.finish()
    [piece] = [each for each in records_of([to_batch(sums.out)]) if isinstance(each, FilePiece)]
    assert (piece.damaged, piece.rows) == (1, 0)


class Parts:
    """Waits of messages in several blocks, as workers have them."""

    def __init__(self, waits: Sequence[Wait], parts: int) -> None:
        self._blocks: list[Block] = [_block_of(waits[i::parts]) for i in range(parts)]

    def first_look(self, begins_ms: int) -> FirstLook:
        import numpy as np

        sums: dict[int, int] = {}
        for block in self._blocks:
            for second, step in zip(*backlog.changes(block), strict=True):
                sums[int(second)] = sums.get(int(second), 0) + int(step)
        seconds, steps = np.array(list(sums), np.int64), np.array(list(sums.values()), np.int64)
        looks = (each for block in self._blocks for each in backlog.look_first(block, begins_ms))
        return FirstLook(seconds, steps, backlog.added(looks))

    def second_look(self, question: Question) -> Iterable[Sum]:
        return backlog.added(each for block in self._blocks for each in backlog.look_again(block, question))


def test_damage_is_where_it_is_however_files_are_cut(folder: Path) -> None:
    """Line numbers and clocks go on from one piece of a file to the next."""
    read = plain.read(folder)
    for rng in (None, random.Random(SEED)):
        sums = passed(folder, rng)
        places = find_places(sums.pieces, sums.places)
        assert [(each.file, each.line) for each in places.shown] == sorted([*read.damaged, *read.jumps])
        assert (places.damaged, places.clock_jumps) == (len(read.damaged), len(read.jumps))
        assert sum(piece.rows for piece in sums.pieces) == len(read.rows)


def test_messages_in_any_number_of_parts_give_the_same_sums(folder: Path) -> None:
    """Cut by their ids: dead letters find the message that they were."""
    whole, sums = passed(folder), passed(folder, random.Random(SEED))
    outages = Outages(merged(spans(*whole.transitions())))
    together: MessageSums = gathered(sums_of(whole.steps, outages), MessageSums(whole.counts, whole.letters))
    apart = MessageSums(sums.counts, sums.letters)
    for part in range(5):
        mine = [step for step in sums.steps if zlib.crc32((step.message_id or "").encode()) % 5 == part]
        gathered(sums_of(mine, outages), apart)
    assert apart.counts == together.counts
    assert apart.dead_letters() == together.dead_letters()
    assert sorted(apart.diversions(), key=str) == sorted(together.diversions(), key=str)
    assert sorted(apart.troubles(), key=str) == sorted(together.troubles(), key=str)
    period = whole.period()
    assert period is not None
    expected = backlog_and_delays(Parts(together.waits, 1), *period)
    assert backlog_and_delays(Parts(apart.waits, 7), *period) == expected


def test_percentiles_are_exact_also_within_classes_of_long_delays() -> None:
    """Delays above four seconds share classes in the first look."""
    rng = random.Random(SEED)
    delays = [int(rng.expovariate(1) ** 4 * 100_000) for _ in range(1000)]
    waits = [Wait("orders", 1000, 1000 + delay, 1000 + delay) for delay in delays]
    _, found, bars = backlog_and_delays(Parts(waits, 3), 0, 10**9)
    delay = found["orders"]
    expected = tuple(plain.nearest_rank(delays, percent) for percent in (50, 95, 99, 100))
    assert (delay.p50_s, delay.p95_s, delay.p99_s, delay.max_s) == expected
    assert found["*"] == delay
    assert sum(messages for _, messages in bars) == delay.messages == len(delays)


@pytest.mark.parametrize(("hours", "grain"), [(50, HOURLY), (51, DAILY), (24 * 50 + 1, MONTHLY)])
def test_cells_are_as_fine_as_their_number_allows(hours: int, grain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one part or several, and whatever the case of names is."""
    monkeypatch.setattr("pairbus.report.rules.cells.CELLS_MAX", 50)
    whole, parts = Cells(), [Cells(), Cells()]
    for hour in range(hours):
        key = "ns", "primary", ("Orders", "orders")[hour % 2], "send", "application", True
        for cells in (whole, parts[hour % 2]):
            cells.add((*key, hour), 1, 2, 3)
    together = Cells()
    for part in parts:
        for cell in part.sums():
            together.merge(cell)
    assert sorted(together.sums()) == sorted(whole.sums())
    assert {cell.grain for cell in together.sums()} == {grain}
    assert sum(cell.counted for cell in together.sums()) == hours


@pytest.mark.parametrize(
    ("delays_s", "limits_s"),
    [
        ([0.0], [0.001]),
        ([3.2, 7.9, 19.5], [float(limit) for limit in range(3, 21)]),  # by the second
        ([100.0, 101.5, 104.0], [99.5 + 0.5 * n for n in range(10)]),  # from where the data begin
        ([60.0, 900.0, 1100.0], [60.0 * n for n in range(1, 20)]),
        ([0.2, 0.2, 40.0], [0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50]),  # a long tail
    ],
)
def test_bars_of_delays_are_chosen_from_the_data(delays_s: list[float], limits_s: list[float]) -> None:
    """At round times, as many as tell something apart; with growing ones where few messages took very long."""
    waits = [Wait("orders", 1000, home := 1000 + round(1000 * delay), home) for delay in delays_s]
    _, _, bars = backlog_and_delays(Parts(waits, 2), 0, 10**9)
    assert [limit for limit, _ in bars] == pytest.approx(limits_s)
    for (low, _), (high, count) in pairwise([(-1.0, 0), *bars]):
        assert count == sum(low < delay <= high for delay in delays_s)
