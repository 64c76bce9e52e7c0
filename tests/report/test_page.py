"""The page: every number is on it, nothing from outside is HTML in it, and it is one file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.report.model import PARTS, Amount, BillLine, Damage, EntityAvailability, EntityOutage, Report
from pairbus.report.page import render, summary
from pairbus.report.page.costs import COLUMNS_MAX, by_time
from pairbus.report.page.findings import GOOD, PLAIN, figures, headline, lost
from pairbus.report.page.scales import duration_ticks, number_ticks, time_ticks
from pairbus.report.page.tables import fitting_table, table
from pairbus.report.page.words import Calendar, count, duration, listed, money, percent, shortened, size
from tests.report.example import empty_report, example_report, fleet_report

VOID = {"br", "meta", "hr"}
SIZE_MAX = 300_000


class Page(HTMLParser):
    """Elements, attributes and text of a page; an element that is not closed in its place fails the test."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name in names]


@pytest.fixture(scope="module")
def report() -> Report:
    return example_report(trouble=True)


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(render(report))


# ── what is on it ──


def entity_numbers(entity: EntityAvailability) -> Iterator[str]:
    yield percent(entity.with_pairing_percent)
    yield percent(entity.without_pairing_percent)
    for number in (entity.sent, entity.diverted, entity.failed, entity.moved, entity.duplicated, entity.pings):
        yield count(number)
    yield from (count(entity.maybe_duplicated), count(entity.dead_lettered))
    if entity.delay is not None:
        delay = entity.delay
        yield count(delay.messages)
        yield from map(duration, (delay.p50_s, delay.p95_s, delay.p99_s, delay.max_s))


def outage_numbers(outage: EntityOutage, calendar: Calendar) -> Iterator[str]:
    for time in (outage.begins, outage.recovered, outage.drained):
        if time is not None:
            yield calendar.time(time)
    if outage.time_to_divert_s is not None:
        yield duration(outage.time_to_divert_s)
    yield from (count(number) for number in (outage.failed_sends, outage.diverted, outage.waiting) if number)
    yield count(outage.clients)
    yield outage.reason


def bill_numbers(report: Report) -> Iterator[str]:
    bill, currency = report.bill, report.prices.currency
    for amount in (
        bill.total,
        bill.alone,
        *bill.parts.values(),
        *(a for o in bill.outages for a in (o.during, o.after)),
    ):
        yield count(amount.operations)
        yield money(amount.money, currency)
    for sum_ in (bill.bandwidth.money, bill.base, bill.geo_replication, bill.with_pairing):
        assert sum_ is not None
        yield money(sum_, currency)
    yield from (size(bill.bandwidth.bytes), size(bill.total.bytes), count(report.prices.operations_before))
    yield from (report.prices.sheet, currency, report.prices.date, report.prices.source, report.prices.counting)


def test_every_number_of_the_report_is_on_the_page(report: Report, page: Page) -> None:
    """A number that the jobs compute and the page does not show was not worth computing."""
    there, calendar = report.availability, Calendar.of(report.begins, report.ends)
    wanted = [
        *bill_numbers(report),
        *(number for entity in (*there.entities, there.total) for number in entity_numbers(entity)),
        *(number for outage in there.outages for number in outage_numbers(outage, calendar)),
        *(
            text
            for span in there.states
            for text in (span.entity, calendar.time(span.begins), calendar.time(span.ends))
        ),
        *(text for point in there.backlog for text in (calendar.time(point.time), duration(point.oldest_s))),
        *(count(point.waiting) for point in there.backlog),
        *(count(messages) for _, messages in there.delays),
        *(count(number) for point in there.rates for number in (point.direct, point.diverted, point.failed) if number),
        *(text for one in there.dead_letters for text in (one.entity, one.reason, count(one.messages))),
        *(text for one in report.source.damage for text in (one.file, one.reason)),
        *map(count, (report.source.files, report.source.rows, report.source.damaged, report.source.lost_rows)),
        *(count(report.source.clock_jumps), count(report.source.damage[0].line), report.version, report.made_at),
    ]
    cells = set(re.split(r"[ (),;:]+", page.text)) | set(page.texts)
    missing = [text for text in wanted if text not in cells and text not in page.text]
    assert missing == []


