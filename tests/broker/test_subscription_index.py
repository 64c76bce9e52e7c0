"""The subscriptions of a topic that may select a message, found by the texts that their rules ask for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, section
from pairbus.amqp.types import Int, encode, encode_string, list_of
from pairbus.broker.description import RuleDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.publication import outcomes_of
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.filters import CorrelationFilter, FalseFilter, Filter, MessageView, Rules, SqlAction, TrueFilter
from tests.broker.queue_world import Answer
from tests.broker.topic_world import TopicWorld, bare_message, draft, sql

MANY = 2000


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[Rules]:
    """Count the evaluations of a subscription's rules."""
    evaluated: list[Rules] = []
    evaluate = Rules.evaluate

    def counting(rules: Rules, view: MessageView) -> list[Any]:
        evaluated.append(rules)
        return evaluate(rules, view)

    monkeypatch.setattr(Rules, "evaluate", counting)
    return evaluated


def test_one_correlation_filter_in_each_of_many_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the message names the one subscription; the other 1 999 are not asked."""
    names = [f"s{number}" for number in range(MANY)]
    world = TopicWorld(
        {name: {} for name in names}, {name: [(CorrelationFilter(correlation_id=name), None)] for name in names}
    )
    for name in names[:2]:
        world[name].put_rule(Rule(0, RuleDescription("prices", name, "more", CorrelationFilter(label="all"), None)))
    evaluated = _counted(monkeypatch)
    world.send(*(_message(correlation_id=name) for name in names[-3:]))
    assert [world[name].active_count for name in names[-4:]] == [0, 1, 1, 1]
    assert len(evaluated) == 3
    world.send(_message(label="all"))
    assert len(evaluated) == 5


def test_a_subscription_that_cannot_be_found_by_a_text_is_always_asked() -> None:
    world = TopicWorld(
        {"true": {}, "sql": {}, "number": {}, "text": {}, "none": {}},
        {
            "sql": [(CorrelationFilter(label="x"), None), (sql("n = 1"), None)],
            "number": [(CorrelationFilter(properties={"n": 1}), None)],
            "text": [(CorrelationFilter(label="x"), None)],
            "none": [],
        },
    )
    world.send(draft("1", n=Int(1)), _message(label="x"))
    counts = {name: world[name].active_count for name in ("true", "sql", "number", "text", "none")}
    assert counts == {"true": 2, "sql": 2, "number": 1, "text": 1, "none": 0}


def test_a_subscription_that_is_deleted_or_replaced_leaves_nothing_in_the_index() -> None:
    world = TopicWorld({"a": {}, "b": {}}, {name: [(CorrelationFilter(label="x"), None)] for name in ("a", "b")})
    world.send(_message(label="x"))
    first = world["a"]
    world.topic.index.add(first)
    world.topic.index.drop("b")
    world.send(_message(label="x"))
    assert first.active_count == 2
    world.topic.index.drop("a")
    first.put_rule(Rule(0, RuleDescription("prices", "a", "late", TrueFilter(), None)))
    world.send(_message(label="x"))
    index = world.topic.index
    assert (first.active_count, len(index._tables), index._indexed, index._changed) == (2, 0, {}, {})


@pytest.mark.parametrize("dead_letters", [True, False])
def test_a_message_that_cannot_be_read_fails_the_rules_of_every_subscription(dead_letters: bool) -> None:
    """As where each is asked: the settings of the subscription say what becomes of it."""
    world = TopicWorld(
        {name: {"dead_letter_on_filter_error": dead_letters} for name in ("a", "b")},
        {name: [(CorrelationFilter(properties={"colour": name}), None)] for name in ("a", "b")},
    )
    broken = section(APPLICATION_PROPERTIES, encode([1]))
    answer = Answer()
    world.topic.send([Draft(broken + bare_message("1")[-6:], message_id="1")], world.now, answer)
    world.store.commit()
    assert [world[name].dead_count for name in ("a", "b")] == ([1, 1] if dead_letters else [0, 0])


TEXTS = st.sampled_from(["red", "blue", ""])
VALUES = st.one_of(TEXTS, st.sampled_from([1, 2.0, True]))
CORRELATIONS = st.builds(
    CorrelationFilter,
    label=st.none() | TEXTS,
    correlation_id=st.none() | TEXTS,
    properties=st.dictionaries(st.sampled_from(["colour", "Colour", "size"]), VALUES, max_size=2),
).filter(lambda described: described != CorrelationFilter())
FILTERS: st.SearchStrategy[Filter] = st.one_of(
    CORRELATIONS,
    CORRELATIONS,
    st.sampled_from([TrueFilter(), FalseFilter(), sql("colour = 'red'"), sql("1 / size = 1")]),
)
ACTIONS = st.sampled_from([None, None, SqlAction("SET seen = 1"), SqlAction("SET seen = 1 / size")])
RULES = st.tuples(FILTERS, ACTIONS)
OWN = st.dictionaries(st.sampled_from(["colour", "size"]), VALUES | st.just(b"red"), max_size=2)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.tuples(st.none() | TEXTS, st.none() | TEXTS, OWN)),
    st.tuples(st.just("put"), st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), RULES)),
    st.tuples(st.just("drop"), st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"))),
)


@given(st.lists(STEPS, min_size=1, max_size=25))
@settings(max_examples=150)
def test_candidates_give_what_asking_every_subscription_gives(steps: list[tuple[str, Any]]) -> None:
    """The same copies for the same subscriptions in the same order, while rules come, change and go."""
    world = TopicWorld({name: {"dead_letter_on_filter_error": name != "b"} for name in "abc"}, {"a": [], "b": []})
    for verb, subject in steps:
        if verb == "put":
            name, rule, (described, action) = subject
            world[name].put_rule(Rule(0, RuleDescription("prices", name, rule, described, action)))
        elif verb == "drop":
            name, rule = subject
            if rule in world[name].rules:
                world[name].drop_rule(rule)
        else:
            label, correlation_id, properties = subject
            sent = _message(label=label, correlation_id=correlation_id, **properties)
            view = MessageView(sent.body, sent.annotations, enqueued_ms=world.now, seq=1)
            assert _outcomes(world.topic.index.candidates(view), view) == _outcomes(
                world.topic.subscriptions.values(), view
            )


def _outcomes(subscriptions: Any, view: MessageView) -> list[tuple[str, Any, bytes]]:
    asked: list[Subscription] = list(subscriptions)
    return [(each.path, copy.changed, copy.patch) for each in asked for copy in outcomes_of(each, view, "")]


def _message(label: str | None = None, correlation_id: str | None = None, **properties: object) -> Draft:
    texts = [encode(None) if text is None else encode_string(text) for text in (label, None, correlation_id)]
    head = section(PROPERTIES, list_of([encode_string("m"), encode(None), encode(None), *texts]))
    own = section(APPLICATION_PROPERTIES, encode(properties)) if properties else b""
    return Draft(head + own + bare_message("m")[-6:], message_id="m")
