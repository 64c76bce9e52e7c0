"""Lines of `pairbus syphon` for its operator: one line for one state, and numbers that add up."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from pairbus.cli.pipeline.left import Left
from pairbus.cli.pipeline.telling import Counted, QueueTally, SyphonTelling, summary_line
from pairbus.pairing.events import (
    DeadLettered,
    DestinationSkipped,
    Moved,
    NotCompleted,
    PrimaryReachable,
    PrimaryUnreachable,
    PumpPaused,
)
from pairbus.syphon import SyphonProgress

START = SyphonProgress(queues=8, moved=0, per_s=0.0, blocked=0, dead_lettered=0, errors=0)
UNREACHABLE = PrimaryUnreachable("contoso.servicebus.windows.net:5671", "refused", 12.0, 8.0)


class Teller(SyphonTelling):
    """Output of a syphon at a fixed time, with the lines that it has printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], **options: Any) -> None:
        self.now_s = 1_800_000_000.0
        super().__init__("contoso", "fabrikam", wall_s=lambda: self.now_s, **options)
        self._capsys = capsys

    def said(self) -> list[str]:
        return self._capsys.readouterr().err.splitlines()


def test_an_absent_primary_is_one_line_with_time_and_level(capsys: pytest.CaptureFixture[str]) -> None:
    """The cause is a detail; --verbose has it."""
    for verbose, cause in ((False, ""), (True, ": refused")):
        teller = Teller(capsys, verbose=verbose)
        teller.counted = Counted(787, 8, START)
        teller.heard(UNREACHABLE, lambda: START)
        line = "primary contoso unreachable for 12 s; 787 messages wait in 8 queues; next try in 8 s"
        assert teller.said() == [f"2027-01-15T08:00:00Z WARNING {line}{cause}"]


def test_message_id_neither_forges_a_line_nor_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The sender chose the id, and the lines end in an operator's terminal or in the log of a service."""
    teller = Teller(capsys)
    teller.heard(DeadLettered("backlog/0", "1\n\x1b[2J", "Refused", "too large"), lambda: START)
    [line] = teller.said()
    assert line.endswith("backlog/0 message 1\ufffd\ufffd[2J dead-lettered: Refused: too large")


def test_unknown_counts_are_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the Manage claim messages cannot be counted."""
    teller = Teller(capsys)
    teller.heard(UNREACHABLE, lambda: START)
    [line] = teller.said()
    assert "messages in 8 queues are not counted (that needs the Manage claim on the secondary)" in line
    teller.counts = True
    teller.heard(UNREACHABLE, lambda: START)
    assert "the last count failed" in teller.said()[0]


def test_on_a_terminal_the_live_line_counts_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tries print no lines; the line that is written over tells the seconds."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    teller = Teller(capsys)
    teller.counted = Counted(1, 1, START)
    teller.heard(UNREACHABLE, lambda: START)
    assert teller.said() == []
    teller.now_s += 3.0
    assert teller.progress(START) == "primary contoso unreachable for 15 s; 1 message waits in 1 queue; next try in 5 s"
    teller.heard(PrimaryReachable("contoso", 20.0), lambda: START)
    assert teller.said() == ["primary contoso answers again after 20 s"]
    assert teller.progress(START).startswith("8 queues, 1 waiting, 0 moved")


@pytest.mark.parametrize(
    ("now", "waiting"),
    [
        (SyphonProgress(8, moved=40, per_s=0.0, blocked=0, dead_lettered=5, errors=0), 55),
        (SyphonProgress(8, moved=40, per_s=0.0, blocked=60, dead_lettered=0, errors=0), 60),
        (SyphonProgress(8, moved=40, per_s=0.0, blocked=0, dead_lettered=0, errors=0, uncompleted=30), 90),
        (SyphonProgress(8, moved=120, per_s=0.0, blocked=3, dead_lettered=0, errors=0), 3),
    ],
    ids=["moved and dead-lettered", "blocked", "at home, not completed", "more came since"],
)
def test_the_numbers_of_the_progress_line_add_up(
    now: SyphonProgress, waiting: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A count is seconds old; messages that have left the queues since then do not wait any more."""
    teller = Teller(capsys)
    teller.counted = Counted(100, 8, START)
    assert f", {waiting} waiting, {now.moved} moved," in teller.progress(now)


def test_the_numbers_of_the_summary_add_up() -> None:
    """Messages that are at home and could not be completed are counted as moved, and said to be among those left."""
    now = SyphonProgress(1, moved=10, per_s=0.0, blocked=2, dead_lettered=1, errors=3, uncompleted=4)
    assert summary_line(now, Left(6, is_all=True)) == (
        "moved 10 messages, 1 dead-lettered, 6 left, of which 4 are at home and could not be completed"
    )
    assert summary_line(START, Left(0, is_all=True)) == "moved 0 messages"


def test_a_pause_is_told_again_only_with_another_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Pauses of 1, 2, 4 … seconds for the same reason are details."""
    teller = Teller(capsys)
    for seconds in (1.0, 2.0, 4.0):
        teller.heard(PumpPaused("q", "full", seconds), lambda: START)
    teller.heard(PumpPaused("q", "busy", 10.0), lambda: START)
    teller.heard(Moved("orders", "q", 1, ("m",)), lambda: START)
    teller.heard(PumpPaused("q", "busy", 10.0), lambda: START)
    assert [line.rpartition(": ")[2] for line in teller.said()] == ["full", "busy", "busy"]
    loud = Teller(capsys, verbose=True)
    for event in (PumpPaused("q", "full", 1.0), PumpPaused("q", "full", 2.0), Moved("orders", "q", 1, ("m",))):
        loud.heard(event, lambda: START)
    assert len(loud.said()) == 3


def test_warnings_are_marked_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    teller = Teller(capsys)
    teller.heard(DestinationSkipped("orders", "q", "full"), lambda: START)
    teller.heard(NotCompleted("q", 3, "No space left"), lambda: START)
    teller.line("new backlog queues: q")
    assert [line.split()[1] for line in teller.said()] == ["WARNING", "WARNING", "INFO"]


def test_a_count_and_a_progress_that_lags_behind_add_up() -> None:
    """Spark's tasks report late: of 50000 messages it must not say "50000 waiting, 50000 moved", or 0 and 0."""
    tally = QueueTally(20.0)

    def sums(now_s: float, in_queues: int, moved: int, moved_later: int) -> tuple[int, int]:
        counted = tally.counted(in_queues, 1, replace(START, moved=moved), now_s)
        later = replace(START, moved=moved_later)
        return counted.waiting(replace(START, moved=moved)) + moved, counted.waiting(later) + moved_later

    assert sums(0.0, 50_000, 0, 0) == (50_000, 50_000)
    assert sums(5.0, 20_000, 0, 40_000) == (50_000, 50_000), "30000 moved messages were not reported yet"
    assert sums(30.0, 0, 40_000, 50_000) == (50_000, 50_000)
    assert sums(60.0, 700, 50_000, 50_000) == (50_700, 50_700), "700 new messages wait"
    assert sums(90.0, 0, 50_000, 50_000) == (50_700, 50_700), "the 700 messages may be on their way"
    assert sums(120.0, 0, 50_000, 50_000) == (50_000, 50_000), "somebody else has moved the 700 messages"
    assert QueueTally(0.0).counted(7, 1, replace(START, moved=3), 0.0).waiting(replace(START, moved=5)) == 5