def test_the_first_sentence_says_what_happened() -> None:
    """A person who reads no further knows the outcome."""
    said = headline(example_report()).replace("\u202f", " ").replace("\u00a0", " ")
    assert said == (
        "1 incident with 2 outages of orders and payments, 1 short suspicion;"
        " 2 615 messages diverted, all home, none lost; pairing added $0.00452 (estimate)."
    )
    text = Page(render(example_report())).text.replace("\u00a0", " ")
    assert "1 incident, 2 outages, 1 short suspicion, 3 entities." in text, "the section counts in the same words"


def test_what_is_not_well_is_in_the_first_sentence(report: Report) -> None:
    """Dead letters, failed sends, messages that wait, and an outage that is not over."""
    there = report.availability
    first, *others = there.outages
    backlog = (*there.backlog[:-1], replace(there.backlog[-1], waiting=7))
    unfinished = replace(there, outages=(replace(first, recovered=None, drained=None), *others), backlog=backlog)
    said = headline(replace(report, availability=unfinished))
    for words in ("1 not over", "7 waiting", "2 dead-lettered", "3\u00a0sends failed"):
        assert words in said
    assert "all home" not in said and "none lost" not in said


def test_unusable_file_is_named_on_page_and_summary() -> None:
    """The file is named also where no line is damaged: the report once said then that all files could be used."""
    unread = Damage("ledger-7.jsonl", 0, "it is empty")
    clean = replace(example_report().source, damaged=0, damage=(), lost_rows=0, clock_jumps=0)
    whole = replace(example_report(), source=clean)
    assert "All of them could be used." in render(whole)
    broken = replace(whole, source=replace(clean, damage=(unread,)))
    assert "All of them could be used." not in render(broken)
    assert "1 file could not be used, the first ledger-7.jsonl: it is empty" in summary(broken).plain.replace(
        "\u00a0", " "
    )


def test_nothing_is_called_lost_or_not_where_rows_are_missing() -> None:
    """A row that was never written, or cannot be read, may have told of a message that never came home."""
    report = example_report()
    assert "none lost" not in headline(replace(report, source=replace(report.source, damaged=0, lost_rows=1)))
    assert "none lost" not in headline(replace(report, source=replace(report.source, damaged=1, lost_rows=0)))


@pytest.mark.parametrize(
    ("reason", "is_missing"),
    [
        ("the file cannot be read: Permission denied", True),
        ("the table is not a ledger: it has no run", True),
        ("the file is empty", False),
        ("3 damaged lines were left out by compaction", False),
    ],
)
def test_unread_file_counts_as_missing(reason: str, is_missing: bool) -> None:
    """The file may tell of a message that never came home. Lines that compaction left out are counted as lines."""
    report = example_report()
    unread = replace(report, source=replace(report.source, damage=(Damage("7.jsonl", 0, reason),)))
    assert ("none lost" not in headline(unread)) == is_missing
    words = lost(unread).words.replace("\u00a0", " ")
    assert ("1 file of it could not be read or written" in words) == is_missing


def test_money_is_called_an_estimate_wherever_it_stands(report: Report) -> None:
    """One section has a badge for it; elsewhere the same sentence or tile says so."""
    text = render(report)
    body = text[text.index("<body") :]
    sections = re.split(r"(?=<section)", body)
    assert sum('class="badge">estimate<' in part for part in sections) == 1
    for part in sections:
        if 'class="badge">estimate<' in part:
            assert re.search(r"\$\d", part) and part.count("stimate") <= 6
            continue
        for piece in re.split(r"</h1>|</p>|</div>", part):
            assert "stimate" in piece or not re.search(r"\$\d", piece), piece


def test_geo_replication_in_another_currency_is_left_out() -> None:
    """The amount would stand in the currency of the user's own price sheet."""
    report = example_report()
    alone = replace(report, bill=replace(report.bill, geo_replication=None))
    assert "eo-replication" in render(report) and "eo-replication" in summary(report).plain
    assert "eo-replication" not in render(alone) and "eo-replication" not in summary(alone).plain


def test_an_empty_report_is_made_of_sentences() -> None:
    """A gap would look like a fault of the page."""
    page = Page(render(empty_report()))
    for sentence in (
        *("No outage in this period.", "No entity was used in this period.", "No billable operation in this period."),
        *("No message waited in a backlog queue in this period.", "No diverted message came home in this period."),
        *("No diverted message was dead-lettered in this period.", "Made from 1\u00a0row in 1\u00a0file."),
    ):
        assert sentence in page.text
    assert page.named("svg", "table") == []


