"""Paths, dates, header values and broker properties as texts, without a broker."""

from __future__ import annotations

import contextlib
import json
import math
import re
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.amqp.types import Described, Float, Symbol, Timestamp, ULong
from pairbus.broker.refusal import Refusal
from pairbus.broker.rest.broker_properties import SETTABLE, UNLIMITED_MS, read_header, read_object
from pairbus.broker.rest.dates import TIME_MAX_MS, TIME_MIN_MS, read_date, read_http_date, read_span, write_http_date
from pairbus.broker.rest.header_values import INTEGER_MAX, INTEGER_MIN, is_property_name, read_value, write_value
from pairbus.broker.rest.paths import METHODS, MessagePath, PathKind, message_path

LOCK = "7da9cfd5-40d5-4bb1-8d64-ec5a52e1c547"
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

# ── paths ──

PATHS = [
    ("POST", "orders/messages", MessagePath("orders", PathKind.MESSAGES)),
    ("POST", "a/b/messages/", MessagePath("a/b", PathKind.MESSAGES)),
    ("POST", "T/Subscriptions/S/Messages/HEAD", MessagePath("T/Subscriptions/S", PathKind.HEAD)),
    (
        "DELETE",
        "t/subscriptions/s/$DeadLetterQueue/messages/head",
        MessagePath("t/subscriptions/s/$DeadLetterQueue", PathKind.HEAD),
    ),
    ("PUT", f"orders/messages/7/{LOCK}", MessagePath("orders", PathKind.LOCKED, "7", UUID(LOCK))),
    ("DELETE", f"orders/messages/an id/{LOCK}", MessagePath("orders", PathKind.LOCKED, "an id", UUID(LOCK))),
    ("DELETE", "orders/messages/7/no-lock", MessagePath("orders", PathKind.LOCKED, "7", None)),
    ("POST", "messages/messages", MessagePath("messages", PathKind.MESSAGES)),
]


@pytest.mark.parametrize(("method", "path", "expected"), PATHS)
def test_path_names_messages(method: str, path: str, expected: MessagePath) -> None:
    """The words of the path compare without case; the entity stays as it was spelled."""
    segments = [segment for segment in path.split("/") if segment]
    found = message_path(method, segments)
    assert found is not None
    assert (found.entity, found.kind, found.message, found.lock) == (
        expected.entity,
        expected.kind,
        expected.message,
        expected.lock,
    )
    assert found.text == path.strip("/")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "orders/messages"),
        ("PUT", "orders/messages"),
        ("DELETE", "orders/messages"),
        ("GET", "orders/messages/head"),
        ("PUT", "orders/messages/head"),
        ("PUT", "orders/messages/7/no-lock"),
        ("POST", "messages"),
        ("POST", "messages/head"),
        ("POST", "$pairbus/faults/messages"),
        ("POST", "orders"),
        ("POST", ""),
    ],
)
def test_other_paths_belong_to_the_administration(method: str, path: str) -> None:
    """A queue may be called `orders/messages`."""
    assert message_path(method, [segment for segment in path.split("/") if segment]) is None


@given(st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]), st.lists(st.text(min_size=1), max_size=6))
def test_any_path_is_read_or_left(method: str, segments: list[str]) -> None:
    """A path that was read has an entity, and a method that its kind has."""
    found = message_path(method, segments)
    if found is not None:
        assert found.entity
        assert method in METHODS[found.kind]


# ── dates ──


