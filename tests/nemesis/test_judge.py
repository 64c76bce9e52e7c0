"""The judge names each fault of a recorded round, and lets pass what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.nemesis.judge import Judgement, judge
from tests.nemesis.log import Log
from tests.nemesis.places import ALL, BILLS, DESK, EVEN, NEWS, ONCE, ORDERS
from tests.nemesis.record import Record, read_round

Line = list[Any]


def call(message_id: str = "a-1", entity: str = ORDERS, number: int = 2, session: str = "") -> Line:
    return ["call", 1.0, [[message_id, entity, number, session, "d", False]]]


def ended(outcome: str = "ok", message_id: str = "a-1") -> Line:
    return ["ended", outcome, [message_id]]


def got(number: int = 1, message_id: str = "a-1", sink: str = ORDERS, at: float = 2.0, digest: str = "d") -> Line:
    return ["got", at, sink, number, message_id, digest]


def done(number: int = 1, message_id: str = "a-1", sink: str = ORDERS, outcome: str = "ok", at: float = 3.0) -> Line:
    return ["done", at, sink, [[message_id, number]], outcome]


def taken(number: int = 1, message_id: str = "a-1", sink: str = ORDERS) -> list[Line]:
    return [got(number, message_id, sink), done(number, message_id, sink)]


def judged(*lines: Line, in_order: bool = False) -> Judgement:
    record = Record()
    record.add(lines)
    return judge(record, in_order=in_order)


DOUBT, AWAY = ["doubt", "the primary", ["a-1"]], ["away", "0", ["a-1"]]
MOVE, GONE, REFUSED = ["move", ["a-1"]], ["gone", ["a-1"]], ["refused", ["a-1"]]
TWICE = [*taken(1), *taken(2)]
SESSION = [call("a-1", DESK, 2, "s"), ended(), call("a-2", DESK, 2, "s"), ended(message_id="a-2")]
SWAPPED = [*taken(2, "a-1", DESK), *taken(1, "a-2", DESK)]
AWAY_BOTH = ["away", "0", ["a-1", "a-2"]]

GOOD: dict[str, list[Line]] = {
    "sent and taken": [call(), ended(), *taken()],
    "refused and nowhere": [call(), ended("failed")],
    "unknown and nowhere": [call(), DOUBT, ended("unknown")],
    "unknown and stored": [call(), DOUBT, ended("unknown"), *taken()],
    "its sender was killed": [call(), *taken()],
    "its receiver was killed while it completed": [call(), ended(), got(), ["trying", 2.5, ORDERS, [["a-1", 1]]]],
    "delivered again, since its completion was lost": [call(), ended(), got(), done(outcome="unknown"), got(at=4.0)],
    "delivered late by a process that was stopped": [call(), ended(), *taken(), got(at=2.5)],
    "stored twice after an attempt without an answer": [call(), DOUBT, ended(), *TWICE],
    "moved twice, since its completion was lost": [call(), AWAY, ended(), MOVE, MOVE, GONE, *TWICE],
    "moved after a refusal": [call(), AWAY, ended(), MOVE, REFUSED, MOVE, GONE, *taken()],
    "a copy for each subscription": [call(entity=NEWS), ended(), *taken(1, sink=ALL), *taken(1, sink=EVEN)],
    "not selected by the rule": [call(entity=NEWS, number=3), ended(), *taken(sink=ALL)],
    "in doubt, and out of order": [*SESSION, DOUBT, *SWAPPED],
    "diverted, and out of order": [*SESSION, AWAY_BOTH, *SWAPPED],
}

BAD: dict[str, tuple[str, list[Line]]] = {
    "gone": ("lost", [call(), ended()]),
    "gone before its receiver began to complete it": ("lost", [call(), ended(), got()]),
    "a subscription without its copy": ("lost", [call(entity=NEWS), ended(), *taken(sink=ALL)]),
    "completion refused, and gone": ("lost", [call(), ended(), got(), done(outcome="failed")]),
    "stored twice without a doubt": ("duplicated", [call(), ended(), *TWICE]),
    "moved once and stored twice": ("duplicated", [call(), AWAY, ended(), MOVE, GONE, *TWICE]),
    "stored twice where duplicates are detected": (
        "duplicated",
        [call(entity=ONCE), DOUBT, ended(), *taken(1, sink=ONCE), *taken(2, sink=ONCE)],
    ),
    "stored although it was refused": ("unexpected", [call(), ended("failed"), *taken()]),
    "stored although every attempt was refused": ("unexpected", [call(), ended("unknown"), *taken()]),
    "never sent": ("unexpected", taken()),
    "in another queue": ("misrouted", [call(), ended(), *taken(sink=BILLS)]),
    "with another content": ("altered", [call(), ended(), got(digest="e"), done()]),
    "there again after its completion": (
        "redelivered_after_complete",
        [call(), ended(), *taken(), got(at=4.0), done(at=5.0, outcome="failed")],
    ),
    "completed twice": ("settled_twice", [call(), ended(), *taken(), done(at=3.5)]),
    "sent directly, and out of order": ("disordered", [*SESSION, *SWAPPED]),
}


@pytest.mark.parametrize("lines", GOOD.values(), ids=GOOD.keys())
def test_what_is_allowed_is_no_finding(lines: list[Line]) -> None:
    found = judged(*lines)
    assert found.is_good, found.findings


@pytest.mark.parametrize(("finding", "lines"), BAD.values(), ids=BAD.keys())
def test_a_fault_is_named(finding: str, lines: list[Line]) -> None:
    """`lost` may come with `misrouted`: the message is not where it belongs."""
    names = {name for name, cases in judged(*lines).findings.items() if cases}
    assert finding in names and names <= {finding, "lost"}


def test_diverted_messages_are_in_order_where_it_is_promised() -> None:
    found = judged(*SESSION, AWAY_BOTH, *SWAPPED, in_order=True)
    assert found.findings["disordered"] == [("a-2", DESK)]


def test_a_torn_last_line_is_no_record(tmp_path: Path) -> None:
    """A process may be killed while it writes."""
    log = Log(tmp_path / "sync1.jsonl")
    log.add(tuple(call()), ("ok", ["a-1"], ""))
    with (tmp_path / "sync1.jsonl").open("a") as file:
        file.write('["call", 2.0, [["a-2"')
    record = read_round(tmp_path)
    assert list(record.sent) == ["a-1"] and record.outcomes["a-1"] == "ok"