def test_the_first_tile_says_that_nothing_is_lost(report: Report) -> None:
    """Without reserve only where the ledger is whole and every message is home."""
    good = figures(example_report())[0]
    assert (good.name, good.value, good.mood) == ("Lost", "0", GOOD) and "are home" in good.words
    limited = figures(report)[0]
    assert (limited.value, limited.mood) == ("0", PLAIN) and "314\u00a0rows of it could not" in limited.words


def test_twenty_queues_that_fail_together_are_one_row() -> None:
    """The row unfolds to its entities, names its reason once in words, and keeps the raw texts folded."""
    text = render(fleet_report())
    page = Page(text)
    rows = [attributes for attributes in page.named("details") if attributes.get("class") == "incident"]
    assert len(rows) == 2 and all("open" not in attributes for attributes in rows)
    assert "2\u00a0incidents, 40\u00a0outages, 20\u00a0entities." in page.text
    facts = re.findall(r'class="facts">([^<]*)<', text)
    assert all(fact.startswith("connection refused · ") for fact in facts) and len(facts) == 2
    raw = re.findall(r'<ul class="raw">(.*?)</ul>', text)
    assert len(raw) == 2 and all(part.count("[Errno 111]") == 20 for part in raw)
    assert text.count("orders-1</bdi> and 19 more") == 3, (
        "in the chart of the whole period, and in that of each incident"
    )


def test_columns_of_zeros_are_left_out_and_named() -> None:
    """A column that says nothing costs room; its name says that it was looked at."""
    shown = table("Messages", ("entity", "#sent", "#failed", "#money"), [("a", "1", "0", "$0"), ("b", "2", "0", "$0")])
    assert "left out: failed, money" in shown and shown.count("<th ") == 4 and "$0" not in shown
    assert "left out" not in table("Messages", ("entity", "#failed"), [("a", "0"), ("b", "1")])
    small = table("Money", ("entity", "#money"), [("a", "<$0.000000001")])
    assert "left out" not in small


def test_tables_of_more_than_ten_rows_are_folded() -> None:
    """The page stays short; the rows are one click away."""
    rows = [(f"queue-{number}", str(number + 1)) for number in range(11)]
    assert "<details" in fitting_table("Queues", "Queues", ("entity", "#sent"), rows)
    assert "<details" not in fitting_table("Queues", "Queues", ("entity", "#sent"), rows[:10])


def test_queues_of_pairing_itself_are_kept_apart(report: Report) -> None:
    """An operator looks for the application's entities; backlog queues are how, not what."""
    there = report.availability
    own = replace(there.entities[0], entity="contoso/x-servicebus-transfer/3", sent=0)
    text = render(replace(report, availability=replace(there, entities=(*there.entities, own))))
    entities = text[text.index('id="entities"') :]
    assert entities.index("shipping-labels") < entities.index("Pairing's own queues (1)".replace("'", "&#x27;"))
    assert entities.index("Pairing&#x27;s own queues (1)") < entities.index("contoso/x-servicebus-transfer/3")
    states = text[text.index('id="states"') : text.index('id="outages"')]
    assert "x-servicebus-transfer" not in states and "3\u00a0entities</p>" in text
    bill = text[text.index('id="bill"') :]
    assert bill.index("Operations of the application&#x27;s entities") < bill.index("Operations of pairing&#x27;s own")


def test_local_time_stands_beside_utc(report: Report) -> None:
    """Given by the caller; where it is UTC, nothing is said twice."""
    cet = timezone(timedelta(hours=1), "CET")
    text = render(report, lambda at: at.astimezone(cet))
    assert "Local time: 1 March 2026, 10:00:00 to 16:00:00 CET." in text
    assert "11:02:14 UTC (12:02:14 CET)" in text and "first failure 11:02:14" in text
    assert "11:02:14 UTC (12:02:14 CET)" in summary(report, lambda at: at.astimezone(cet)).plain
    assert render(report, lambda at: at.astimezone(UTC)) == render(report)
    late = Calendar.of("2026-03-01T22:00:00.000Z", "2026-03-01T23:59:00.000Z", lambda at: at.astimezone(cet))
    assert late.both("2026-03-01T23:30:00.000Z") == "23:30:00 UTC (2 Mar 00:30:00 CET)"


