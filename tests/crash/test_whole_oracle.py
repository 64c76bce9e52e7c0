"""The oracle of the whole namespace finds every kind of fault, and none where there is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pairbus.amqp.message import Message
from tests.crash.whole_oracle import Oracle
from tests.crash.whole_world import (
    ALL,
    CASES,
    CHANGED,
    EVEN,
    GRAVEYARD,
    MORTAL,
    RULED,
    TOPIC,
    Made,
    Seen,
    content_of,
    make,
)

Act = Callable[[Oracle, Made], None]


def seen_at(made: Made, sink: str, variant: str = "", number: int = 1) -> Seen:
    content = made.content if sink == RULED else made.copies[sink, variant]
    return Seen(made.id, variant, number, content, made.session, 0)


def send(oracle: Oracle, message_id: str = "1", *, is_accepted: bool = True) -> Made:
    made = make(message_id, TOPIC, "s", random.Random(5))
    oracle.sent(oracle.trying(made), is_accepted=is_accepted)
    return made


def drain(oracle: Oracle, made: Made, number: int = 1, *, without: str = "") -> None:
    for sink, variant in made.copies:
        if sink != without:
            copy = seen_at(made, sink, variant, number + len(variant) * 100 + (variant == "two") * 1000)
            oracle.drained(sink, sink, copy)


def lose(oracle: Oracle, made: Made) -> None:
    told, _ = oracle.saw(ALL, ALL, seen_at(made, ALL))
    told.drained.clear()
    drain(oracle, made, without=ALL)


def miss(oracle: Oracle, made: Made) -> None:
    drain(oracle, made, without=CASES)


def double(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.drained(ALL, ALL, seen_at(made, ALL, number=2))


def forward_and_keep(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.drained(CHANGED, GRAVEYARD, seen_at(made, CHANGED, "one"))


def bring_back(oracle: Oracle, made: Made) -> None:
    told, copy = oracle.saw(MORTAL, MORTAL, seen_at(made, MORTAL))
    told.passed.add(copy)
    drain(oracle, made)


def complete_and_bring_back(oracle: Oracle, made: Made) -> None:
    told, copy = oracle.saw(ALL, ALL, seen_at(made, ALL))
    told.completed.add(copy)
    drain(oracle, made)


def invent(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.drained(ALL, ALL, replace(seen_at(made, ALL), id="invented", number=9))


def change_content(oracle: Oracle, made: Made) -> None:
    drain(oracle, made, without=ALL)
    changed = content_of(Message.decode(made.payload), {"text": "other"})
    oracle.drained(ALL, ALL, replace(seen_at(made, ALL), content=changed))


def repeat_a_number(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    drain(oracle, send(oracle, "2"))


def disorder(oracle: Oracle, made: Made) -> None:
    drain(oracle, made, 2)
    drain(oracle, send(oracle, "2"), 1)


def select_without_rule(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.drained(RULED, RULED, seen_at(made, RULED))


def forget_a_rule(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.rules.change(made.colour)
    oracle.rules.changed(made.colour, True)
    oracle.wrong += oracle.rules.found(made.colour, False)


def miss_what_a_rule_selects(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.rules.changed(made.colour, True)
    drain(oracle, send(oracle, "2"), 2)


def forget_a_state(oracle: Oracle, made: Made) -> None:
    drain(oracle, made)
    oracle.states[CASES, "s"] = {b"new", b"tried"}
    oracle.state_found(CASES, "s", None)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lose, "is lost"),
        (miss, f"never came to ('{CASES}', '')"),
        (double, "it was there twice"),
        (forward_and_keep, "was there 2 times"),
        (bring_back, "again after it was dead-lettered"),
        (complete_and_bring_back, "again after it was completed"),
        (invent, "nobody sent invented"),
        (change_content, "with another content"),
        (repeat_a_number, "was given to two messages"),
        (disorder, f"s of {CASES} is out of order"),
        (select_without_rule, f"came to {RULED}, where it does not belong"),
        (forget_a_rule, "is gone after a kill"),
        (miss_what_a_rule_selects, f"2 never came to ('{RULED}', '')"),
        (forget_a_state, "the state of s"),
    ],
)
def test_a_fault_that_is_planted_is_found(act: Act, says: str) -> None:
    """An oracle that never complains proves nothing."""
    oracle = Oracle()
    act(oracle, send(oracle))
    assert any(says in fault for fault in oracle.faults()), oracle.faults()


def test_faultless_lives_have_no_fault() -> None:
    """Doubtful sends, completions without an answer, rules and states that were being changed: both ends are right."""
    oracle = Oracle()
    drain(oracle, send(oracle))
    send(oracle, "2", is_accepted=False)
    drain(oracle, send(oracle, "3", is_accepted=False), 3)
    made = send(oracle, "4")
    told, copy = oracle.saw(ALL, ALL, seen_at(made, ALL, number=4))
    told.maybe_completed.add(copy)
    drain(oracle, made, 4, without=ALL)
    oracle.rules.change(made.colour)
    drain(oracle, send(oracle, "5"), 5)
    assert oracle.rules.found(made.colour, True) == []
    made = send(oracle, "6")
    drain(oracle, made, 6)
    oracle.drained(RULED, RULED, seen_at(made, RULED, number=6))
    oracle.states[CASES, "s"] = {b"new", b"tried"}
    oracle.state_found(CASES, "s", b"tried")
    assert oracle.faults() == []
    assert (EVEN, "") in made.copies and (CHANGED, "one") in made.copies, "this seed selects an even number"
