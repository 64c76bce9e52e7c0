"""The rules of one subscription: which copies a message gets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp import types
from pairbus.amqp.message import Message
from pairbus.amqp.types import Int, Symbol, Timestamp, ULong
from pairbus.filters import (
    Copy,
    CorrelationFilter,
    FalseFilter,
    Filter,
    FilterEvaluationError,
    FilterSyntaxError,
    MessageView,
    Rules,
    SqlAction,
    SqlFilter,
    TrueFilter,
    compile_filter,
    correlation,
    view,
)
from pairbus.filters.operators import equal
from pairbus.filters.rules import CompiledRule
from tests.broker.filters.world import view_of

RED = SqlFilter("color = 'red'")
TAG = SqlAction("SET tag = 1")
MESSAGE = view_of({"color": "red", "n": Int(1)}, subject="label")


def named(copies: list[Copy]) -> list[tuple[str, bool]]:
    return [(copy.rule, copy.changed is not None) for copy in copies]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], []),
        ([("$Default", TrueFilter(), None)], [("$Default", False)]),
        ([("$Default", FalseFilter(), None)], []),
        ([("a", RED, None)], [("a", False)]),
        ([("a", SqlFilter("color = 'blue'"), None)], []),
        ([("a", SqlFilter("missing = 1"), None)], []),
        ([("a", RED, None), ("b", RED, None), ("c", TrueFilter(), None)], [("c", False)]),
        ([("a", FalseFilter(), None), ("b", RED, None), ("c", RED, None)], [("b", False)]),
        ([("a", RED, TAG)], [("a", True)]),
        ([("a", FalseFilter(), TAG)], []),
        ([("a", RED, TAG), ("b", TrueFilter(), TAG)], [("a", True), ("b", True)]),
        (
            [("a", RED, TAG), ("b", RED, None), ("c", RED, None), ("d", TrueFilter(), None), ("e", RED, TAG)],
            [("d", False), ("a", True), ("e", True)],
        ),
    ],
)
def test_plain_rules_share_a_copy_and_actions_have_their_own(
    rules: list[tuple[str, Filter, SqlAction | None]], expected: list[tuple[str, bool]]
) -> None:
    """Two rules with actions and three without that all match: three messages, as Azure documents."""
    assert named(Rules(rules).evaluate(MESSAGE)) == expected


CONDITIONS = ["", " AND n > 0", " AND 1 / n = 1", " AND missing = 1", " AND color LIKE 'r%'", " OR n = 1"]
TEXTS = ["color = 'red'", "color = 'blue'", "'red' = COLOR", "color = '1'", "color = 1", "n = 'red'"]


@given(
    st.lists(st.tuples(st.sampled_from(TEXTS), st.sampled_from(CONDITIONS)), min_size=1, max_size=6),
    st.sampled_from(["red", "blue", "green", "1", 1, None, True, b"red"]),
    st.integers(0, 2),
)
def test_rules_found_by_a_text_give_what_each_rule_alone_gives(
    texts: list[tuple[str, str]], color: object, n: int
) -> None:
    """The same copy, made by the same rule, or the same error of the same rule."""
    rules = [(str(place), SqlFilter("".join(text)), None) for place, text in enumerate(texts)]
    message = view_of({"n": Int(n)} if color is None else {"color": color, "n": Int(n)})

    def evaluated(rules: list[tuple[str, SqlFilter, None]]) -> list[tuple[str, bool]] | str:
        try:
            return named(Rules(rules).evaluate(message))
        except FilterEvaluationError as error:
            return str(error)

    alone = [evaluated([rule]) for rule in rules]
    assert evaluated(rules) == next((each for each in alone if each), [])


def test_action_changes_its_own_copy_only() -> None:
    """Every action begins with the message as it was published."""
    rules = Rules([("a", RED, SqlAction("SET n = n + 1")), ("b", RED, SqlAction("SET n = n + 10"))])
    found = [copy.changed for copy in rules.evaluate(MESSAGE)]
    properties = [Message.decode(changed.body).application_properties for changed in found if changed]
    assert properties == [
        {"color": "red", "n": 2, "RuleName": "a"},
        {"color": "red", "n": 11, "RuleName": "b"},
    ]


@pytest.mark.parametrize(
    "rules",
    [
        [("good", RED, TAG), ("bad", SqlFilter("1/0 = 1"), None)],
        [("good", RED, TAG), ("bad", SqlFilter("sys.Nonsense = 1"), TAG)],
        [("good", RED, None), ("bad", RED, SqlAction("SET a = 1/0"))],
    ],
)
def test_failing_rule_is_named(rules: list[tuple[str, Filter, SqlAction | None]]) -> None:
    """The dead letter says which rule of the subscription has to be mended."""
    with pytest.raises(FilterEvaluationError, match=r"^rule 'bad': ") as caught:
        Rules(rules).evaluate(MESSAGE)
    assert caught.value.rule == "bad"


def test_wrong_rule_is_refused_when_it_is_created() -> None:
    with pytest.raises(FilterSyntaxError, match="column 4"):
        Rules([("a", SqlFilter("a ="), None)])
    with pytest.raises(FilterSyntaxError, match="column 1"):
        Rules([("a", TrueFilter(), SqlAction("nonsense"))])


def test_properties_are_decoded_once_for_all_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fan-out to many subscriptions would otherwise cost a decoding for each."""
    decoded = []

    def counting(buf: bytes, at: int = 0) -> Any:
        decoded.append(at)
        return types.decode(buf, at)

    monkeypatch.setattr(view, "decode", counting)
    message = view_of({"color": "red"}, subject="x")
    Rules([("a", TrueFilter(), None)]).evaluate(message)
    assert decoded == []
    for _ in range(10):
        Rules([("a", SqlFilter("color = 'blue'"), None), ("b", RED, None)]).evaluate(message)
    assert len(decoded) == 1
    for _ in range(10):
        Rules([("a", SqlFilter("sys.Label = 'x' AND color = 'red'"), TAG)]).evaluate(message)
    assert len(decoded) == 2


