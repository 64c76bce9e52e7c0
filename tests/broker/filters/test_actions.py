"""SQL actions: changed properties, conversions, and all other fields left unchanged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import (
    Byte,
    Char,
    Described,
    Float,
    Int,
    Long,
    Symbol,
    Timestamp,
    UByte,
    ULong,
    decode,
    encode_pairs,
    map_of,
)
from pairbus.filters import (
    Changed,
    FilterEvaluationError,
    MessageView,
    SqlAction,
    Value,
    apply,
    compile_action,
)
from pairbus.filters.actions import SETTABLE
from tests.broker.filters.reference import EXPRESSIONS, MESSAGES, VALUES, render
from tests.broker.filters.world import view_of

SPAN = Described(Symbol("com.microsoft:timespan"), Long(50_000_000))
GUID = UUID(int=7)


def run(text: str, view: MessageView, parameters: dict[str, Value] | None = None, rule: str = "") -> Changed:
    return apply(compile_action(SqlAction(text, parameters or {})), view, rule)


def user_of(changed: Changed) -> dict[Any, Any]:
    return Message.decode(changed.body).application_properties or {}


def properties_of(changed: Changed) -> Properties:
    found = Message.decode(changed.body).properties
    assert found is not None
    return found


def annotations_of(changed: Changed) -> Any:
    return decode(map_of(changed.annotations, 2))[0] if changed.annotations else {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SET new = 1", {"a": Int(1), "B": "x", "new": 1}),
        ("SET user.new = 'y'", {"a": Int(1), "B": "x", "new": "y"}),
        ("SET [New One] = TRUE;", {"a": Int(1), "B": "x", "New One": True}),
        ("SET b = 'z'", {"a": Int(1), "B": "z"}),
        ("REMOVE b", {"a": Int(1)}),
        ("REMOVE missing", {"a": Int(1), "B": "x"}),
        ("REMOVE a; REMOVE b", {}),
        ("SET c = a + 1; SET d = c * 2", {"a": Int(1), "B": "x", "c": 2, "d": 4}),
        ("SET c = 1 SET d = 2 REMOVE a", {"B": "x", "c": 1, "d": 2}),
        ("SET c = 1, REMOVE a,", {"B": "x", "c": 1}),
        ("REMOVE a; SET c = a", {"B": "x", "c": None}),
        ("SET a = NULL", {"a": None, "B": "x"}),
        ("SET c = B + '/' + sys.Label", {"a": Int(1), "B": "x", "c": "x/label"}),
        ("SET c = property('b')", {"a": Int(1), "B": "x", "c": "x"}),
        ("SET set = 1", {"a": Int(1), "B": "x", "set": 1}),
    ],
)
def test_statements_change_application_properties(text: str, expected: dict[str, Any]) -> None:
    assert user_of(run(text, view_of({"a": Int(1), "B": "x"}, subject="label"))) == expected


@pytest.mark.parametrize(
    ("existing", "text", "expected"),
    [
        (Int(1), "7", Int(7)),
        (Int(1), "'7'", Int(7)),
        (Int(1), "7.0", Int(7)),
        (Int(1), "7.5", 7.5),
        (Int(1), "3000000000", 3_000_000_000),
        (Int(1), "'x'", "x"),
        (Byte(1), "-128", Byte(-128)),
        (UByte(1), "-1", -1),
        (ULong(1), "'18446744073709551615'", ULong(2**64 - 1)),
        (Long(1), "TRUE", True),
        (1.5, "2", 2.0),
        (1.5, "'2.5E1'", 25.0),
        (1.5, "'two'", "two"),
        (Float(1.5), "0.5", Float(0.5)),
        (Float(1.5), "1E300", 1e300),
        ("text", "5", "5"),
        ("text", "2.5", "2.5"),
        ("text", "FALSE", "False"),
        (Symbol("text"), "'x'", Symbol("x")),
        (Symbol("text"), "'ö'", "ö"),
        (Char("c"), "'x'", "x"),
        (True, "'FALSE'", False),
        (True, "0", 0),
        (GUID, "'00000000-0000-0000-0000-000000000008'", UUID(int=8)),
        (GUID, "'none'", "none"),
        (Timestamp(1), "'1970-01-02'", Timestamp(86_400_000)),
        (Timestamp(1), "'2000-02-29T12:30:15.25Z'", Timestamp(951_827_415_250)),
        (Timestamp(1), "'2026-03-01 00:00:00+02:00'", Timestamp(1_772_316_000_000)),
        (Timestamp(1), "'1970-01-01T00:00-02:30'", Timestamp(9_000_000)),
        (Timestamp(1), "'2023-02-29'", "2023-02-29"),
        (SPAN, "'1.02:03:04.5'", Described(Symbol("com.microsoft:timespan"), Long(937_845_000_000))),
        (SPAN, "'-00:00:01'", Described(Symbol("com.microsoft:timespan"), Long(-10_000_000))),
        (SPAN, "'later'", "later"),
        (None, "5", 5),
        ([1], "5", 5),
        (Described(Symbol("com.microsoft:uri"), "a"), "'10:30'", "10:30"),
    ],
)
def test_new_value_takes_the_existing_type_where_possible(existing: Any, text: str, expected: Any) -> None:
    """Receivers keep reading the type that they know; a value that cannot be converted is stored unchanged."""
    found = user_of(run(f"SET a = {text}", view_of({"a": existing})))["a"]
    assert found == expected
    # an expected value of type int stands for a long literal, which is a long on the wire
    assert type(found) is (Long if type(expected) is int else type(expected))


@pytest.mark.parametrize(
    "value", ["x", Int(1), Long(2), 2.5, True, Timestamp(5), timedelta(seconds=5), GUID, b"raw"], ids=repr
)
def test_parameters_of_every_type_can_be_stored(value: Value) -> None:
    expected = SPAN if isinstance(value, timedelta) else value
    found = user_of(run("SET a = @p", view_of({}), {"@p": value}))["a"]
    assert found == expected and type(found) is type(expected)


def test_new_id_is_a_guid() -> None:
    assert isinstance(user_of(run("SET id = newid()", view_of({})))["id"], UUID)


def test_fields_of_the_properties_section_are_set() -> None:
    """The action sets all settable system properties, also those that are stored in another section."""
    text = (
        "SET sys.MessageId = 'id'; SET sys.To = 't'; SET sys.Label = 'l'; SET sys.ReplyTo = 'r'; "
        "SET sys.CorrelationId = 5; SET sys.ContentType = 'text/html'; SET sys.SessionId = 's'; "
        "SET sys.ReplyToSessionId = 'rs'; SET sys.PartitionKey = 'pk'; SET sys.ViaPartitionKey = 'via'; "
        "SET sys.TimeToLive = '00:00:10'; SET sys.ScheduledEnqueueTimeUtc = '1970-01-01T00:01:00Z'"
    )
    changed = run(text, view_of({"a": 1}, {Symbol("x-other"): 1}, user_id=b"u"))
    assert properties_of(changed) == Properties(
        message_id="id", user_id=b"u", to="t", subject="l", reply_to="r", correlation_id="5",
        content_type="text/html", group_id="s", reply_to_group_id="rs",
    )  # fmt: skip
    assert changed.message_id == "id" and changed.session_id == "s" and changed.partition_key == "pk"
    assert changed.ttl_ms == 10_000 and changed.scheduled_ms == 60_000
    view = MessageView(changed.body, changed.annotations)
    assert view.annotation_pairs() == {
        "x-other": 1,
        "x-opt-partition-key": "pk",
        "x-opt-via-partition-key": "via",
        "x-opt-scheduled-enqueue-time": Timestamp(60_000),
    }


def test_system_properties_are_removed() -> None:
    view = view_of(
        {"a": 1},
        {Symbol("x-opt-partition-key"): "pk", Symbol("x-opt-scheduled-enqueue-time"): Timestamp(9)},
        subject="l",
        group_id="s",
        known={"ttl_ms": 5, "scheduled_ms": 9},
    )
    changed = run(
        "REMOVE sys.Subject REMOVE sys.SessionId REMOVE sys.PartitionKey REMOVE sys.TimeToLive "
        "REMOVE sys.ScheduledEnqueueTimeUtc",
        view,
    )
    assert properties_of(changed) == Properties(message_id="m1")
    assert changed == Changed(changed.body, b"", "m1", None, None, None, 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SET sys.MessageId = NULL", "sys.MessageId cannot be empty"),
        ("SET sys.MessageId = ''", "sys.MessageId cannot be empty"),
        ("SET sys.SessionId = p('long')", "sys.SessionId takes 128 characters, not 129"),
        ("SET sys.ContentType = 'ö'", "sys.ContentType takes ASCII text, not 'ö'"),
        ("SET sys.Label = p('raw')", "sys.Label takes text, not b'raw'"),
        ("SET sys.TimeToLive = 5", "sys.TimeToLive takes a positive duration, not 5"),
        ("SET sys.TimeToLive = '00:00:00'", "sys.TimeToLive takes a positive duration"),
        ("SET sys.ScheduledEnqueueTimeUtc = 'soon'", "sys.ScheduledEnqueueTimeUtc takes a date from 1970 to 9999"),
        ("SET a = p('far') + p('far')", "overflow: no property holds a duration of 21350398 days"),
        ("SET a = 1 / 0", "division by zero"),
        ("SET a = sys.Nonsense", "the system property sys.Nonsense does not exist"),
    ],
)
def test_value_that_cannot_be_set_is_an_evaluation_error(text: str, problem: str) -> None:
    with pytest.raises(FilterEvaluationError) as caught:
        run(text, view_of({"long": "x" * 129, "raw": b"raw", "far": Described(SPAN.descriptor, Long(2**63 - 1))}))
    assert problem in str(caught.value)


def test_published_message_is_not_changed() -> None:
    """One view serves all subscriptions: an action must not leak into the next one."""
    view = view_of({"a": 1}, {Symbol("k"): 1}, subject="l")
    run("SET a = 2; SET sys.Label = 'x'; SET sys.PartitionKey = 'p'; REMOVE a; SET sys.TimeToLive = '00:00:01'", view)
    assert (view.load_user(), view.text(3), view.annotation_pairs(), view.ttl_ms) == ({"a": 1}, "l", {"k": 1}, None)


def test_message_without_sections_gets_them() -> None:
    body = Message(data=[b"x"]).encode()
    changed = run("SET a = 1; SET sys.Label = 'l'", MessageView(body))
    assert changed.body.endswith(body)
    assert properties_of(changed).subject == "l" and user_of(changed) == {"a": 1}


def test_rule_name_is_an_application_property_of_the_copy() -> None:
    assert user_of(run("SET sys.Label = 'l'", view_of(None), rule="red")) == {"RuleName": "red"}


ENDS = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(lambda data: Message(data=data)),
    VALUES.map(lambda value: Message(value=value, has_value=True)),
    st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=2).map(lambda lists: Message(sequences=lists)),
    st.just(Message(data=[b"x"], footer={Symbol("f"): 1})),
    st.just(Message()),
).map(Message.encode)


@settings(max_examples=300, deadline=None)
@given(end=ENDS, user=st.dictionaries(st.text(max_size=8), VALUES, max_size=5), wide=st.booleans())
def test_body_stays_byte_for_byte_and_types_stay(end: bytes, user: dict[str, Any], wide: bool) -> None:
    """A signature over the body must be valid in every copy, for any body."""
    if wide:  # a four-byte length, where our encoder would write one byte
        end = b"\x00\x53\x75\xb0\x00\x00\x00\x03abc"
    head = Message(properties=Properties(message_id="m", group_sequence=3), application_properties=user).encode()
    changed = run("SET [added] = 1; SET sys.Label = 'l'", MessageView(head + end, encode_pairs({Symbol("k"): 1})))
    user = {key: value for key, value in user.items() if key.lower() != "added"}
    expected = {**user, "added": Long(1)}
    again = Message(
        properties=Properties(message_id="m", subject="l", group_sequence=3), application_properties=expected
    ).encode()
    assert changed.body == again + end
    assert annotations_of(changed) == {"k": 1}


TARGETS = st.sampled_from(["alpha", "beta", "new"]) | st.sampled_from(SETTABLE).map("sys.{}".format)
STATEMENTS = st.tuples(TARGETS, EXPRESSIONS).map(lambda row: f"SET {row[0]} = {render(row[1])}") | st.sampled_from(
    ["REMOVE alpha", "REMOVE Beta", "REMOVE sys.Label", "REMOVE sys.PartitionKey"]
)


@settings(max_examples=300, deadline=None)
@given(texts=st.lists(STATEMENTS, min_size=1, max_size=4), user=MESSAGES)
def test_any_action_on_any_message_is_applied_or_an_evaluation_error(texts: list[str], user: dict[str, Any]) -> None:
    """Every value that an expression can have is stored, or refused for this message with a reason."""
    text = "; ".join(texts)
    assume(len(text) <= 1024)
    view = view_of(user, subject="label", known={"seq": 7})
    try:
        changed = run(text, view, rule="r")
    except FilterEvaluationError:
        return
    assert user_of(changed)["RuleName"] == "r"
    assert changed.message_id == MessageView(changed.body).text(0)
    assert changed.body.endswith(b"\x00\x53\x75\xa0\x04body")
