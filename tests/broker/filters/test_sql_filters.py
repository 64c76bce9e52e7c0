"""Every construct of SQL filters, as tables of expression and result on one message."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.types import Described, Float, Int, Long, Symbol, Timestamp, UInt, ULong
from pairbus.filters import FilterEvaluationError, Rules, SqlAction, TrueFilter
from tests.broker.filters.world import evaluate, view_of

GUID = UUID("0f8fad5b-d9cb-469f-a165-70867728950e")
USER = {
    "Color": "red",
    "quantity": Int(5),
    "big": Long(2**53 + 1),
    "unsigned": ULong(2**64 - 1),
    "price": 2.5,
    "weight": Float(0.5),
    "urgent": True,
    "nothing": None,
    "symbol": Symbol("red"),
    "when": Timestamp(1_000_000),
    "span": Described(Symbol("com.microsoft:timespan"), Long(50_000_000)),
    "offset": Described(Symbol("com.microsoft:datetime-offset"), Long(621_355_968_000_000_000 + 10_000_000_000)),
    "link": Described(Symbol("com.microsoft:uri"), "http://a/"),
    "guid": GUID,
    "raw": b"\x00\x01",
    "list": [1],
    "With Space": 1,
    "with]bracket": 1,
    'with"quote': 1,
    "größe": 3,
    "and": 1,
}
VIEW = view_of(
    USER,
    {Symbol("x-opt-partition-key"): "pk"},
    known={"seq": 9, "enqueued_ms": 1_000_000, "ttl_ms": 5_000, "delivery_count": 2, "scheduled_ms": 500},
    to="there",
    subject="bus stop",
    reply_to="here",
    correlation_id=GUID,
    content_type="text/plain",
    group_id="s1",
    reply_to_group_id="s2",
)
T, F, U = True, False, None

CASES: list[tuple[str, bool | None]] = [
    # comparison
    ("color = 'red'", T),
    ("color = 'Red'", F),
    ("color <> 'red'", F),
    ("color != 'blue'", T),
    ("color > 'blue'", T),
    ("color >= 'red'", T),
    ("color < 'blue'", F),
    ("color <= 'red'", T),
    ("'red' = color", T),
    ("'blue' < color", T),
    ("symbol = 'red'", T),
    ("symbol = color", T),
    ("quantity = 5", T),
    ("quantity = 5.0", T),
    ("4 < quantity", T),
    ("5 >= quantity", T),
    ("quantity > -1", T),
    ("price = 2.5", T),
    ("price > 2", T),
    ("weight = .5", T),
    ("1=1", T),
    ("1=0", F),
    ("1>1", F),
    ("'a' = 1", U),
    ("unsigned > 9223372036854775807", T),
    ("-9223372036854775808 < 0", T),
    ("big = 9007199254740993", T),
    ("big = 9007199254740992", F),
    ("big = 9007199254740992.0", T),  # compared with a double, an integer becomes a double, as in C#
    ("urgent = TRUE", T),
    ("urgent <> true", F),
    ("urgent > FALSE", U),  # booleans have no order
    ("guid = guid", T),
    ("guid > guid", U),
    ("raw = raw", T),
    ("when = offset", T),
    ("link = 'http://a/'", T),
    # incompatible types are unknown, not false
    ("color = 5", U),
    ("quantity = '5'", U),
    ("NOT (quantity = '5')", U),
    ("quantity <> 'x'", U),
    ("urgent = 1", U),
    ("list = list", U),
    # unknown and null
    ("missing = 1", U),
    ("missing <> 1", U),
    ("nothing = NULL", U),
    ("nothing = nothing", U),
    ("missing IS NULL", T),
    ("nothing IS NULL", T),
    ("missing IS NOT NULL", F),
    ("color IS NOT NULL", T),
    ("property('missing') IS NULL", T),
    ("EXISTS(color)", T),
    ("exists ( user.nothing )", T),
    ("EXISTS(missing)", F),
    ("NOT EXISTS(missing)", T),
    ("EXISTS(sys.Label)", T),
    ("EXISTS([With Space])", T),
    # three-valued logic
    ("missing = 1 AND 1=1", U),
    ("missing = 1 AND 1=0", F),
    ("1=0 AND missing = 1", F),
    ("missing = 1 OR 1=1", T),
    ("missing = 1 OR 1=0", U),
    ("NOT missing = 1", U),
    ("NOT 1=0", T),
    ("NOT NOT 1=0", F),
    ("1=1 AND 1=1 AND 1=0", F),
    ("1=0 OR 1=0 OR 1=1", T),
    # precedence
    ("1=1 OR 1=1 AND 1=0", T),
    ("(1=1 OR 1=1) AND 1=0", F),
    ("NOT 1=0 AND 1=0", F),
    ("NOT (1=0 AND 1=0)", T),
    ("2 + 3 * 4 = 14", T),
    ("(2 + 3) * 4 = 20", T),
    ("10 - 4 - 3 = 3", T),
    ("100 / 10 / 5 = 2", T),
    ("-2 * -3 = 6", T),
    ("2 - -3 = 5", T),
    ("1 = 2 - 1", T),
    ("((((quantity)))) = ((5))", T),
    # arithmetic
    ("quantity + 1 = 6", T),
    ("quantity % 3 = 2", T),
    ("-7 / 2 = -3", T),  # towards zero, as in C#
    ("-7 % 3 = -1", T),
    ("7 / 2 = 3", T),
    ("7 / 2.0 = 3.5", T),
    ("1 / 0.0 > 1E300", T),  # doubles have infinity
    ("quantity * price = 12.5", T),
    ("missing + 1 = 1", U),
    ("- color = 'red'", U),
    ("+quantity = 5", T),
    ("urgent + 1 = 2", U),
    ("color + '!' = 'red!'", T),
    ("'n' + quantity = 'n5'", T),
    ("1 + 'n' = '1n'", T),
    ("'' + urgent = 'True'", T),
    ("'' + 2.0 = '2'", T),
    ("color - 'r' = 'ed'", U),
    ("when + span > when", T),
    ("when - when < span", T),
    ("offset - span < when", T),
    ("unsigned - 1 = unsigned - 1", T),
    # IN
    ("color IN ('blue', 'red')", T),
    ("color IN ('blue')", F),
    ("color NOT IN ('blue')", T),
    ("color not in ('red')", F),
    ("quantity IN (1, 5.0)", T),
    ("quantity IN ('5', -5)", F),
    ("quantity NOT IN ('5')", T),
    ("quantity IN (1, quantity)", T),
    ("quantity + 1 IN (2 * 3)", T),
    ("missing IN (1)", U),
    ("missing NOT IN (1)", U),
    ("color IN ('blue', NULL, missing)", F),  # only an unknown left operand makes IN unknown
    ("symbol IN ('red')", T),
    ("urgent IN (TRUE)", T),
    # LIKE
    ("color LIKE 'r%'", T),
    ("color LIKE '%e%'", T),
    ("color LIKE '%d'", T),
    ("color LIKE 'r_d'", T),
    ("color LIKE 'R%'", F),
    ("color NOT LIKE 'b%'", T),
    ("quantity LIKE '5'", U),
    ("missing LIKE '%'", U),
    ("missing NOT LIKE '%'", U),
    ("color LIKE NULL", U),
    ("color LIKE missing", U),
    ("color LIKE 'red' ESCAPE NULL", U),
    ("color LIKE color + '%'", T),
    ("'50%' LIKE '50!%' ESCAPE '!'", T),
    ("'50x' LIKE '50!%' ESCAPE '!'", F),
    ("'50%' LIKE '%' + '!%' ESCAPE '!'", T),
    # names
    ("COLOR = 'red'", T),
    ("user.color = 'red'", T),
    ("USER.Color = 'red'", T),
    ("[color] = 'red'", T),
    ('"color" = \'red\'', T),
    ("[With Space] = 1", T),
    ('"With Space" = 1', T),
    ("user.[With Space] = 1", T),
    ("[with]]bracket] = 1", T),
    ('"with""quote" = 1', T),
    ("größe = 3", T),
    ("[and] = 1", T),
    ("user.and = 1", T),
    ("property('color') = 'red'", T),
    ("P('COL' + 'or') = 'red'", T),
    ("p(quantity) = 5", U),
    ("newid() <> newid()", T),
    ("sys = 1", U),  # an application property of this name
    ("p = 1", U),
    ("'it''s' = 'it''s'", T),
    ("color='red'and quantity=5", T),
    # system properties
    ("sys.MessageId = 'm1'", T),
    ("SYS.messageid = 'm1'", T),
    ("sys.[Label] = 'bus stop'", T),
    ("sys.Subject LIKE '%bus%'", T),
    ("sys.To = 'there'", T),
    ("sys.ReplyTo = 'here'", T),
    ("sys.CorrelationId = '0f8fad5b-d9cb-469f-a165-70867728950e'", T),
    ("sys.ContentType = 'text/plain'", T),
    ("sys.SessionId = 's1' AND sys.ReplyToSessionId = 's2'", T),
    ("sys.PartitionKey = 'pk'", T),
    ("sys.ViaPartitionKey IS NULL", T),
    ("sys.SequenceNumber = 9", T),
    ("sys.EnqueuedSequenceNumber = 9", T),
    ("sys.DeliveryCount = 2", T),
    ("sys.EnqueuedTimeUtc = when", T),
    ("sys.TimeToLive = span", T),
    ("sys.ExpiresAtUtc = when + span", T),
    ("sys.ScheduledEnqueueTimeUtc < sys.EnqueuedTimeUtc", T),
    ("sys.Size > 10", T),
    # errors in operands that are not evaluated
    ("1=0 AND 1/0 = 1", F),
    ("1=1 OR sys.Unknown = 1", T),
    ("quantity IN (5, 1/0)", T),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "expected"), CASES)
def test_expression_has_documented_result(expression: str, expected: bool | None) -> None:
    assert evaluate(expression, VIEW) is expected


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("quantity / 0 = 1", "division by zero: 5 / 0"),
        ("quantity % (quantity - 5) = 1", "division by zero: 5 % 0"),
        ("9223372036854775807 + quantity > 0", "overflow: 9223372036854775807 + 5"),
        ("-(-9223372036854775808) > 0", "overflow"),
        ("unsigned * 2 > 0", "overflow"),
        ("span + span + when + p('far') > when", "overflow"),
        ("sys.Nonsense = 1", "the system property sys.Nonsense does not exist"),
        ("EXISTS(sys.Nonsense)", "the system property sys.Nonsense does not exist"),
        ("sys.Nonsense IS NULL", "the system property sys.Nonsense does not exist"),
        ("color LIKE color ESCAPE color", "ESCAPE takes one character, not 'red'"),
        ("color LIKE p('escaped') ESCAPE '!'", "ends with its escape character"),
        ("color LIKE p('long')", "at most 1024 characters, this one 20000"),
        ("p('long') + p('long') = 'x'", "a string of 40000 characters; 32768 are allowed"),
        ("missing = 1 AND 1/0 = 1", "division by zero"),
    ],
)
def test_evaluation_error_says_the_reason(expression: str, problem: str) -> None:
    """The subscription dead-letters such messages with this text as the description."""
    far = Described(Symbol("com.microsoft:timespan"), Long(2**63 - 1))
    view = view_of({**USER, "far": far, "when": Timestamp(2**63 - 1), "escaped": "a!", "long": "x" * 20_000})
    with pytest.raises(FilterEvaluationError) as caught:
        evaluate(expression, view)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("color = @p", "red"),
        ("quantity = @P", 5),
        ("quantity = @p", Int(5)),
        ("price = @p", 2.5),
        ("urgent = @p", True),
        ("when = @p", Timestamp(1_000_000)),
        ("span = @p", timedelta(seconds=5)),
        ("sys.TimeToLive <= @p", timedelta(seconds=5)),
        ("guid = @p", GUID),
        ("raw = @p", b"\x00\x01"),
        ("color LIKE @p", "r%"),
        ("color IN ('blue', @p)", "red"),
        ("-@p = -5", 5),
    ],
)
@pytest.mark.parametrize("name", ["@p", "p", "@P"])
def test_parameters_of_every_type_are_compared(expression: str, value: Any, name: str) -> None:
    """Python's SDK writes the keys with @; users of other SDKs may not."""
    assert evaluate(expression, VIEW, {name: value}) is True


