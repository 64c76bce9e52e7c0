"""The judge: what the clients of a round were told, against what they got.

Lost, altered, misrouted and restored messages are found by tests/history/check.py, sink by sink. The rules of a paired
world are added here.

* A message is stored once, and once more for each attempt whose outcome nobody knows: of a client (its connection was
  lost, its peer silent, its process killed), or of a syphon (the same, or its completion was not confirmed).
  Where the destination detects duplicates it is stored once whatever happens.
* A message whose send was surely refused is stored nowhere.
* No delivery is completed twice.
* Messages of one session from one sender that went directly are in order. Diverted ones are where senders ask for it
  and one syphon runs. Neither holds for messages in doubt, and while a fault delays messages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.history.check import check
from tests.history.events import Attempt, Drained, Event, Kind, Outcome, Place, Received, Settled
from tests.history.events import Sent as Answered
from tests.nemesis.places import BACKLOG, ONCE, SINKS, sinks_of
from tests.nemesis.record import Record, by_worker

FINDINGS = ("lost", "unexpected", "misrouted", "altered", "redelivered_after_complete")


@dataclass(slots=True)
class Judgement:
    """Counts, and the findings: name → (id, sink)."""

    messages: int = 0
    ok: int = 0
    failed: int = 0
    unknown: int = 0
    diverted: int = 0
    copies: int = 0
    duplicates: int = 0
    "Copies too many of messages that were in doubt: allowed."
    dead: int = 0
    "Messages that were found as dead letters: not lost, and not wanted."
    findings: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def is_good(self) -> bool:
        return not any(self.findings.values())


def judge(record: Record, *, in_order: bool = False, delayed: bool = False) -> Judgement:
    """Judge a round that has ended. `in_order`: diverted messages too; `delayed`: by a fault, and so out of order."""
    outcomes = Counter(map(record.outcome, record.sent))
    found = Judgement(
        messages=len(record.sent),
        ok=outcomes[Outcome.OK],
        failed=outcomes[Outcome.FAILED],
        unknown=outcomes[Outcome.UNKNOWN],
        diverted=len(record.away),
        dead=sum(left.source != left.path for left in record.left),
    )
    numbers = _numbers(record)
    found.copies = sum(map(len, numbers.values()))
    waiting = {left.id for left in record.left if left.path in BACKLOG}
    for sink in SINKS:
        verdict = check(_history(record, sink), drain_ended_ms=0)
        for name in FINDINGS:
            ids = set(getattr(verdict, name)) - (waiting if name == "lost" else set())
            found.findings[name] += [(one, sink) for one in sorted(ids)]
        _judge_copies(record, sink, numbers, found)
    settled = Counter((done.sink, done.number) for done in record.done if done.outcome is Outcome.OK)
    id_of = {(done.sink, done.number): done.id for done in record.done}
    found.findings["settled_twice"] += [(id_of[each], each[0]) for each, times in settled.items() if times > 1]
    if not delayed:
        _judge_order(record, numbers, found, in_order=in_order)
    return found


def _numbers(record: Record) -> dict[tuple[str, str], set[int]]:
    """Return the sequence numbers under which each message was seen in each sink."""
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for got in record.got:
        numbers[got.id, got.sink].add(got.number)
    for left in record.left:
        if left.source in SINKS:
            numbers[left.id, left.source].add(left.number)
    return numbers


def _history(record: Record, sink: str) -> list[Event]:
    """Return what happened in one sink, in an order in which nothing is told before it can have happened."""
    here = {got.id for got in record.got if got.sink == sink} | {left.id for left in record.left if left.path == sink}
    events: list[Event] = []
    for sent in record.sent.values():
        is_meant = sink in sinks_of(sent.entity, sent.number)
        if is_meant or sent.id in here:
            entity = sink if is_meant else sent.entity
            events += [Attempt(sent.id, entity, sent.digest), Answered(sent.id, record.outcome(sent.id))]
    happened: list[tuple[float, Event]] = [
        (got.opened_at, Received(got.id, sink, got.number, got.digest)) for got in record.got if got.sink == sink
    ]
    happened += [
        (done.at, Settled(done.id, sink, done.number, Kind.COMPLETE, done.outcome))
        for done in record.done
        if done.sink == sink
    ]
    events += [event for _, event in sorted(happened, key=lambda each: each[0])]
    for left in record.left:
        if left.path == sink:
            place = Place.QUEUE if left.source == sink else Place.DEAD_LETTER
            events.append(Drained(left.id, sink, left.number, left.digest, place))
    return events


def _judge_copies(record: Record, sink: str, numbers: dict[tuple[str, str], set[int]], found: Judgement) -> None:
    for message_id, sent in record.sent.items():
        copies = len(numbers.get((message_id, sink), ()))
        allowed = (record.outcome(message_id) is Outcome.OK) + record.doubtful(message_id)
        if sent.entity == ONCE:
            allowed = min(allowed, 1)
        if copies > max(allowed, 1):
            found.findings["duplicated"].append((message_id, sink))
        elif copies > allowed and record.outcome(message_id) is Outcome.UNKNOWN:
            found.findings["unexpected"].append((message_id, sink))  # no attempt of this message was in doubt
        found.duplicates += max(copies - 1, 0)


def _judge_order(record: Record, numbers: dict[tuple[str, str], set[int]], found: Judgement, *, in_order: bool) -> None:
    for (_, entity, _), lane in by_worker(record).items():
        last = {True: 0, False: 0}
        for sent in lane:
            seen = numbers.get((sent.id, entity), set())
            is_away = sent.id in record.away
            is_sure = record.outcome(sent.id) is Outcome.OK and not record.doubtful(sent.id) and len(seen) == 1
            if not is_sure or sent.is_scheduled or (is_away and not in_order):
                continue
            [number] = seen
            if number < last[is_away]:
                found.findings["disordered"].append((sent.id, entity))
            last[is_away] = max(last[is_away], number)