@pytest.mark.parametrize(
    ("described", "selected"),
    [
        (CorrelationFilter(), True),
        (CorrelationFilter(label="label"), True),
        (CorrelationFilter(label="Label"), False),
        (CorrelationFilter(correlation_id="c"), True),
        (CorrelationFilter(message_id="m1", to="t", reply_to="r", label="label"), True),
        (CorrelationFilter(session_id="s", reply_to_session_id="rs", content_type="ct"), True),
        (CorrelationFilter(message_id="m1", to="other"), False),
        (CorrelationFilter(properties={"n": 1}), True),
        (CorrelationFilter(properties={"N": 1.0}), True),
        (CorrelationFilter(properties={"n": Int(1), "u": 1}), True),
        (CorrelationFilter(properties={"n": "1"}), False),
        (CorrelationFilter(properties={"n": True}), False),
        (CorrelationFilter(properties={"missing": "x"}), False),
        (CorrelationFilter(label="label", properties={"color": "red"}), True),
        (CorrelationFilter(label="label", properties={"color": "RED"}), False),
        (CorrelationFilter(properties={"flag": True, "when": Timestamp(5), "id": UUID(int=1)}), True),
        (CorrelationFilter(properties={"raw": b"x"}), True),
        (CorrelationFilter(properties={"raw": timedelta(1)}), False),
    ],
)
def test_correlation_filter_needs_all_its_values(described: CorrelationFilter, selected: bool) -> None:
    message = view_of(
        {
            "color": "red",
            "n": Int(1),
            "u": ULong(1),
            "flag": True,
            "when": Timestamp(5),
            "id": UUID(int=1),
            "raw": b"x",
        },
        subject="label",
        correlation_id="c",
        to="t",
        reply_to="r",
        group_id="s",
        reply_to_group_id="rs",
        content_type="ct",
    )
    assert (compile_filter(described)(message) is True) is selected