@pytest.mark.parametrize(
    "text", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
)
def test_three_forms_of_http_are_one_date(text: str) -> None:
    """RFC 2616, 3.3.1."""
    assert read_http_date(text) == read_date(text) == 784_111_777_000
    assert write_http_date(784_111_777_999) == "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1994-11-06T08:49:37Z", 784_111_777_000),
        ("1994-11-06 08:49:37", 784_111_777_000),
        ("1994-11-06T08:49:37.1239999Z", 784_111_777_123),
        ("1994-11-06T10:49:37+02:00", 784_111_777_000),
        ("1994-11-06T06:19:37.5-02:30", 784_111_777_500),
        ("0001-01-01T00:00:00+01:00", None),
        ("1994-13-06T08:49:37Z", None),
        ("1994-02-29T08:49:37Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("Sun, 31 Feb 1994 08:49:37 GMT", None),
        ("Sun, 06 Foo 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 24:49:37 GMT", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_dates_of_clients_are_read(text: str, expected: int | None) -> None:
    """ISO 8601 is what programs write that do not know the dates of HTTP."""
    assert read_date(text) == expected


@given(st.integers(TIME_MIN_MS, TIME_MAX_MS))
@example(TIME_MIN_MS)
@example(TIME_MAX_MS)
def test_date_that_is_written_is_read_again(time_ms: int) -> None:
    """To the second, which is all that the form has."""
    written = write_http_date(time_ms)
    assert written is not None
    assert read_http_date(written) == time_ms // 1000 * 1000


@given(st.text())
def test_any_text_is_a_date_or_none(text: str) -> None:
    """No text breaks the readers."""
    for read in (read_date, read_span):
        value = read(text)
        assert value is None or isinstance(value, int)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.00:00:40", 40_000),
        ("00:01:00", 60_000),
        ("14.00:00:00", 14 * 86_400_000),
        ("00:00:00.5000000", 500),
        ("10675199.02:48:05.4775807", UNLIMITED_MS),
        ("1:2", 3_720_000),
        ("24:00:00", None),
        ("-00:00:01", None),
        ("40", None),
    ],
)
def test_time_spans_of_dot_net_are_read(text: str, expected: int | None) -> None:
    """Batches have their times to live in this form."""
    assert read_span(text) == expected


# ── header values ──


def values() -> st.SearchStrategy[object]:
    dates = st.integers(TIME_MIN_MS // 1000, TIME_MAX_MS // 1000).map(lambda seconds: Timestamp(seconds * 1000))
    texts = st.text().filter(lambda text: read_http_date(text) is None)
    return st.one_of(texts, st.booleans(), st.integers(INTEGER_MIN, INTEGER_MAX), st.floats(), dates)


@given(values())
@example('This "should" work')
@example("C:\\temp\\u0041")
@example("line\r\nInjected: true\x00\x7f")
@example("")
@example('"')
@example(1e300)
def test_value_that_is_written_is_read_again(value: object) -> None:
    """And its header has no control character, so nobody can put a header of their own into an answer."""
    text = write_value(value)
    assert text is not None
    assert not CONTROL.search(text)
    again = read_value(text)
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(again)
    else:
        assert again == value
        assert isinstance(again, type(value)) or isinstance(value, int)
        assert isinstance(again, Timestamp) == isinstance(value, Timestamp)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"High"', "High"),
        ('"12345,ABC"', "12345,ABC"),
        ('"C:\\temp"', "C:\\temp"),
        ('"42"', "42"),
        ('""', ""),
        ("42", 42),
        ("-42", -42),
        ("8555111000", 8555111000),
        ("9223372036854775808", 9223372036854775808.0),
        ("3.14", 3.14),
        (".5e1", 5.0),
        ("true", True),
        ("false", False),
        ("Infinity", math.inf),
        ('"Wed, 14 Dec 2011 00:00:00 GMT"', Timestamp(1323820800000)),
    ],
)
def test_type_is_in_the_spelling(text: str, expected: object) -> None:
    """The table of the REST API; a quote inside is `\\"`."""
    value = read_value(text)
    assert value == expected
    assert isinstance(value, type(expected))


@pytest.mark.parametrize(
    "text", ["world", "True", "", '"', '"a', "1_000", "1e9999", "0x10", "Wed, 14 Dec 2011", "null"]
)
def test_text_without_quotes_is_refused(text: str) -> None:
    """The service rejects a message for it."""
    with pytest.raises(ValueError, match=r"quotes|too large"):
        read_value(text)


