"""Renders a report as a self-contained HTML file, and as a summary for a terminal."""

from __future__ import annotations

from importlib.resources import files

from pairbus.report.model import Report
from pairbus.report.page.axis import happened
from pairbus.report.page.costs import costs
from pairbus.report.page.findings import headline
from pairbus.report.page.frame import contents
from pairbus.report.page.markup import Html, tag
from pairbus.report.page.pictures import delays
from pairbus.report.page.sections import dead_letters, entities, head, key_figures, ledger, outages
from pairbus.report.page.summary import summary
from pairbus.report.page.words import Calendar, Local
from pairbus.report.rules.incidents import incidents_of

__all__ = ["render", "summary"]

# The page loads no files and runs no script, and the browser enforces this, whatever text a message id has.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
CONTENTS = (
    ("states", "What happened"),
    ("outages", "Incidents"),
    ("delay", "Added delay"),
    ("bill", "The bill"),
    ("dead-letters", "Dead letters"),
    ("entities", "Entities"),
    ("ledger", "The ledger"),
)
"""Id and title of each section."""


def render(report: Report, local: Local | None = None) -> str:
    """Make the HTML page; it needs no network, script or other file.

    `local` returns the local time that is shown beside UTC: `datetime.astimezone` for the clock of this machine.
    """
    calendar = Calendar.of(report.begins, report.ends, local)
    incidents = incidents_of(report.availability.outages, report.ends)
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    origin = f"Made by Pairbus {report.version} on {report.made_at}. All amounts of money are estimates."
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="description", content=headline(report)),
            tag("title", f"Pairbus report, {calendar.period()}"),
            tag("style", Html(style)),
        ),
        tag(
            "body",
            head(report, calendar),
            contents(CONTENTS),
            tag(
                "main",
                key_figures(report),
                happened(report, calendar, incidents),
                outages(report, calendar, incidents),
                delays(report),
                costs(report, calendar, incidents),
                dead_letters(report),
                entities(report),
                ledger(report),
            ),
            tag("footer", tag("p", origin)),
        ),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"
