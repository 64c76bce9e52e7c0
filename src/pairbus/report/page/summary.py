"""The report in a terminal: the headline, the key figures, the outages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.report.model import Outage, Report
from pairbus.report.page.findings import BAD, GOOD, comparison, figures, headline
from pairbus.report.page.words import Calendar, count, counted, duration, plain

if TYPE_CHECKING:
    from rich.text import Text

COLOURS = {GOOD: "bold green", BAD: "bold red"}
OUTAGES_MAX = 10


def summary(report: Report) -> Text:
    """Summary for `rich.console.Console.print`; its `.plain` is the text without colours."""
    from rich.text import Text

    calendar = Calendar.of(report.begins, report.ends)
    told = Text(no_wrap=False)
    told.append(f"{plain(headline(report))}\n", "bold")
    told.append(f"{plain(calendar.period())}, {plain(duration(report.seconds))}\n\n", "dim")
    shown = figures(report)
    names = max(len(figure.name) for figure in shown)
    values = max(len(figure.value) for figure in shown)
    for figure in shown:
        told.append(f"{figure.name:>{names}}  ")
        told.append(f"{plain(figure.value):>{values}}", COLOURS.get(figure.mood, "bold"))
        told.append(f"  {plain(figure.words)}\n", "dim")
    told.append("\n")
    outages = report.availability.outages
    for outage in outages[:OUTAGES_MAX]:
        told.append(f"{plain(_outage(outage, calendar))}\n")
    if len(outages) > OUTAGES_MAX:
        told.append(f"and {count(len(outages) - OUTAGES_MAX)} more outages\n")
    prices = report.prices
    told.append(f"{plain(comparison(report))}\n")
    by = f"Estimates by {prices.sheet}, {prices.currency}, {prices.date}, {prices.counting} counting."
    told.append(f"{plain(by)}\n", "dim")
    for line in _health(report):
        told.append(f"{plain(line)}\n", "yellow")
    told.rstrip()
    return told


def _outage(outage: Outage, calendar: Calendar) -> str:
    if outage.failed_over is None:
        how = "suspected, did not divert"
    elif outage.forced:
        how = "diverted by hand"
    else:
        how = "diverted" + ("" if outage.time_to_divert_s is None else f" after {duration(outage.time_to_divert_s)}")
    ends = "not over" if outage.recovered is None else f"recovered {calendar.time(outage.recovered)}"
    rest = f", {counted(outage.diverted, 'message')}" if outage.diverted else ""
    rest += f", {count(outage.waiting)} waiting" if outage.waiting else ""
    return f"{outage.entity}: {calendar.time(outage.begins)} {outage.reason}; {how}{rest}; {ends}"


def _health(report: Report) -> list[str]:
    source = report.source
    lines = []
    files = [one for one in source.damage if not one.line]
    if files:
        lines.append(f"{counted(len(files), 'file')} could not be used, the first {files[0].file}: {files[0].reason}")
    if source.damaged:
        first = next((one for one in source.damage if one.line), None)
        where = "" if first is None else f", the first in {first.file}, line {first.line}: {first.reason}"
        lines.append(f"{counted(source.damaged, 'damaged line')} left out{where}")
    if source.lost_rows:
        lines.append(f"{counted(source.lost_rows, 'row')} could not be written; their operations are in the bill")
    if source.clock_jumps:
        lines.append(f"{counted(source.clock_jumps, 'clock jump')} in the ledger")
    return lines
