"""The bill: cost by part, hour, entity and outage, compared with geo-replication. All amounts are estimates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from pairbus.report.model import PARTS, Amount, BillLine, Report
from pairbus.report.page import plots
from pairbus.report.page.findings import added, comparison
from pairbus.report.page.frame import section
from pairbus.report.page.markup import Html, join, name, tag
from pairbus.report.page.scales import Tick, number_ticks
from pairbus.report.page.tables import long_table, pairs, table
from pairbus.report.page.words import Calendar, count, counted, moment, money, share, shortened, size

MEANINGS = {
    "application": "the application's own sends and receives",
    "idle": "listing and creating backlog queues, and polls that found no message",
    "during": "pings, and sends to backlog queues",
    "after": "moving messages home",
}
BACKLOG_QUEUE = re.compile(r"(.+/x-servicebus-transfer)/\d+")
COLUMNS_MAX = 72
LANES_MAX = 12
OTHERS = "all others"

Parts = dict[str, Decimal]
"""Money by part."""


def costs(report: Report, calendar: Calendar) -> Html:
    bill, currency = report.bill, report.prices.currency
    if not bill.total.operations and not bill.lines:
        return section(
            "bill", "The bill (estimate)", tag("p", "No billable operation in this period.", class_="nothing")
        )
    return section(
        "bill",
        "The bill (estimate)",
        tag("p", comparison(report)),
        _whole(report),
        _sums(report),
        _by_time(report),
        _by_entity(report),
        _by_outage(report, calendar),
        long_table(
            "Operations by namespace, entity and kind",
            "Operations of the whole period; money is an estimate",
            ("entity", "namespace", "side", "kind", "part", "#operations", "#bytes", "#money (estimate)"),
            [
                (name(entity), name(namespace), side, kind, part, *_cells(amount, currency))
                for (entity, namespace, side, kind, part), amount in _kinds(bill.lines)
            ],
        ),
        _rules(report),
    )


def _whole(report: Report) -> Html:
    """The parts of the bill as a bar, and as a table that is never folded."""
    bill, currency = report.bill, report.prices.currency
    whole = sum((bill.parts[part].money for part in PARTS), Decimal(0))
    free = whole == 0  # all operations are included ones: the bar then shows operations instead of money
    amounts = [(part, bill.parts[part]) for part in PARTS]
    stack = [
        plots.Stack(
            float(amount.operations if free else amount.money),
            part,
            f"{part}: {money(amount.money, currency)} (estimate), {count(amount.operations)} operations",
        )
        for part, amount in amounts
    ]
    bar = plots.stacked_lane("Parts of the bill (estimate)", stack, sum(piece.amount for piece in stack), height=26)
    rows = [
        (
            join([tag("span", class_=f"swatch {part}", aria_hidden="true"), part, tag("small", MEANINGS[part])]),
            *_cells(amount, currency),
            share(amount.operations, bill.total.operations) if free else share(amount.money, whole),
        )
        for part, amount in amounts
    ]
    heads = ("part", "#operations", "#bytes", "#money (estimate)", "#share")
    return join([tag("figure", bar), table("Parts of the bill; they add up to the total", heads, rows)])


def _sums(report: Report) -> Html:
    bill, currency = report.bill, report.prices.currency

    def said(amount: Decimal, words: str) -> Html:
        return join([tag("strong", f"{money(amount, currency)} (estimate)"), tag("span", words)])

    return pairs(
        [
            ("Total", said(bill.total.money, f"{count(bill.total.operations)} operations, {size(bill.total.bytes)}")),
            (
                "Application alone",
                said(
                    bill.alone.money,
                    f"{count(bill.alone.operations)} operations: the same messages, no outage, no pairing",
                ),
            ),
            (
                "Pairing added",
                said(
                    added(report),
                    f"{count(bill.total.operations - bill.alone.operations)} operations, and the bandwidth",
                ),
            ),
            (
                "Bandwidth between regions",
                said(bill.bandwidth.money, f"{size(bill.bandwidth.bytes)}, in the total; a GB is 10⁹ bytes"),
            ),
            ("Base charge", said(bill.base, "of the namespaces for this period; not in the total")),
            ("Total and base", said(bill.with_pairing, "to compare with geo-replication")),
            ("Geo-replication", said(bill.geo_replication, "Azure's, for the same period and traffic")),
        ]
    )


def _by_time(report: Report) -> Html:
    buckets = by_time(report.bill.lines)
    currency = report.prices.currency
    if len(buckets) < 2:
        return Html("")
    step = {13: "hour", 10: "day", 7: "month"}[len(buckets[0][0])]
    axis = _money_axis(max(sum(parts.values(), Decimal(0)) for _, parts in buckets), currency)
    stacks = [
        _stack(key.replace("T", " ") + (":00" if step == "hour" else ""), parts, currency) for key, parts in buckets
    ]
    every = max(len(buckets) // 8, 1)
    ticks = [
        Tick((number + 0.5) / len(buckets), _bucket_label(key), minor=number // every % 2 == 1)
        for number, (key, _) in enumerate(buckets)
        if number % every == 0
    ]
    title = f"Cost by {step} (estimate)"
    rows = [
        (key.replace("T", " "), *(money(parts.get(part, Decimal(0)), currency) for part in PARTS))
        for key, parts in buckets
    ]
    plot = plots.columns(title, "Stacked by part of the bill.", stacks, axis, ticks, height=140)
    return join(
        [
            tag("h3", title),
            plots.legend([(part, part) for part in PARTS]),
            tag("figure", plot, class_="money"),
            long_table(f"{title} as a table", title, (f"#{step} (UTC)", *(f"#{part}" for part in PARTS)), rows),
        ]
    )


def by_time(lines: Sequence[BillLine]) -> list[tuple[str, Parts]]:
    """(Hour, day or month; money by part) without gaps, in the finest step that has at most COLUMNS_MAX columns."""
    hours = sorted({moment(line.hour) for line in lines})
    if not hours:
        return []
    sums: dict[str, Parts] = {}
    length = hours[-1] - hours[0]
    digits = 13 if length < timedelta(hours=COLUMNS_MAX) else 10 if length < timedelta(days=COLUMNS_MAX) else 7
    for at in _every(hours[0], hours[-1], timedelta(hours=1) if digits == 13 else timedelta(days=1)):
        sums.setdefault(at.isoformat()[:digits], defaultdict(Decimal))
    for line in lines:
        sums.setdefault(line.hour[:digits], defaultdict(Decimal))[line.part] += line.money
    return sorted(sums.items())


def _every(first: datetime, last: datetime, step: timedelta) -> Iterable[datetime]:
    while first <= last:
        yield first
        first += step


def _bucket_label(key: str) -> str:
    if len(key) == 13:
        return f"{key[11:]}:00"
    return f"{moment(key + 'T00:00Z'):%-d %b}" if len(key) == 10 else key


def _by_entity(report: Report) -> Html:
    sums: dict[str, Parts] = defaultdict(lambda: defaultdict(Decimal))
    currency = report.prices.currency
    for line in report.bill.lines:
        sums[_together(line.entity)][line.part] += line.money
    ordered = sorted(sums.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    shown = ordered[:LANES_MAX]
    if len(ordered) > LANES_MAX:
        rest: Parts = defaultdict(Decimal)
        for _, parts in ordered[LANES_MAX:]:
            for part, amount in parts.items():
                rest[part] += amount
        shown.append((OTHERS, rest))
    if not shown or not any(sum(parts.values()) for _, parts in shown):
        return Html("")
    most = float(max(sum(parts.values()) for _, parts in shown))
    lanes = (
        tag(
            "div",
            tag("span", name(shortened(entity or "not known")), title=entity),
            plots.stacked_lane(entity, _stack(entity, parts, currency), most, height=14),
            tag("span", money(sum(parts.values(), Decimal(0)), currency), class_="end"),
            class_="row",
        )
        for entity, parts in shown
    )
    return join([tag("h3", "Cost by entity (estimate)"), tag("figure", *lanes, class_="lanes")])


def _by_outage(report: Report, calendar: Calendar) -> Html:
    currency = report.prices.currency
    if not report.bill.outages:
        return Html("")
    rows = [
        (
            name(outage.entity),
            calendar.time(outage.begins),
            count(outage.during.operations),
            money(outage.during.money, currency),
            count(outage.after.operations),
            money(outage.after.money, currency),
            money(outage.during.money + outage.after.money, currency),
        )
        for outage in report.bill.outages
    ]
    heads = (
        *("entity", "#first failure", "#operations during", "#during (estimate)"),
        *("#operations after", "#after (estimate)", "#together (estimate)"),
    )
    caption = "Cost that each outage added: pings and diverted sends during it, moving messages home after it"
    return join([tag("h3", "Cost by outage (estimate)"), table(caption, heads, rows[:100])])


def _rules(report: Report) -> Html:
    """The prices and rules of the estimate."""
    prices = report.prices
    counting = {
        "documented": "documented: settlements are free, so a message that was moved costs four operations",
        "strict": "strict: settlements count as operations too",
    }.get(prices.counting, prices.counting)
    before = f"{counted(prices.operations_before, 'operation')} of the month before this ledger's first"
    if report.bill.total.operations and report.bill.total.money == report.bill.bandwidth.money:
        before += "; all operations of this ledger are included in the base charge and cost nothing"
    else:
        before += "; operations that the base charge includes cost nothing"
    return join(
        [
            tag("h3", "How it was estimated"),
            pairs(
                [
                    ("Price sheet", f"{prices.sheet}, in {prices.currency}, of {prices.date}"),
                    ("Source", tag("span", prices.source, class_="reason")),
                    ("Counting", counting),
                    ("Tier", before),
                ]
            ),
            tag(
                "p",
                "Estimates from the ledger and list prices. None was compared with an invoice: discounts, taxes and "
                "other use of the namespaces are not in them.",
                class_="note",
            ),
        ]
    )


def _kinds(lines: Sequence[BillLine]) -> list[tuple[tuple[str, str, str, str, str], Amount]]:
    """Sums of the lines over all hours, the most expensive first."""
    sums: dict[tuple[str, str, str, str, str], Amount] = {}
    for line in lines:
        key = (_together(line.entity), line.namespace, line.side, line.kind, line.part)
        had = sums.get(key, Amount(0, 0, Decimal(0)))
        sums[key] = Amount(had.operations + line.operations, had.bytes + line.bytes, had.money + line.money)
    return sorted(sums.items(), key=lambda item: (-item[1].money, -item[1].operations, item[0]))


def _together(entity: str) -> str:
    """The common name of all backlog queues of a namespace: senders choose among them at random."""
    match = BACKLOG_QUEUE.fullmatch(entity)
    return f"{match[1]}/…" if match else entity


def _stack(title: str, parts: Parts, currency: str) -> list[plots.Stack]:
    return [
        plots.Stack(float(amount), part, f"{title}, {part}: {money(amount, currency)} (estimate)")
        for part in PARTS
        if (amount := parts.get(part, Decimal(0)))
    ]


def _money_axis(top: Decimal, currency: str) -> plots.YAxis:
    ticks = number_ticks(float(top), 3)
    labels = [money(Decimal(f"{tick:.3g}"), currency) for tick in ticks]
    return plots.YAxis(ticks, [label.rstrip("0").rstrip(".") if "." in label else label for label in labels])


def _cells(amount: Amount, currency: str) -> tuple[str, str, str]:
    return count(amount.operations), size(amount.bytes), money(amount.money, currency)
