"""Shows the bill: cost by part, hour, entity and outage, compared with geo-replication. All amounts are estimates."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from pairbus.report.model import PARTS, Amount, BillLine, OutageBill, Report
from pairbus.report.page import plots
from pairbus.report.page.findings import added, comparison
from pairbus.report.page.frame import nothing, section
from pairbus.report.page.markup import Html, join, name, tag
from pairbus.report.page.scales import Tick, number_ticks
from pairbus.report.page.tables import fitting_table, folded, folds, long_table, pairs, table
from pairbus.report.page.words import Calendar, count, counted, is_own, listed, moment, money, share, shortened, size
from pairbus.report.rules.incidents import Incident

MEANINGS = {
    "application": "the application's own sends and receives",
    "idle": "listing and creating backlog queues, and polls that found no message",
    "during": "pings, and sends to backlog queues",
    "after": "moving messages home",
}
BACKLOG_QUEUE = re.compile(r"(.+/x-servicebus-transfer)/\d+")
COLUMNS_MAX = 72
DIGITS = {"hour": 13, "day": 10, "month": 7}  # of the text of a time that tell its step
LANES_MAX = 5

Parts = dict[str, Decimal]
"""Money by part."""


def costs(report: Report, calendar: Calendar, incidents: Sequence[Incident]) -> Html:
    bill = report.bill
    if not bill.total.operations and not bill.lines:
        return section("bill", "The bill", nothing("No billable operation in this period."), is_estimate=True)
    return section(
        "bill",
        "The bill",
        tag("p", comparison(report)),
        _whole(report),
        _sums(report),
        tag("div", tag("div", _by_time(report)), tag("div", _by_entity(report)), class_="halves"),
        _by_incident(report, calendar, incidents),
        folds(
            _by_outage(report, calendar, incidents),
            _kinds_table(report, own=False),
            _kinds_table(report, own=True),
            _rules(report),
        ),
        is_estimate=True,
    )


def _kinds_table(report: Report, *, own: bool) -> Html:
    rows = [
        (name(entity), name(namespace), side, kind, part, *_cells(amount, report.prices.currency))
        for (entity, namespace, side, kind, part), amount in _kinds(report.bill.lines)
        if is_own(entity) == own
    ]
    if not rows:
        return Html("")
    owner = "pairing's own queues" if own else "the application's entities"
    heads = ("entity", "namespace", "side", "kind", "part", "#operations", "#bytes", "#money")
    return long_table(f"Operations of {owner}", f"Operations of {owner} in the whole period", heads, rows)


def _whole(report: Report) -> Html:
    """Return the parts of the bill as a bar, and as a table that is never folded."""
    bill, currency = report.bill, report.prices.currency
    whole = sum((bill.parts[part].money for part in PARTS), Decimal(0))
    free = whole == 0  # all operations are included in the price: the bar then shows operations instead of money
    amounts = [(part, bill.parts[part]) for part in PARTS]
    stack = [
        plots.Stack(
            float(amount.operations if free else amount.money),
            part,
            f"{part}: {money(amount.money, currency)}, {count(amount.operations)} operations",
        )
        for part, amount in amounts
    ]
    bar = plots.stacked_lane("Parts of the bill", stack, sum(piece.amount for piece in stack), height=26)
    rows = [
        (
            join([tag("span", class_=f"swatch {part}", aria_hidden="true"), part, tag("small", MEANINGS[part])]),
            *_cells(amount, currency),
            share(amount.operations, bill.total.operations) if free else share(amount.money, whole),
        )
        for part, amount in amounts
    ]
    heads = ("part", "#operations", "#bytes", "#money", "#share")
    return join([tag("figure", bar), table("Parts of the bill; they add up to the total", heads, rows)])


def _sums(report: Report) -> Html:
    bill, currency = report.bill, report.prices.currency

    def term(amount: Decimal, words: str) -> Html:
        return join([tag("strong", money(amount, currency)), tag("span", words)])

    geo = bill.geo_replication
    compared = [] if geo is None else [("Geo-replication", term(geo, "Azure's, for the same period and traffic"))]
    return pairs(
        [
            ("Total", term(bill.total.money, f"{count(bill.total.operations)} operations, {size(bill.total.bytes)}")),
            (
                "Application alone",
                term(
                    bill.alone.money,
                    f"{count(bill.alone.operations)} operations: the same messages, no outage, no pairing",
                ),
            ),
            (
                "Pairing added",
                term(
                    added(report),
                    f"{count(bill.total.operations - bill.alone.operations)} operations, and the bandwidth",
                ),
            ),
            (
                "Bandwidth between regions",
                term(bill.bandwidth.money, f"{size(bill.bandwidth.bytes)}, in the total; a GB is 10⁹ bytes"),
            ),
            ("Base charge", term(bill.base, "of the namespaces for this period; not in the total")),
            ("Total and base", term(bill.with_pairing, "to compare with geo-replication" if compared else "together")),
            *compared,
        ]
    )


def _by_time(report: Report) -> Html:
    buckets = by_time(report.bill.lines, report.bill.step)
    currency = report.prices.currency
    if len(buckets) < 2:
        return Html("")
    step = {digits: step for step, digits in DIGITS.items()}[len(buckets[0][0])]
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
    title = f"Cost by {step}"
    rows = [
        (key.replace("T", " "), *(money(parts.get(part, Decimal(0)), currency) for part in PARTS))
        for key, parts in buckets
    ]
    plot = plots.columns(title, "Stacked by part of the bill.", stacks, axis, ticks, height=100)
    return join(
        [
            tag("h3", title),
            plots.legend([(part, part) for part in PARTS]),
            tag("figure", plot, class_="money"),
            long_table(f"{title} as a table", title, (f"#{step} (UTC)", *(f"#{part}" for part in PARTS)), rows),
        ]
    )


def by_time(lines: Sequence[BillLine], finest: str) -> list[tuple[str, Parts]]:
    """Return (hour, day or month; money by part) without gaps, in the finest step with at most COLUMNS_MAX columns.

    `finest`: the step of the lines.
    """
    hours = sorted({moment(line.hour) for line in lines})
    if not hours:
        return []
    sums: dict[str, Parts] = {}
    length = hours[-1] - hours[0]
    fitting = 13 if length < timedelta(hours=COLUMNS_MAX) else 10 if length < timedelta(days=COLUMNS_MAX) else 7
    digits = min(fitting, DIGITS[finest])
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
    """Return lanes of the application's entities, and below them those of pairing's own queues."""
    sums: dict[str, Parts] = defaultdict(lambda: defaultdict(Decimal))
    for line in report.bill.lines:
        sums[_together(line.entity)][line.part] += line.money
    ordered = sorted(sums.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    theirs, ours = ([item for item in ordered if is_own(item[0]) == own] for own in (False, True))
    most = max((sum(parts.values(), Decimal(0)) for _, parts in ordered), default=Decimal(0))
    if not most:
        return Html("")
    currency = report.prices.currency
    return join(
        [
            tag("h3", "Cost by entity"),
            _lanes(theirs, float(most), currency),
            join([tag("h3", "Cost of pairing's own queues"), _lanes(ours, float(most), currency)]) if ours else "",
        ]
    )


def _lanes(ordered: Sequence[tuple[str, Parts]], most: float, currency: str) -> Html:
    bars = list(ordered[:LANES_MAX])
    if len(ordered) > LANES_MAX:
        rest: Parts = defaultdict(Decimal)
        for _, parts in ordered[LANES_MAX:]:
            for part, amount in parts.items():
                rest[part] += amount
        bars.append((f"{count(len(ordered) - LANES_MAX)} others", rest))
    lanes = (
        tag(
            "div",
            tag("span", name(shortened(entity or "not known")), title=entity),
            plots.stacked_lane(entity, _stack(entity, parts, currency), max(most, _whole_of(bars)), height=14),
            tag("span", money(sum(parts.values(), Decimal(0)), currency), class_="end"),
            class_="row",
        )
        for entity, parts in bars
    )
    return tag("figure", *lanes, class_="lanes")


def _whole_of(lanes: Sequence[tuple[str, Parts]]) -> float:
    return float(max(sum(parts.values(), Decimal(0)) for _, parts in lanes))


BILL_HEADS = ("#first failure", "#operations during", "#during", "#operations after", "#after", "#together")


def _by_incident(report: Report, calendar: Calendar, incidents: Sequence[Incident]) -> Html:
    bills = {(bill.entity, bill.begins): bill for bill in report.bill.outages}
    rows = []
    for incident in incidents:
        mine = [bills[key] for outage in incident.outages if (key := (outage.entity, outage.begins)) in bills]
        if mine:
            cells = _bill_cells(incident.begins, mine, calendar, report.prices.currency)
            rows.append((name(listed(incident.entities)), *cells))
    if not rows:
        return Html("")
    caption = "Cost that each incident added: pings and diverted sends during it, moving messages home after it"
    table = fitting_table("Cost by incident", caption, ("entities", *BILL_HEADS), rows)
    return join([tag("h3", "Cost by incident"), table])


def _by_outage(report: Report, calendar: Calendar, incidents: Sequence[Incident]) -> Html:
    """Return the cost of each outage, where incidents have several outages."""
    if not report.bill.outages or all(len(incident.outages) == 1 for incident in incidents):
        return Html("")
    rows = [
        (name(bill.entity), *_bill_cells(bill.begins, [bill], calendar, report.prices.currency))
        for bill in report.bill.outages
    ]
    return long_table("Cost by outage", "Cost that each outage of an entity added", ("entity", *BILL_HEADS), rows)


def _bill_cells(begins: str, bills: Sequence[OutageBill], calendar: Calendar, currency: str) -> tuple[str, ...]:
    during, after = (sum((getattr(bill, key).money for bill in bills), Decimal(0)) for key in ("during", "after"))
    return (
        calendar.time(begins),
        count(sum(bill.during.operations for bill in bills)),
        money(during, currency),
        count(sum(bill.after.operations for bill in bills)),
        money(after, currency),
        money(during + after, currency),
    )


def _rules(report: Report) -> Html:
    """Return the prices and rules of the estimate."""
    prices = report.prices
    counting = {
        "documented": "documented: settlements are free, so a message that was moved costs four operations",
        "strict": "strict: settlements count as operations too",
    }.get(prices.counting, prices.counting)
    before = f"this ledger's first month begins after {counted(prices.operations_before, 'operation')}"
    if report.bill.total.operations and report.bill.total.money == report.bill.bandwidth.money:
        before += "; all operations of this ledger are included in the base charge and cost nothing"
    else:
        before += "; operations that the base charge includes cost nothing"
    rules = join(
        [
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
    return folded("How it was estimated", rules)


def _kinds(lines: Sequence[BillLine]) -> list[tuple[tuple[str, str, str, str, str], Amount]]:
    """Return sums of the lines over all hours, the most expensive first."""
    sums: dict[tuple[str, str, str, str, str], Amount] = {}
    for line in lines:
        key = (_together(line.entity), line.namespace, line.side, line.kind, line.part)
        had = sums.get(key, Amount(0, 0, Decimal(0)))
        sums[key] = Amount(had.operations + line.operations, had.bytes + line.bytes, had.money + line.money)
    return sorted(sums.items(), key=lambda item: (-item[1].money, -item[1].operations, item[0]))


def _together(entity: str) -> str:
    """Return the common name of all backlog queues of a namespace: senders choose among them at random."""
    match = BACKLOG_QUEUE.fullmatch(entity)
    return f"{match[1]}/…" if match else entity


def _stack(title: str, parts: Parts, currency: str) -> list[plots.Stack]:
    return [
        plots.Stack(float(amount), part, f"{title}, {part}: {money(amount, currency)}")
        for part in PARTS
        if (amount := parts.get(part, Decimal(0)))
    ]


def _money_axis(top: Decimal, currency: str) -> plots.YAxis:
    ticks = number_ticks(float(top), 3)
    labels = [money(Decimal(f"{tick:.3g}"), currency) for tick in ticks]
    return plots.YAxis(ticks, [label.rstrip("0").rstrip(".") if "." in label else label for label in labels])


def _cells(amount: Amount, currency: str) -> tuple[str, str, str]:
    return count(amount.operations), size(amount.bytes), money(amount.money, currency)
