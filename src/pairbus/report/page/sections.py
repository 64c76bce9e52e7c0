"""Sections with figures and tables: key figures, outages, dead letters, entities, and the state of the ledger."""

from __future__ import annotations

from pairbus.report.model import Delay, EntityAvailability, Outage, Report
from pairbus.report.page.findings import Figure, figures, headline
from pairbus.report.page.frame import nothing, section
from pairbus.report.page.markup import Html, name, tag
from pairbus.report.page.tables import folded, long_table, pairs, table
from pairbus.report.page.words import Calendar, count, counted, duration, moment, percent

ROWS_MAX = 40
"""Rows of a table that is not folded."""


def head(report: Report, calendar: Calendar) -> Html:
    entities = counted(len(report.availability.entities), "entity", "entities")
    return tag(
        "header",
        tag("p", "Pairbus report", class_="brand"),
        tag("h1", headline(report)),
        tag("p", f"{calendar.period()} · {duration(report.seconds)} · {entities}", class_="period"),
    )


def key_figures(report: Report) -> Html:
    def tile(figure: Figure) -> Html:
        return tag(
            "div",
            tag("dt", figure.name),
            tag("dd", figure.value, class_=f"value {figure.mood}"),
            tag("dd", figure.words),
        )

    tiles = tag("dl", *map(tile, figures(report)), class_="tiles")
    return tag("section", tag("h2", "Key figures", id="figures", class_="unseen"), tiles, aria_labelledby="figures")


def outages(report: Report, calendar: Calendar) -> Html:
    found = report.availability.outages
    if not found:
        return section("outages", "Outages", nothing("No outage in this period."))
    heads = (
        *("entity", "#first failure", "#diverting after", "#recovered", "#lasted", "#drained"),
        *("#diverted", "#failed sends", "#waiting", "#clients", "reason"),
    )
    rows = [_outage_row(outage, calendar) for outage in found]
    shown = table("Outages, as the clients of an entity saw them; times are UTC", heads, rows[:50])
    rest = long_table("More outages", "Further outages; times are UTC", heads, rows[50:]) if len(rows) > 50 else ""
    return section("outages", "Outages", shown, rest)


def _outage_row(outage: Outage, calendar: Calendar) -> tuple[object, ...]:
    ends = moment(outage.recovered) if outage.recovered else calendar.ends
    lasted = duration((ends - moment(outage.begins)).total_seconds())
    if outage.forced:
        after = "by hand"
    elif outage.failed_over is None:
        after = "did not divert"
    else:
        after = "–" if outage.time_to_divert_s is None else duration(outage.time_to_divert_s)
    drained = "–" if not outage.diverted else "not yet" if outage.drained is None else calendar.time(outage.drained)
    return (
        name(outage.entity),
        calendar.time(outage.begins),
        after,
        calendar.time(outage.recovered) if outage.recovered else tag("strong", "not over", class_="bad"),
        lasted,
        drained,
        count(outage.diverted),
        count(outage.failed_sends),
        count(outage.waiting),
        count(outage.clients),
        tag("span", outage.reason, class_="reason"),
    )


def dead_letters(report: Report) -> Html:
    found = report.availability.dead_letters
    if not found:
        return section("dead-letters", "Dead letters", nothing("No diverted message was dead-lettered in this period."))
    rows = [(name(one.entity), tag("span", one.reason, class_="reason"), count(one.messages)) for one in found]
    caption = "Diverted messages that could not go home; they are in dead-letter queues, or set aside in the spool"
    return section("dead-letters", "Dead letters", table(caption, ("entity", "reason", "#messages"), rows[:100]))


def entities(report: Report) -> Html:
    found = report.availability.entities
    if not found:
        return section("entities", "Entities", nothing("No entity was used in this period."))
    heads = (
        *("entity", "#with pairing", "#without", "#sent", "#diverted", "#failed", "#moved", "#duplicated"),
        *("#maybe twice", "#dead letters", "#pings"),
    )
    everything = [*found, report.availability.total] if len(found) > 1 else list(found)
    rows = [_entity_row(entity) for entity in everything]
    delays = [(_title(one), *_delay_cells(one.delay)) for one in everything if one.delay is not None]
    captions = "Send availability with pairing and without, and messages", "Added delay of the messages that came home"
    delay_heads = ("entity", "#messages", "#p50", "#p95", "#p99", "#max")
    if len(found) > ROWS_MAX:
        return section(
            "entities",
            "Entities",
            long_table(counted(len(found), "entity", "entities"), captions[0], heads, rows),
            long_table("Added delay by entity", captions[1], delay_heads, delays) if delays else "",
        )
    return section(
        "entities",
        "Entities",
        table(captions[0], heads, rows),
        table(captions[1], delay_heads, delays) if delays else "",
    )


def _title(entity: EntityAvailability) -> object:
    return "all" if entity.entity == "*" else name(entity.entity)


def _entity_row(entity: EntityAvailability) -> tuple[object, ...]:
    return (
        _title(entity),
        percent(entity.with_pairing_percent),
        percent(entity.without_pairing_percent),
        *map(count, (entity.sent, entity.diverted, entity.failed, entity.moved, entity.duplicated)),
        *map(count, (entity.maybe_duplicated, entity.dead_lettered, entity.pings)),
    )


def _delay_cells(delay: Delay) -> tuple[str, ...]:
    return count(delay.messages), *map(duration, (delay.p50_s, delay.p95_s, delay.p99_s, delay.max_s))


def ledger(report: Report) -> Html:
    source = report.source
    whole = not (source.damaged or source.damage or source.lost_rows or source.clock_jumps)
    sentence = f"Made from {counted(source.rows, 'row')} in {counted(source.files, 'file')}. " + (
        "All of them could be used." if whole else "There are problems:"
    )
    facts = pairs(
        [
            ("Damaged lines", f"{count(source.damaged)}; they are left out, the others are used"),
            (
                "Lost rows",
                f"{count(source.lost_rows)} that writers could not write; "
                "their operations are in the bill, in the part application",
            ),
            (
                "Clock jumps",
                f"{count(source.clock_jumps)}: how often a writer's clock went back by more than a second",
            ),
        ]
    )
    damage = ""
    if source.damage:
        rows = [(name(one.file), count(one.line) if one.line else "whole file", one.reason) for one in source.damage]
        caption = "Damage and clock jumps"
        caption += f", the first {count(len(rows))} of {count(source.damaged)}" if len(rows) < source.damaged else ""
        shown = table(caption, ("file", "#line", "reason"), rows)
        damage = shown if len(rows) <= 10 else folded("Damaged places", shown)
    return section("ledger", "The ledger", tag("p", sentence), facts, damage)
