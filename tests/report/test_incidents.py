"""Incidents: which outages an operator takes for one event, and why they happened, in words."""

from __future__ import annotations

import random

import pytest

from pairbus.report.model import EntityOutage
from pairbus.report.page.reasons import OTHER, in_words, said_once
from pairbus.report.rules.incidents import incidents_of, largest

ENDS = "2026-03-01T12:59:00.000Z"


def at(minute: int | None) -> str | None:
    return None if minute is None else f"2026-03-01T12:{minute:02d}:00.000Z"


def outage(
    entity: str, begins: int, recovered: int | None, drained: int | None = None, waiting: int = 0
) -> EntityOutage:
    diverted = 5 if drained is not None or waiting else 0
    over = at(begins) if diverted else None
    times = str(at(begins)), over, at(recovered), at(drained)
    return EntityOutage(entity, *times, False, "silent", 1, 0.5 if over else None, 0, diverted, waiting)


@pytest.mark.parametrize(
    ("outages", "groups"),
    [
        ([], []),
        ([("a", 1, 2)], ["a"]),
        ([("a", 1, 3), ("b", 2, 4)], ["a b"]),
        ([("b", 2, 4), ("a", 1, 3)], ["a b"]),  # sorted by time
        ([("a", 1, 2), ("b", 3, 4)], ["a", "b"]),  # separate in time
        ([("a", 1, 2), ("b", 2, 3)], ["a b"]),  # they touch
        ([("a", 1, 9), ("b", 2, 3), ("c", 8, 9)], ["a b c"]),  # within, and at the end of the longest
        ([("a", 1, 3), ("b", 2, 5), ("c", 4, 6), ("d", 7, 8)], ["a b c", "d"]),  # a chain
        ([("a", 1, 2, 6), ("b", 5, 7)], ["a b"]),  # messages of `a` were still coming home when `b` began
        ([("a", 1, None), ("b", 50, 51)], ["a b"]),  # not over
        ([("a", 1, 2, None, 3), ("b", 50, 51)], ["a", "b"]),  # a waiting message does not make `a` endless
        ([("a", 1, 2), ("a", 1, 2), ("a", 5, 6)], ["a", "a"]),  # each entity is named once
    ],
)
def test_outages_whose_times_overlap_are_one_incident(outages: list[tuple[str, int, int]], groups: list[str]) -> None:
    """An outage lasts from the first failure until its entity recovered and its backlog is drained."""
    given = [outage(*each) for each in outages]
    random.Random(7).shuffle(given)
    found = incidents_of(given, ENDS)
    assert [" ".join(incident.entities) for incident in found] == groups
    assert sum(len(incident.outages) for incident in found) == len(outages)


def test_an_incident_begins_with_its_first_outage_and_ends_with_its_last() -> None:
    """First failure, first diversion, last recovery, last message home."""
    [incident] = incidents_of([outage("a", 1, 4, 6), outage("b", 2, 5, 5)], ENDS)
    times = incident.begins, incident.failed_over, incident.recovered, incident.drained, incident.ends
    assert times == (at(1), at(1), at(5), at(6), at(6))
    assert (incident.diverted, incident.times_to_divert_s) == (10, [0.5, 0.5])


def test_what_is_not_over_has_no_end() -> None:
    """One entity that did not recover, or one message that waits, is enough."""
    [incident] = incidents_of([outage("a", 1, 4, 6), outage("b", 2, None, None, 2)], ENDS)
    assert (incident.recovered, incident.drained, incident.ends, incident.waiting) == (None, None, ENDS, 2)
    [suspicion] = incidents_of([outage("a", 1, 2)], ENDS)
    assert suspicion.is_suspicion and suspicion.drained is None and largest([suspicion]) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "no connection to 127.0.0.1:33739: [Errno 111] Connect call failed ('127.0.0.1', 33739)",
            "connection refused",
        ),
        ("no connection to a.b:5671: [Errno -2] Name or service not known", "host name not found"),
        ("orders: the peer is silent", "silent"),
        ("no answer within 5 s", "silent"),
        ("orders: its time is over", "time-out"),
        ("[Errno 104] Connection reset by peer", "connection lost"),
        ("amqp:internal-error: The service was unable to process the request", "internal error"),
        ("amqp:resource-limit-exceeded: the queue is full", "quota used up"),
        ("com.microsoft:server-busy", "busy"),
        ("the service is busy", "busy"),
        ("an operator asked for it", "forced by an operator"),
        ("<b>42</b>", OTHER),
    ],
)
def test_reasons_of_clients_are_said_in_words(reason: str, words: str) -> None:
    """The raw text stays on the page, folded."""
    assert in_words(reason) == words


def test_an_incident_says_each_reason_once() -> None:
    """Twenty queues behind one host fail for one reason."""
    assert said_once(["no answer"] * 19 + ["[Errno 111]"]) == "silent, connection refused"