def test_marks_of_an_incident_go_through_all_its_rows(report: Report) -> None:
    """First failure, diverted, primary back, drained: on one axis through states, sends, backlog and age."""
    text = render(report)
    near = re.findall(r"<details[^>]*><summary>From nearer.*?</details>", text)[0]
    labels = ("first failure 11:02:14", "diverted 11:02:24", "primary back 11:20:01", "drained 11:27:20")
    assert all(label in near for label in labels)
    for title in ("Sends a second", "Backlog", "Age of the oldest message"):
        plot = re.search(rf"<title>{title}</title>.*?</svg>.*?</svg>", near)
        assert plot is not None and plot[0].count('class="mark"') == 4


def test_columns_that_stand_for_longer_spans_say_so(report: Report) -> None:
    """Equal widths on the page would otherwise be read as equal times."""
    words = "columns to the right are longer spans of time"
    growing = replace(report.availability, delays=((1.0, 5), (10.0, 6), (100.0, 1)))
    assert words not in render(report) and words in render(replace(report, availability=growing))


def test_operations_that_cost_nothing_are_still_shown_as_parts(report: Report) -> None:
    """Within the included operations every part costs nothing, and the stack shows operations instead."""
    bill = report.bill
    free = {part: replace(amount, money=Decimal(0)) for part, amount in bill.parts.items()}
    none = replace(bill, parts=free, total=replace(bill.total, money=bill.bandwidth.money), lines=())
    page = Page(render(replace(report, bill=none)))
    assert "all operations of this ledger are included in the base charge and cost nothing" in page.text
    assert [attributes["class"] for attributes in page.named("rect") if attributes.get("height") == "26"] == [
        f"bar {part}" for part in PARTS
    ]


# ── how it is made ──


def test_the_page_is_one_small_file_that_fetches_nothing(report: Report, page: Page) -> None:
    """The page is mailed, attached to a ticket, and opened years later without a network."""
    text = render(report)
    assert len(text.encode()) < SIZE_MAX
    assert page.named("script", "link", "img", "iframe", "object", "embed", "image", "use") == []
    ids = {attributes.get("id") for _, attributes in page.elements}
    links = [str(attributes["href"]) for attributes in page.named("a")]
    assert len(links) > 5 and all(link[0] == "#" and link[1:] in ids for link in links)
    assert not re.search(r"url\(|@import|https?://", text)
    [policy] = [tag["content"] for tag in page.named("meta") if tag.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")


def test_a_large_report_stays_small() -> None:
    """A hundred entities with an outage each, 500 points of backlog, a month of hours."""
    report = example_report(trouble=True)
    there = report.availability
    outage, entity, line = there.outages[0], there.entities[0], report.bill.lines[0]
    names = [f"area-{number}/entity-with-a-long-name-{number}" for number in range(100)]
    begins = datetime(2026, 3, 1, tzinfo=UTC)
    hours = [(begins + timedelta(hours=number)).strftime("%Y-%m-%dT%H:%MZ") for number in range(720)]
    points = [there.backlog[5]] * 500
    large = replace(
        report,
        availability=replace(
            there,
            entities=tuple(replace(entity, entity=name) for name in names),
            outages=tuple(replace(outage, entity=name) for name in names),
            states=tuple(replace(span, entity=name) for name in names for span in there.states[:2]),
            backlog=tuple(points),
            delays=tuple((float(limit), 5) for limit in range(1, 41)),
        ),
        bill=replace(
            report.bill, lines=tuple(replace(line, entity=name, hour=hour) for hour in hours for name in names[:30])
        ),
    )
    text = render(large)
    assert len(text.encode()) < SIZE_MAX
    assert "and 99 more" in text, "entities with the same outage share a lane"


def test_a_reader_who_does_not_see_it_can_follow(page: Page) -> None:
    """The page has one h1, no level left out, ids that are unique, and names for every plot and table."""
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)) and {"states", "delay", "outages", "bill", "ledger"} <= set(ids)
    names = [name for name, _ in page.elements]
    for number, (name, attributes) in enumerate(page.elements):
        if name == "svg" and attributes.get("role") == "img":
            assert names[number + 1 : number + 3] == ["title", "desc"]
        elif name == "svg":  # labels beside lanes, which have texts of their own, and the frame of a curve
            assert attributes.get("aria-hidden") or attributes.get("viewbox")
    assert names.count("caption") == names.count("table") > 5
    assert all(cell.get("scope") in ("col", "row") for cell in page.named("th"))
    assert page.named("html")[0]["lang"] == "en"


