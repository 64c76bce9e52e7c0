"""Renders the sections with figures and tables: key figures, outages, dead letters, entities, state of the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.report.model import Delay, EntityAvailability, EntityOutage, Report
from pairbus.report.page.findings import Figure, figures, headline
from pairbus.report.page.frame import nothing, section
from pairbus.report.page.markup import Html, join, name, tag
from pairbus.report.page.reasons import said_once
from pairbus.report.page.tables import cut_table, fitting_table, folded, long_table, pairs, table
from pairbus.report.page.words import Calendar, count, counted, duration, is_own, listed, moment, percent
from pairbus.report.rules.incidents import Incident

INCIDENTS_MAX = 50
REASONS_MAX = 20


def head(report: Report, calendar: Calendar) -> Html:
    number = sum(not is_own(one.entity) for one in report.availability.entities)
    entities, local = counted(number, "entity", "entities"), calendar.local_period()
    return tag(
        "header",
        tag("p", "Pairbus report", class_="brand"),
        tag("h1", headline(report)),
        tag("p", f"{calendar.period()} · {duration(report.seconds)} · {entities}", class_="period"),
        tag("p", f"Local time: {local}. Times below are UTC unless they name a zone.", class_="note") if local else "",
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


def outages(report: Report, calendar: Calendar, incidents: Sequence[Incident]) -> Html:
    """Return a row for each incident, which unfolds to the outages of its entities."""
    if not incidents:
        return section("outages", "Incidents", nothing("No outage in this period."))
    seen = [outage for incident in incidents for outage in incident.outages]
    real = sum(outage.failed_over is not None for outage in seen)
    counts = (
        (sum(not incident.is_suspicion for incident in incidents), "incident"),
        (real, "outage"),
        (len(seen) - real, "short suspicion"),
    )
    sentence = (
        f"{', '.join(counted(number, word) for number, word in counts if number)},"
        f" {counted(len({outage.entity for outage in seen}), 'entity', 'entities')}. An incident is what happened at"
        " the same time; it unfolds to what the clients of each entity saw."
    )
    rows = (_incident(incident, calendar) for incident in incidents[:INCIDENTS_MAX])
    left = len(incidents) - INCIDENTS_MAX
    rest = nothing(f"{counted(left, 'more incident')}, in the JSON and Parquet files.") if left > 0 else ""
    return section("outages", "Incidents", tag("p", sentence), *rows, rest)


def _incident(incident: Incident, calendar: Calendar) -> Html:
    ends = moment(incident.recovered) if incident.recovered else calendar.ends
    facts = [
        said_once(outage.reason for outage in incident.outages),
        _diverted_after(incident),
        f"{counted(incident.diverted, 'message')} diverted" if incident.diverted else "",
        f"{counted(incident.failed_sends, 'send')} failed" if incident.failed_sends else "",
        f"lasted {duration((ends - moment(incident.begins)).total_seconds())}" if incident.recovered else "not over",
        f"drained {calendar.time(incident.drained)}" if incident.drained else "",
        f"{count(incident.waiting)} waiting" if incident.waiting else "",
    ]
    heads = (
        *("entity", "#first failure", "#diverting after", "#recovered", "#lasted", "#drained"),
        *("#diverted", "#failed sends", "#waiting", "#clients"),
    )
    many = len(incident.entities)
    entities = join([name(listed(incident.entities)), tag("small", f"{count(many)} entities") if many > 1 else ""])
    summary = join(
        [
            tag("span", calendar.both(incident.begins), class_="when"),
            tag("strong", entities),
            tag("span", " · ".join(fact for fact in facts if fact), class_="facts"),
        ]
    )
    rows = [_outage_row(outage, calendar) for outage in incident.outages]
    table = cut_table("Outages, as the clients of an entity saw them; times are UTC", heads, rows)
    return folded(summary, join([table, _raw(incident)]), class_="incident")


def _diverted_after(incident: Incident) -> str:
    times = incident.times_to_divert_s
    if incident.is_suspicion:
        return "did not divert"
    if any(outage.forced for outage in incident.outages):
        return "diverted by hand"
    return f"diverted after {duration(times[-1])}" if times else "diverted"


def _raw(incident: Incident) -> Html:
    """Return the reasons as the clients wrote them, each once."""
    texts = list(dict.fromkeys(outage.reason for outage in incident.outages))
    items = (tag("li", tag("span", reason, class_="reason")) for reason in texts[:REASONS_MAX])
    left = len(texts) - REASONS_MAX
    rest = tag("li", f"and {count(left)} more") if left > 0 else ""
    return folded("Reasons as the clients wrote them", tag("ul", *items, rest, class_="raw"))


def _outage_row(outage: EntityOutage, calendar: Calendar) -> tuple[object, ...]:
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
    )


def dead_letters(report: Report) -> Html:
    letters = report.availability.dead_letters
    if not letters:
        return section("dead-letters", "Dead letters", nothing("No diverted message was dead-lettered in this period."))
    rows = [(name(one.entity), tag("span", one.reason, class_="reason"), count(one.messages)) for one in letters]
    caption = "Diverted messages that could not go home; they are in dead-letter queues, or refused in the spool"
    heads = ("entity", "reason", "#messages")
    return section("dead-letters", "Dead letters", fitting_table("Dead letters by reason", caption, heads, rows))


def entities(report: Report) -> Html:
    rows_of_entities = report.availability.entities
    if not rows_of_entities:
        return section("entities", "Entities", nothing("No entity was used in this period."))
    heads = (
        *("entity", "#with pairing", "#without", "#sent", "#diverted", "#failed", "#moved", "#duplicated"),
        *("#maybe twice", "#dead letters", "#pings"),
    )
    theirs, ours = ([one for one in rows_of_entities if is_own(one.entity) == own] for own in (False, True))
    everything = [*theirs, report.availability.total] if len(rows_of_entities) > 1 else theirs
    delays = [(_title(one), *_delay_cells(one.delay)) for one in everything if one.delay is not None]
    delay_heads = ("entity", "#messages", "#p50", "#p95", "#p99", "#max")
    return section(
        "entities",
        "Entities",
        fitting_table(
            counted(len(theirs), "entity", "entities"),
            "Send availability with pairing and without, and messages",
            heads,
            [_entity_row(entity) for entity in everything],
        ),
        fitting_table("Added delay by entity", "Added delay of the messages that came home", delay_heads, delays)
        if delays
        else "",
        long_table(
            f"Pairing's own queues ({count(len(ours))})",
            "Backlog queues; the application does not use them",
            heads,
            [_entity_row(entity) for entity in ours],
        )
        if ours
        else "",
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
    if whole:
        return section("ledger", "The ledger", tag("p", sentence))
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
        places = table(caption, ("file", "#line", "reason"), rows)
        damage = places if len(rows) <= 10 else folded("Damaged places", places)
    return section("ledger", "The ledger", tag("p", sentence), facts, damage)
