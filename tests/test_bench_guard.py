"""The table of `make bench-guard`; measuring itself takes minutes and is no test."""

import pytest
from bench.guard import BASE, CHECKS, NOW, RABBITMQ, Measurements, Outcome, outcomes, table
from bench.quiet import Quiet

SEND = "send µs CPU"


def row_of(*ratios: float) -> Outcome:
    measured = Measurements("")
    measured.samples[NOW, SEND] = {turn: 10.0 * ratio for turn, ratio in enumerate(ratios)}
    measured.samples[BASE, SEND] = dict.fromkeys(range(len(ratios)), 10.0)
    [row] = outcomes(measured)
    return row


@pytest.mark.parametrize(("ratios", "is_kept"), [((1.0, 1.03, 1.2), True), ((1.0, 1.04, 1.04), False)])
def test_a_row_is_kept_when_the_median_ratio_is_within_the_limit(ratios: tuple[float, ...], is_kept: bool) -> None:
    """One disturbed turn of three may not decide."""
    assert row_of(*ratios).is_kept is is_kept


def test_turns_of_one_side_alone_do_not_count() -> None:
    """A ratio has both values from the same turn: between turns the machine changes."""
    measured = Measurements("")
    measured.samples[NOW, SEND] = {0: 10.0, 1: 10.0}
    measured.samples[BASE, SEND] = {1: 5.0}
    [row] = outcomes(measured)
    assert row.ratios == [2.0]


def test_rows_without_a_partner_are_left_out() -> None:
    """Without RabbitMQ, and with a base that does not know a piece of work, the other rows still count."""
    measured = Measurements("")
    measured.samples[NOW, SEND] = {0: 10.0}
    assert outcomes(measured) == []
    assert any(check.to == RABBITMQ for check in CHECKS)


def test_the_table_has_lines_of_one_width_with_a_verdict() -> None:
    """The table goes into a document as it is, and into a pipe, where nothing may cut its columns."""
    lines = table([row_of(1.0, 1.0), row_of(2.0, 2.0)]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split("|")[-2].strip() for line in lines[2:]] == ["kept", "MISSED"]


def test_a_loaded_machine_is_warned_about() -> None:
    """Numbers of a busy machine are worth less, so the reader is told."""
    quiet = Quiet()
    quiet.load, quiet.others, quiet.stolen = 0.1, 0.01, 0.0
    assert "WARNING" not in str(quiet)
    quiet.others = 0.5
    assert "WARNING" in str(quiet)