EVIL = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</style></title></svg><b>bold</b>",
    "&lt;b&gt; &amp;amp; {braces} %s [bold]markup[/]",
    "half a \ud800 pair, a \x00 zero, a \x1b[31m colour",
]


@pytest.mark.parametrize("evil", EVIL)
def test_nothing_from_outside_becomes_html(report: Report, page: Page, evil: str) -> None:
    """Names, ids, reasons, files: any text of the model may hold anything."""
    there, bill, source = report.availability, report.bill, report.source
    hostile = replace(
        report,
        availability=replace(
            there,
            entities=tuple(replace(one, entity=evil) for one in there.entities),
            outages=tuple(replace(one, entity=evil, reason=evil) for one in there.outages),
            states=tuple(replace(one, entity=evil) for one in there.states),
            dead_letters=tuple(replace(one, entity=evil, reason=evil) for one in there.dead_letters),
        ),
        bill=replace(
            bill,
            lines=tuple(replace(line, entity=evil, namespace=evil, kind=evil) for line in bill.lines),
            outages=tuple(replace(one, entity=evil) for one in bill.outages),
        ),
        source=replace(source, damage=tuple(replace(one, file=evil, reason=evil) for one in source.damage)),
        prices=replace(report.prices, sheet=evil, source=evil, currency=evil, counting=evil),
    )
    made = Page(render(hostile))
    assert {name for name, _ in made.elements} <= {name for name, _ in page.elements}
    assert {key for _, keys in made.elements for key in keys} <= {key for _, keys in page.elements for key in keys}
    render(hostile).encode("utf-8")
    shown = re.sub("[\x00-\x1f\ud800]", "\ufffd", evil)
    assert shown in made.text
    assert summary(hostile).plain.encode("utf-8").decode().replace("\n", "").isprintable()


# ── in a terminal ──


def test_the_summary_says_the_same_in_plain_lines(report: Report) -> None:
    """The sentence, nine figures, a line for each incident, the prices, and what is wrong with the ledger."""
    lines = summary(report).plain.splitlines()
    assert lines[0] == headline(report).replace("\u202f", " ").replace("\u00a0", " ")
    figures = [line.strip() for line in lines if re.match(r" *[A-Z][\w ,()]+  ", line)]
    assert [re.split("  +", line)[0] for line in figures] == [
        *("Lost", "Send availability", "Failed sends", "Time to divert", "Added delay, p50", "Duplicates"),
        *("Dead letters", "Waiting", "Pairing added (estimate)"),
    ]
    assert (
        "orders and payments: 11:02:14 UTC silent; diverted after 10.2 s, 2 615 messages; recovered 11:20:01" in lines
    )
    assert "shipping-labels: 13:30:10 UTC busy; suspected, did not divert; recovered 13:30:14" in lines
    assert "Estimates by standard, USD, 2026-03-01, documented counting." in lines
    assert any(line.startswith("2 damaged lines left out, the first in ledger/") for line in lines)


def test_the_summary_of_an_empty_report_is_short() -> None:
    """Without any event the figures alone say so."""
    assert len(summary(empty_report()).plain.splitlines()) < 16


# ── words ──


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (count(1204), "1 204"),
        (listed(["a"]), "a"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed(["a", "b", "c", "d"]), "a, b, c and d"),
        (listed(["a", "b", "c", "d", "e"]), "a, b, c and 2 more"),
        (duration(0), "0 s"),
        (duration(0.82), "820 ms"),
        (duration(0.9999), "1 s"),
        (duration(12.44), "12.4 s"),
        (duration(59.97), "1 min"),
        (duration(504), "8 min 24 s"),
        (duration(3599.7), "1 h"),
        (duration(7500), "2 h 05 min"),
        (duration(273_600), "3 d 4 h"),
        (duration(-2), "−2 s"),
        (percent(100.0), "100 %"),
        (percent(99.9999874), "99.999987 %"),
        (percent(99.987654), "99.987 %"),
        (percent(95.55), "95.5 %"),
        (percent(0.0), "0.0 %"),
        (size(0), "0 bytes"),
        (size(999), "999 bytes"),
        (size(1234), "1.23 kB"),
        (size(4_250_000), "4.25 MB"),
        (size(10**15), "1000 TB"),
        (money(Decimal(0), "USD"), "$0"),
        (money(Decimal("0.012345"), "USD"), "$0.0123"),
        (money(Decimal("0.9999"), "EUR"), "€1.00"),
        (money(Decimal("1204.5"), "CHF"), "CHF 1 204.50"),
        (money(Decimal("-0.5"), "USD"), "−$0.500"),
        (money(Decimal("1e-12"), "USD"), "<$0.000000001"),
        (shortened("a" * 30 + "b" * 30, 21), "a" * 10 + "…" + "b" * 10),
    ],
)
def test_numbers_are_written_as_people_write_them(said: str, wanted: str) -> None:
    """Thin spaces, which do not break, are between thousands and before units."""
    assert said.replace("\u202f", " ").replace("\u00a0", " ") == wanted