@pytest.mark.parametrize(
    "body", [b"nonsense", b"\x00\x53\x74\x40", b"\x00\x53\x74\xc1\x03\x02\xa1\xff", b"\x00\x53\x73"]
)
def test_unreadable_message_is_an_evaluation_error(body: bytes) -> None:
    """Stored messages were checked when they came; a damaged one must not break the topic."""
    rules = Rules([("a", SqlFilter("a = 1 OR sys.Label = 'x'"), None)])
    with pytest.raises(FilterEvaluationError, match="rule 'a'"):
        rules.evaluate(MessageView(body))


def test_repr_names_the_rules() -> None:
    assert repr(Rules([("b", RED, TAG), ("a", RED, None)])) == "<Rules a b>"


def test_unexpected_failure_of_a_rule_is_its_evaluation_error(caplog: pytest.LogCaptureFixture) -> None:
    """No message can break the broker by its content: a bug here fails one rule, and is logged once for each rule."""

    def broken(view: MessageView) -> bool:
        raise ZeroDivisionError("bug")

    rules = Rules.of([CompiledRule("bad", broken, None, takes_all=False)])
    for _ in range(3):
        with pytest.raises(FilterEvaluationError, match="rule 'bad': unexpected ZeroDivisionError: bug"):
            rules.evaluate(MESSAGE)
    [record] = caplog.records
    assert "rule 'bad' failed unexpectedly" in record.getMessage() and record.exc_info is not None


CORRELATIONS = [
    CorrelationFilter(correlation_id="red"),
    CorrelationFilter(correlation_id="blue"),
    CorrelationFilter(label="red", properties={"color": "red"}),
    CorrelationFilter(properties={"COLOR": "red", "n": 1}),
    CorrelationFilter(properties={"color": "blue"}),
    CorrelationFilter(properties={"color": "red"}),
    CorrelationFilter(properties={"n": 1}),
    SqlFilter("1 / n = 1"),
    SqlFilter("color = 'red'"),
    FalseFilter(),
]


@given(
    st.lists(st.tuples(st.sampled_from(CORRELATIONS), st.booleans()), min_size=1, max_size=20),
    st.sampled_from(["red", "blue", "green", "1", 1, None, True, b"red", Symbol("red"), [1]]),
    st.integers(0, 2),
    st.sampled_from([None, "red", "blue"]),
)
def test_rules_found_by_their_texts_give_what_each_rule_alone_gives(
    filters: list[tuple[Filter, bool]], color: object, n: int, correlation_id: str | None
) -> None:
    """The same copies, made by the same rules in the same order, or the same error of the same rule."""
    rules = [
        (str(place), each, SqlAction("SET seen = 1") if acts else None) for place, (each, acts) in enumerate(filters)
    ]
    user = {"n": Int(n)} if color is None else {"color": color, "n": Int(n)}
    message = view_of(user, correlation_id=correlation_id, subject=correlation_id)

    def evaluated(rules: list[tuple[str, Filter, SqlAction | None]]) -> list[tuple[str, bool]] | str:
        try:
            return named(Rules(rules).evaluate(message))
        except FilterEvaluationError as error:
            return str(error)

    alone = [evaluated([rule]) for rule in rules]
    plain = next((each for each, rule in zip(alone, rules, strict=True) if each and rule[2] is None), [])
    acting = [each for each, rule in zip(alone, rules, strict=True) if each and rule[2] is not None]
    failed = next((each for each in [plain, *acting] if isinstance(each, str)), None)
    assert evaluated(rules) == (failed or [*plain, *(copy for each in acting for copy in each)])


@pytest.mark.parametrize("action", [None, SqlAction("SET seen = 1")])
def test_correlation_filters_are_not_tried_one_by_one(
    monkeypatch: pytest.MonkeyPatch, action: SqlAction | None
) -> None:
    """A topic may have 100 000 of them."""
    tried = 0

    def counted(value: object, wanted: object) -> bool | None:
        nonlocal tried
        tried += 1
        return equal(value, wanted)

    monkeypatch.setattr(correlation, "equal", counted)
    rules = [(str(n), CorrelationFilter(properties={"color": f"{n}"}), action) for n in range(2000)]
    found = Rules(rules).evaluate(view_of({"color": "1234"}))
    assert [copy.rule for copy in found] == ["1234"]
    assert tried == 1