def test_message_without_properties_has_unknown_values() -> None:
    """A message may have no properties section at all."""
    view = view_of(message_id=None)
    assert evaluate("color = 'red'", view) is None
    assert evaluate("sys.Label = 'x'", view) is None
    assert evaluate("sys.MessageId IS NULL", view) is True
    assert evaluate("sys.ExpiresAtUtc IS NULL AND sys.EnqueuedTimeUtc IS NULL", view) is True


def test_message_without_ttl_lives_longest() -> None:
    """As in .NET, where the property is then the largest TimeSpan."""
    assert evaluate("sys.TimeToLive > @p", view_of(), {"p": timedelta(days=10_000_000)}) is True


def test_name_in_two_spellings_reads_the_last() -> None:
    """Names are equal in any case, so that only one of two such properties can be seen."""
    assert evaluate("color = 'blue'", view_of({"Color": "red", "color": "blue"})) is True


def test_ids_of_all_types_compare_as_text() -> None:
    """AMQP allows strings, UUIDs, numbers and bytes as ids; Service Bus has strings only."""
    for message_id, text in ((GUID, str(GUID)), (ULong(7), "7"), (b"ab", "ab"), (UInt(0), "0")):
        assert evaluate(f"sys.MessageId = '{text}'", view_of(message_id=message_id)) is True


@pytest.mark.parametrize("descriptor", ["timespan", "datetime-offset", "uri"])
@pytest.mark.parametrize("inside", [math.nan, math.inf, Float(math.nan), 1e300, True, None, b"x", [1], {"a": 1}])
def test_time_around_another_type_is_unknown(descriptor: str, inside: object) -> None:
    """Such a message comes from a sender with a mistake in it. It is unknown to filters, and an action can copy it."""
    value = Described(Symbol(f"com.microsoft:{descriptor}"), inside)
    view = view_of({"t": value, "color": "red"})
    assert [evaluate(text, view) for text in ("t = t", "t > '2020-01-01'", "color = 'red'")] == [None, None, True]
    [copy] = Rules([("r", TrueFilter(), SqlAction("SET copied = t"))]).evaluate(view)
    assert copy.changed is not None
    copied = Message.decode(copy.changed.body).application_properties
    assert copied is not None and type(copied["copied"]) is Described
