"""Each fault that a broker could commit is planted in a history, and the checker must name it and nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.history.check import Verdict, check
from tests.history.events import Attempt, Drained, Event, Kind, Outcome, Place, Received, Sent, Settled

NOW_MS = 1_000_000
FINDINGS = [f.name for f in fields(Verdict) if f.name not in ("attempts", "accepted", "failed", "unknown")]


def attempt(id: str = "a", entity: str = "orders", digest: str = "d", expires_ms: int | None = None) -> Attempt:
    return Attempt(id, entity, digest, expires_ms)


def sent(outcome: Outcome = Outcome.OK, id: str = "a") -> Sent:
    return Sent(id, outcome)


def received(number: int = 1, id: str = "a", entity: str = "orders", digest: str = "d") -> Received:
    return Received(id, entity, number, digest)


def completed(outcome: Outcome = Outcome.OK, number: int = 1, kind: Kind = Kind.COMPLETE) -> Settled:
    return Settled("a", "orders", number, kind, outcome)


def drained(
    number: int = 1, id: str = "a", entity: str = "orders", digest: str = "d", place: Place = Place.QUEUE
) -> Drained:
    return Drained(id, entity, number, digest, place)


def judge(*events: Event) -> Verdict:
    return check(events, drain_ended_ms=NOW_MS)


def findings(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {name: ids for name in FINDINGS if (ids := getattr(verdict, name))}


CLEAN: dict[str, tuple[Event, ...]] = {
    "nothing happened": (),
    "waiting": (attempt(), sent(), drained()),
    "dead-lettered": (attempt(), sent(), received(), drained(place=Place.DEAD_LETTER)),
    "completed": (attempt(), sent(), received(), completed()),
    "received and deleted": (attempt(), sent(), received(), completed(kind=Kind.DELETE)),
    "redelivered after an abandon": (
        attempt(),
        sent(),
        received(),
        completed(kind=Kind.ABANDON),
        received(),
        completed(),
    ),
    "its complete had no answer and it is gone": (attempt(), sent(), received(), completed(Outcome.UNKNOWN)),
    "its complete had no answer and it is still there": (
        *(attempt(), sent(), received(), completed(Outcome.UNKNOWN), drained()),
    ),
    "refused and not there": (attempt(), sent(Outcome.FAILED)),
    "no answer and not there": (attempt(), sent(Outcome.UNKNOWN)),
    "the sender never learned how its attempt ended": (attempt(),),
    "delivered before the sender got its answer": (attempt(), received(), completed(), sent()),
}


@pytest.mark.parametrize("events", CLEAN.values(), ids=CLEAN.keys())
def test_a_correct_history_has_no_finding(events: tuple[Event, ...]) -> None:
    """A checker that cries wolf would be switched off."""
    verdict = judge(*events)
    assert findings(verdict) == {}
    assert verdict.ok


FAULTS: dict[str, tuple[str, tuple[Event, ...]]] = {
    "accepted and nowhere": ("lost", (attempt(), sent())),
    "delivered, never settled, and gone": ("lost", (attempt(), sent(), received())),
    "its complete was refused, and it is gone": (
        "lost",
        (attempt(), sent(), received(), completed(Outcome.FAILED)),
    ),
    "abandoned, and gone": ("lost", (attempt(), sent(), received(), completed(kind=Kind.ABANDON))),
    "gone before its time to live ended": ("lost", (attempt(expires_ms=NOW_MS + 1), sent())),
    "accepted on a retry, and gone": (
        "lost",
        (attempt(), sent(Outcome.UNKNOWN), attempt(), sent()),
    ),
    "stored twice": ("duplicated", (attempt(), sent(), drained(1), drained(2))),
    "in the queue and in the dead-letter queue": (
        "duplicated",
        (attempt(), sent(), drained(), drained(place=Place.DEAD_LETTER)),
    ),
    "consumed as two messages": ("duplicated", (attempt(), sent(), received(1), completed(), received(2), drained(2))),
    "found, and never sent": ("unexpected", (drained(),)),
    "found, and its send was refused": ("unexpected", (attempt(), sent(Outcome.FAILED), drained())),
    "received, and its send was refused": ("unexpected", (attempt(), sent(Outcome.FAILED), received())),
    "found on another entity": ("misrouted", (attempt(), sent(), drained(entity="invoices"))),
    "drained with another content": ("altered", (attempt(), sent(), drained(digest="e"))),
    "received with another content": ("altered", (attempt(), sent(), received(digest="e"), completed())),
    "delivered again after its complete": (
        "redelivered_after_complete",
        (attempt(), sent(), received(), completed(), received()),
    ),
    "still there after its complete": (
        "redelivered_after_complete",
        (attempt(), sent(), received(), completed(), drained()),
    ),
}


@pytest.mark.parametrize(("finding", "events"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_found_and_named(finding: str, events: tuple[Event, ...]) -> None:
    """Exactly one finding each: a fault that shows up under a second name would send the reader the wrong way."""
    verdict = judge(*events)
    assert findings(verdict) == {finding: ("a",)}
    assert not verdict.ok
    assert finding.replace("_", " ") in str(verdict)
    assert "FAULT" in str(verdict)


def test_an_unanswered_send_that_is_found_is_recovered() -> None:
    """The broker stored it and died before it could say so: allowed, and worth counting."""
    verdict = judge(attempt(), sent(Outcome.UNKNOWN), drained())
    assert findings(verdict) == {"recovered": ("a",)}
    assert verdict.ok


def test_a_refused_retry_does_not_undo_an_unanswered_attempt() -> None:
    """The first attempt may have been stored, so finding the message is no surprise."""
    verdict = judge(attempt(), sent(Outcome.UNKNOWN), attempt(), sent(Outcome.FAILED), drained())
    assert findings(verdict) == {"recovered": ("a",)}


def test_message_past_its_time_to_live_is_expired_not_lost() -> None:
    """The broker may drop it; that it did is still counted, because a wrong clock would show here."""
    verdict = judge(attempt(expires_ms=NOW_MS), sent())
    assert findings(verdict) == {"expired": ("a",)}
    assert verdict.ok


def test_messages_are_counted_by_id_and_outcome() -> None:
    """The four counts add up, so that a run which tested nothing is seen."""
    events: list[Event] = []
    for id, outcome in (("a", Outcome.OK), ("b", Outcome.OK), ("c", Outcome.FAILED), ("d", Outcome.UNKNOWN)):
        events += [attempt(id), sent(outcome, id)]
    verdict = judge(*events, attempt("a"), sent(id="a"), drained(1, "a"), drained(2, "b"))
    assert (verdict.attempts, verdict.accepted, verdict.failed, verdict.unknown) == (4, 2, 1, 1)
    assert verdict.ok
    assert "attempts 4, accepted 2, failed 1, unknown 1, lost 0" in str(verdict)
