"""Words the headline and the nine key figures of a report, the same on the page and in a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pairbus.report.model import Report
from pairbus.report.page.words import WIDE, count, counted, duration, listed, money, percent, times
from pairbus.report.rules.incidents import incidents_of

GOOD, BAD, PLAIN = "good", "bad", "plain"


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: str
    words: str
    mood: str = PLAIN
    "GOOD, BAD or PLAIN: the colour of the value."


def waiting(report: Report) -> int:
    """Return the number of messages that were not home when the ledger ended."""
    backlog = report.availability.backlog
    return backlog[-1].waiting if backlog else sum(outage.waiting for outage in report.availability.outages)


def added(report: Report) -> Decimal:
    """Return the cost that pairing added to that of the application alone."""
    return report.bill.total.money - report.bill.alone.money


def headline(report: Report) -> str:
    """Return the report in a sentence: 2 outages of orders; 1 204 messages diverted, all home, none lost; pairing added
    …"""
    cost = f"pairing added {money(added(report), report.prices.currency)} (estimate)"
    sentence = "; ".join([_outages(report), _messages(report), cost]) + "."
    return sentence[0].upper() + sentence[1:]


def _outages(report: Report) -> str:
    outages = report.availability.outages
    real = [outage for outage in outages if outage.failed_over is not None]
    ordered = sorted(real, key=lambda outage: (outage.begins, outage.entity))
    names = list(dict.fromkeys(outage.entity for outage in ordered))
    groups = sum(not incident.is_suspicion for incident in incidents_of(outages, report.ends))
    clause = f"{counted(groups, 'incident')} with " if 0 < groups < len(real) else ""
    clause += counted(len(real), "outage") + (f" of {listed(names)}" if names else "")
    unfinished = sum(outage.recovered is None for outage in real)
    if unfinished:
        clause += ", not over" if unfinished == len(real) == 1 else f", {count(unfinished)} not over"
    if suspicions := len(outages) - len(real):
        clause += f", {counted(suspicions, 'short suspicion')}"
    return clause


def _messages(report: Report) -> str:
    total = report.availability.total
    failed = f", {counted(total.failed, 'send')} failed" if total.failed else ""
    if not total.diverted:
        return f"no message diverted{failed}"
    left, dead = waiting(report), total.dead_lettered
    clause = counted(total.diverted, "message") + " diverted"
    if not left and not dead:
        # A row that was never written, or cannot be read, may be about a message that is not home.
        return clause + (", all home" if _missing(report) else ", all home, none lost") + failed
    clause += f", {count(total.moved)} home"
    clause += f", {count(left)} waiting" if left else ""
    clause += f", {count(dead)} dead-lettered" if dead else ""
    return clause + failed


def figures(report: Report) -> list[Figure]:
    total, bill = report.availability.total, report.bill
    left = waiting(report)
    return [
        lost(report),
        Figure(
            "Send availability",
            percent(total.with_pairing_percent),
            f"with pairing; {percent(total.without_pairing_percent)} without",
            GOOD if total.with_pairing_percent >= 100 else PLAIN,
        ),
        Figure(
            "Failed sends",
            count(total.failed),
            "messages whose callers got an error",
            BAD if total.failed else GOOD,
        ),
        _time_to_divert(report),
        _delay(report),
        Figure(
            "Duplicates",
            count(total.duplicated),
            f"moved more than once; {count(total.maybe_duplicated)} more are possible",
            BAD if total.duplicated else PLAIN,
        ),
        Figure(
            "Dead letters",
            count(total.dead_lettered),
            "diverted messages that could not go home",
            BAD if total.dead_lettered else PLAIN,
        ),
        Figure(
            "Waiting", count(left), f"of {count(total.diverted)} diverted, not home at the end", BAD if left else PLAIN
        ),
        Figure(
            "Pairing added (estimate)",
            money(added(report), report.prices.currency),
            f"to {money(bill.alone.money, report.prices.currency)} of the application alone",
        ),
    ]


def lost(report: Report) -> Figure:
    """Return the figure of lost messages: accepted ones that are neither home, nor waiting, nor dead-lettered.

    A ledger cannot show a lost message: each one that is not home and not dead-lettered waits. Missing rows might hide
    one.
    """
    total, left, missing = report.availability.total, waiting(report), _missing(report)
    if missing:
        words = f"that the ledger tells of; {missing} of it could not be read or written"
    elif not total.diverted:
        words = "no message was diverted"
    elif left or total.dead_lettered:
        words = f"each of {count(total.diverted)} diverted is home, waits or is a dead letter"
    else:
        words = f"all {count(total.diverted)} diverted messages are home"
    return Figure("Lost", "0", words, PLAIN if missing or left else GOOD)


def _missing(report: Report) -> str:
    """Say how many files and rows of the ledger are missing; an empty text when it is complete."""
    source = report.source
    counts = ((source.unread_files, "file"), (source.lost_rows + source.damaged, "row"))
    return " and ".join(counted(number, noun) for number, noun in counts if number)


def _time_to_divert(report: Report) -> Figure:
    name = "Time to divert"
    seconds = [o.time_to_divert_s for o in report.availability.outages if o.time_to_divert_s is not None]
    if not seconds:
        return Figure(name, "–", "nothing was diverted")
    if len(seconds) == 1:
        return Figure(name, duration(seconds[0]), "from the first failure to the failover")
    return Figure(
        name, duration(max(seconds)), f"the longest of {count(len(seconds))}; the shortest {duration(min(seconds))}"
    )


def _delay(report: Report) -> Figure:
    delay = report.availability.total.delay
    if delay is None:
        return Figure("Added delay", "–", "no diverted message came home")
    rest = (("p95", delay.p95_s), ("p99", delay.p99_s), ("max", delay.max_s))
    return Figure(
        "Added delay, p50", duration(delay.p50_s), ", ".join(f"{name}{WIDE}{duration(value)}" for name, value in rest)
    )


def comparison(report: Report) -> str:
    """Return a sentence that compares the cost with that of geo-replication, where both have the same currency."""
    bill, currency = report.bill, report.prices.currency
    ours, theirs = bill.with_pairing, bill.geo_replication
    sentence = f"By estimate this period cost {money(ours, currency)} with the base charge of its namespaces"
    if theirs is None:
        return f"{sentence}."
    sentence += f"; Azure's geo-replication would have cost {money(theirs, currency)} for the same period and traffic"
    if ours > 0 and theirs > ours:
        return f"{sentence}: {times(theirs, ours)} times as much."
    if theirs > 0 and ours > theirs:
        return f"{sentence}: pairing cost {times(ours, theirs)} times as much."
    return f"{sentence}."
