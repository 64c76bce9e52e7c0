"""Messages over HTTP as texts: what was sent is received, and nonsense is refused in words."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED, ProtocolError
from pairbus.amqp.message import DATA, section
from pairbus.amqp.types import encode_binary
from pairbus.broker.entities.draft import Draft
from pairbus.broker.refusal import Refusal
from pairbus.broker.rest.dates import read_http_date
from pairbus.broker.rest.header_values import is_property_name, read_value, write_value
from pairbus.broker.rest.incoming import batch, is_batch, single
from pairbus.broker.rest.outgoing import DEFAULT_CONTENT_TYPE, HttpMessage, http_message
from pairbus.broker.store import StoredMessage

SIZE_MAX = 1 << 20
TEXTS = st.text(max_size=40)
BROKER = st.fixed_dictionaries(
    {},
    optional={
        "CorrelationId": TEXTS,
        "Label": TEXTS,
        "MessageId": TEXTS.filter(bool),
        "ReplyTo": TEXTS,
        "ReplyToSessionId": TEXTS,
        "SessionId": TEXTS,
        "To": TEXTS,
        "ViaPartitionKey": TEXTS,
        "TimeToLive": st.integers(1, 10**9),
        "ScheduledEnqueueTimeUtc": st.just("Sat, 06 Nov 2094 08:49:37 GMT"),
    },
)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True).filter(is_property_name)
VALUES = st.one_of(
    TEXTS.filter(lambda text: read_http_date(text) is None), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1)
)


def stored(draft: Draft) -> StoredMessage:
    """The message as a queue has it."""
    return StoredMessage(
        7,
        draft.body,
        annotations=draft.annotations,
        message_id=draft.message_id,
        enqueued_ms=1_700_000_000_000,
        ttl_ms=draft.ttl_ms or 0,
        session_id=draft.session_id or "",
    )


def shown(draft: Draft) -> tuple[HttpMessage, dict[str, Any], dict[str, Any]]:
    """(the message over HTTP, its broker properties, its application properties)."""
    message = http_message(stored(draft))
    headers = dict(message.headers)
    broker = json.loads(headers.pop("BrokerProperties"))
    headers.pop("Content-Type")
    return message, broker, {name: read_value(text) for name, text in headers.items()}


@given(BROKER, st.dictionaries(NAMES, VALUES, max_size=5), st.binary(max_size=100))
def test_single_message_is_received_as_it_was_sent(broker: dict[str, Any], custom: dict[str, Any], body: bytes) -> None:
    """Through AMQP and back, every text, number and boolean."""
    headers = [(b"BrokerProperties", json.dumps(broker).encode()), (b"Content-Type", b"text/plain")]
    headers += [(name.encode(), (write_value(value) or "").encode()) for name, value in custom.items()]
    [draft] = single(headers, body, SIZE_MAX).drafts
    message, got, properties = shown(draft)
    assert {name: got.get(name) for name in broker} == broker
    assert (message.body, properties) == (body, custom)
    assert ("Content-Type", "text/plain") in message.headers


@given(st.lists(st.tuples(BROKER, st.dictionaries(NAMES, VALUES, max_size=3), TEXTS), min_size=1, max_size=5))
def test_batch_is_received_as_it_was_sent(entries: list[tuple[dict[str, Any], dict[str, Any], str]]) -> None:
    """In its order."""
    body = [{"Body": text, "BrokerProperties": broker, "UserProperties": user} for broker, user, text in entries]
    incoming = batch(json.dumps(body).encode(), SIZE_MAX)
    assert len(incoming.drafts) == len(entries) == len(incoming.sizes)
    for draft, (broker, user, text) in zip(incoming.drafts, entries, strict=True):
        message, got, properties = shown(draft)
        assert {name: got.get(name) for name in broker} == broker
        assert (message.body.decode(), properties) == (text, user)
        assert ("Content-Type", DEFAULT_CONTENT_TYPE) in message.headers


HEADERS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([b"BrokerProperties", b"Content-Type", b"Color"]), st.binary(max_size=20)),
        st.one_of(st.binary(max_size=60), BROKER.map(lambda value: json.dumps(value).encode())),
    ),
    max_size=6,
)


@given(HEADERS, st.binary(max_size=50))
def test_any_headers_are_a_message_or_refused(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """A message that is taken can be shown again, whatever it was made of."""
    with contextlib.suppress(Refusal, ProtocolError):
        [draft] = single(headers, body, SIZE_MAX).drafts
        assert shown(draft)[0].body == body


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Body", "BrokerProperties", "UserProperties", "Label", "a"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=60), st.lists(JSON, max_size=3).map(lambda value: json.dumps(value).encode())))
def test_any_body_is_a_batch_or_refused(body: bytes) -> None:
    """Never another error, and each message that is taken can be shown."""
    with contextlib.suppress(Refusal, ProtocolError):
        for draft in batch(body, SIZE_MAX).drafts:
            shown(draft)


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/vnd.microsoft.servicebus.json", True),
        ("Application/VND.Microsoft.ServiceBus.JSON; charset=utf-8", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_batch_is_known_by_its_content_type(content_type: str, expected: bool) -> None:
    """Compared without case and without parameters."""
    assert is_batch(content_type) is expected


def test_properties_of_a_message_have_a_limit() -> None:
    """64 KB, as the service documents."""
    headers = [(b"p%d" % number, b'"%s"' % (b"x" * 8000)) for number in range(9)]
    assert single(headers[:8], b"", SIZE_MAX).drafts
    with pytest.raises(Refusal, match="65536 are allowed"):
        single(headers, b"", SIZE_MAX)


@pytest.mark.parametrize("entry", [{"UserProperties": {"\ud800": 1}}, {"UserProperties": {"a": "\udfff"}}])
def test_halves_of_characters_are_refused(entry: dict[str, Any]) -> None:
    """JSON can express them, and UTF-8 cannot."""
    with pytest.raises(Refusal, match="no UTF-8"):
        batch(json.dumps([entry]).encode(), SIZE_MAX)


def test_message_that_cannot_be_read_is_refused_in_words() -> None:
    """A sender over AMQP may have written a footer that is no map."""
    footer = b"\x00\x53\x78\x45"
    with pytest.raises(Refusal, match="message 7 cannot be read"):
        http_message(StoredMessage(7, section(DATA, encode_binary(b"x")) + footer))


def test_batch_counts_as_a_whole() -> None:
    """The sum of its messages is limited, as AMQP has them."""
    body = json.dumps([{"Body": "x" * 400}, {"Body": "x" * 400}]).encode()
    assert len(batch(body, 2000).drafts) == 2
    with pytest.raises(Refusal) as caught:
        batch(body, 800)
    assert caught.value.condition == MESSAGE_SIZE_EXCEEDED