@given(st.text())
def test_any_header_is_a_value_or_refused(text: str) -> None:
    """No text breaks the reader."""
    try:
        value = read_value(text)
    except ValueError:
        return
    assert isinstance(value, str | bool | int | float)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (UUID(LOCK), f'"{LOCK}"'),
        (ULong(1 << 63), "9223372036854775808"),
        (Float(3.140000104904175), "3.14"),
        (Float(16777217 / 3), "5592405.7"),
        (Float(-math.inf), "-Infinity"),
        (Symbol("word"), '"word"'),
        (Described(Symbol("com.microsoft:timespan"), 400_000_000), "40"),
        (Described(Symbol("com.microsoft:timespan"), 5_000_000), "0.5"),
        (Described(Symbol("com.microsoft:uri"), "http://x"), None),
        (Timestamp(TIME_MAX_MS + 1), None),
        (b"binary", None),
        (None, None),
        ([1], None),
    ],
)
def test_types_of_amqp_have_a_form_or_none(value: object, expected: str | None) -> None:
    """Properties without a form are left out, as the service documents for addresses and times with a zone."""
    assert write_value(value) == expected


@pytest.mark.parametrize(
    "name",
    ["Host", "content-LENGTH", "Sec-Fetch-Mode", "traceparent", "BrokerProperties", "a b", "é", "", "a:b", "x" * 257],
)
def test_headers_of_http_are_no_properties(name: str) -> None:
    """In either direction: a property called `Location` must not replace the header of an answer."""
    assert not is_property_name(name)
    assert is_property_name("Priority")


# ── broker properties ──


def test_every_settable_property_is_read() -> None:
    """The documented table; what is not in it is ignored."""
    texts = {name: f"the {name}" for name in SETTABLE if not name.startswith(("Time", "Scheduled", "Partition"))}
    properties = read_object(
        {
            **texts,
            "PartitionKey": "the SessionId",
            "ScheduledEnqueueTimeUtc": "Sun, 06 Nov 1994 08:49:37 GMT",
            "TimeToLive": 90.5,
            "ForcePersistence": True,
            "DeliveryCount": 99,
            "LockToken": "mine",
            "Unknown": {"a": []},
        }
    )
    assert properties.session_id == properties.partition_key == "the SessionId"
    assert (properties.correlation_id, properties.label, properties.message_id) == (
        "the CorrelationId",
        "the Label",
        "the MessageId",
    )
    assert (properties.reply_to, properties.reply_to_session_id, properties.to, properties.via_partition_key) == (
        "the ReplyTo",
        "the ReplyToSessionId",
        "the To",
        "the ViaPartitionKey",
    )
    assert (properties.scheduled_ms, properties.ttl_ms) == (784_111_777_000, 90_500)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"text"',
        "{'Label': 'x'}",
        '{"Label":}',
        '{"TimeToLive": NaN}',
        '{"TimeToLive": 0}',
        '{"TimeToLive": -1}',
        '{"TimeToLive": true}',
        '{"TimeToLive": "soon"}',
        '{"TimeToLiveTimeSpan": 40}',
        '{"TimeToLiveTimeSpan": "00:00:00"}',
        '{"ScheduledEnqueueTimeUtc": 1}',
        '{"ScheduledEnqueueTimeUtc": "tomorrow"}',
        '{"Label": ["a"]}',
        '{"Label": {"a": 1}}',
        '{"Label": "\\ud800"}',
        '{"SessionId": "a", "PartitionKey": "b"}',
        '{"PartitionKey": "' + "k" * 129 + '"}',
        "[" * 100_000,
        '{"TimeToLive": ' + "9" * 5000 + "}",
    ],
)
def test_bad_broker_properties_are_refused(text: str) -> None:
    """With the value in the words of the service, however large or deep it is."""
    with pytest.raises(Refusal) as caught:
        read_header(text)
    assert "HTTP header 'BrokerProperties' is invalid" in str(caught.value) or "must have the same" in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("value", "expected"),
    [(40, 40_000), ("40", 40_000), (0.0001, 1), (922337203685.47754, UNLIMITED_MS), (1e300, UNLIMITED_MS)],
)
def test_time_to_live_is_a_number_of_seconds(value: object, expected: int) -> None:
    """The value that the service shows for a message without one may come back."""
    assert read_header(json.dumps({"TimeToLive": value})).ttl_ms == expected


def test_numbers_are_read_as_texts() -> None:
    """The service reads them so where it expects a text."""
    assert read_header('{"MessageId": 7, "SessionId": true}').message_id == "7"


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*SETTABLE, "x"]), inner),
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    """Never another error."""
    with contextlib.suppress(Refusal):
        read_header(json.dumps(value))