@given(st.floats(0, 100))
def test_availability_is_never_rounded_up(value: float) -> None:
    """99.9999 % is not 100 %: a message was refused."""
    assert float(percent(value).removesuffix("\u202f%")) <= value


# ── axes ──


@given(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), st.floats(0.5, 86400 * 800))
@example(datetime(2020, 1, 1), 108_000.0)  # 30 hours: 06:00 of two days
def test_the_time_axis_has_a_few_ticks_at_round_times(begins: datetime, seconds: float) -> None:
    """The axis is half a second to two years long. A time of day comes again only after the date of the next day."""
    begins = begins.replace(tzinfo=UTC)
    ticks = time_ticks(Calendar(begins, begins + timedelta(seconds=seconds)))
    assert 1 <= len(ticks) <= 10
    assert all(0 <= tick.at <= 1 + 1e-6 for tick in ticks)
    day = ""
    labels = []
    for tick in ticks:
        day = day if ":" in tick.label else tick.label
        labels.append((day, tick.label))
    assert len(set(labels)) == len(labels)


@given(st.floats(1e-9, 1e12))
def test_the_axis_of_numbers_reaches_over_the_highest(top: float) -> None:
    """The ticks are few enough to read."""
    for ticks in (number_ticks(top), duration_ticks(top)[0]):
        assert ticks[0] == 0 and ticks[-1] >= top * (1 - 1e-6)
        assert 2 <= len(ticks) <= 6
    assert all(tick == int(tick) for tick in number_ticks(max(round(top), 1), whole=True))


@pytest.mark.parametrize(("hours", "columns", "key"), [(1, 1, 13), (72, 72, 13), (73, 4, 10), (24 * 72, 72, 10)])
def test_columns_of_cost_are_hours_days_or_months(hours: int, columns: int, key: int) -> None:
    """The finest that can be told apart; and an hour without a row has a place all the same."""
    first = datetime(2026, 3, 1, tzinfo=UTC)
    ends = [first, first + timedelta(hours=hours - 1)]
    line = BillLine("n", "primary", "e", "send", "application", "", 1, 1, Decimal(1))
    found = by_time([replace(line, hour=at.strftime("%Y-%m-%dT%H:%MZ")) for at in ends], "hour")
    assert len(found) == columns <= COLUMNS_MAX
    assert all(len(name) == key for name, _ in found)
    assert sum(sum(parts.values()) for _, parts in found) == 2


@pytest.mark.parametrize(("finest", "key"), [("hour", 13), ("day", 10), ("month", 7)])
def test_cost_is_not_shown_by_hour_when_its_lines_are_by_day(finest: str, key: int) -> None:
    """Many entities make a report too large for lines by hour; a day's cost is not that of its first hour."""
    line = BillLine("n", "primary", "e", "send", "application", "2026-03-01T00:00Z", 1, 1, Decimal(1))
    found = by_time([line, replace(line, hour="2026-03-02T00:00Z")], finest)
    assert {len(name) for name, _ in found} == {key}
    assert sum(sum(parts.values()) for _, parts in found) == 2


def test_amounts_of_parts_add_up_in_the_example() -> None:
    """The page is shown numbers that could be true."""
    bill = example_report().bill
    assert sum(part.operations for part in bill.parts.values()) == bill.total.operations
    assert sum(part.money for part in bill.parts.values()) + bill.bandwidth.money == bill.total.money
    assert bill.alone.money < bill.total.money and isinstance(bill.total, Amount)
