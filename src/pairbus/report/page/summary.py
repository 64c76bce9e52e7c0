"""Words the report for a terminal: the headline, the key figures, the incidents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.report.model import Report
from pairbus.report.page.findings import BAD, GOOD, comparison, figures, headline
from pairbus.report.page.reasons import said_once
from pairbus.report.page.words import Calendar, Local, count, counted, duration, listed, plain
from pairbus.report.rules.incidents import Incident, incidents_of

if TYPE_CHECKING:
    from rich.text import Text

COLOURS = {GOOD: "bold green", BAD: "bold red"}
INCIDENTS_MAX = 10


def summary(report: Report, local: Local | None = None) -> Text:
    """Return the summary for `rich.console.Console.print`; `.plain` is the text without colours. `local` as for the
    page."""
    from rich.text import Text

    calendar = Calendar.of(report.begins, report.ends, local)
    text = Text(no_wrap=False)
    text.append(f"{plain(headline(report))}\n", "bold")
    text.append(f"{plain(calendar.period())}, {plain(duration(report.seconds))}\n\n", "dim")
    rows = figures(report)
    names = max(len(figure.name) for figure in rows)
    values = max(len(figure.value) for figure in rows)
    for figure in rows:
        text.append(f"{figure.name:>{names}}  ")
        text.append(f"{plain(figure.value):>{values}}", COLOURS.get(figure.mood, "bold"))
        text.append(f"  {plain(figure.words)}\n", "dim")
    text.append("\n")
    incidents = incidents_of(report.availability.outages, report.ends)
    for incident in incidents[:INCIDENTS_MAX]:
        text.append(f"{plain(_incident(incident, calendar))}\n")
    if len(incidents) > INCIDENTS_MAX:
        text.append(f"and {count(len(incidents) - INCIDENTS_MAX)} more incidents\n")
    prices = report.prices
    text.append(f"{plain(comparison(report))}\n")
    by = f"Estimates by {prices.sheet}, {prices.currency}, {prices.date}, {prices.counting} counting."
    text.append(f"{plain(by)}\n", "dim")
    for line in _health(report):
        text.append(f"{plain(line)}\n", "yellow")
    text.rstrip()
    return text


def _incident(incident: Incident, calendar: Calendar) -> str:
    longest_s = max(incident.times_to_divert_s, default=None)
    if incident.is_suspicion:
        how = "suspected, did not divert"
    elif any(outage.forced for outage in incident.outages):
        how = "diverted by hand"
    else:
        how = "diverted" + ("" if longest_s is None else f" after {duration(longest_s)}")
    ends = "not over" if incident.recovered is None else f"recovered {calendar.time(incident.recovered)}"
    rest = f", {counted(incident.diverted, 'message')}" if incident.diverted else ""
    rest += f", {count(incident.waiting)} waiting" if incident.waiting else ""
    why = said_once(outage.reason for outage in incident.outages)
    return f"{listed(incident.entities)}: {calendar.both(incident.begins)} {why}; {how}{rest}; {ends}"


def _health(report: Report) -> list[str]:
    source = report.source
    lines = []
    files = [one for one in source.damage if not one.line]
    if files:
        lines.append(f"{counted(len(files), 'file')} could not be used, the first {files[0].file}: {files[0].reason}")
    if source.damaged:
        first = next((one for one in source.damage if one.line), None)
        place = "" if first is None else f", the first in {first.file}, line {first.line}: {first.reason}"
        lines.append(f"{counted(source.damaged, 'damaged line')} left out{place}")
    if source.lost_rows:
        lines.append(f"{counted(source.lost_rows, 'row')} could not be written; their operations are in the bill")
    if source.clock_jumps:
        lines.append(f"{counted(source.clock_jumps, 'clock jump')} in the ledger")
    return lines
