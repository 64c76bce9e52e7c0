"""Atom XML and ISO durations, without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.admin.settings import created, updated
from pairbus.broker.admin.xml import ATOM, SERVICE, Element, MalformedEntry, parse_description
from pairbus.broker.description import QueueDescription
from pairbus.errors import InvalidDescription
from pairbus.settings.durations import DAY_MS, UNLIMITED_MS, UNLIMITED_TEXT, format_duration, parse_duration

VERSION = "2021-05"


def body(settings: str, kind: str = "QueueDescription") -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><title/><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE}">{settings}</{kind}></content></entry>'
    ).encode()


def new_queue(text: bytes) -> QueueDescription:
    return created(QueueDescription("q"), description(text), VERSION, now_ms=0)


def description(text: bytes) -> Element:
    kind, element = parse_description(text)
    assert kind == "QueueDescription"
    return element


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT0S", 0),
        ("PT30S", 30_000),
        ("PT1M", 60_000),
        ("PT1H1.5S", 3_601_500),
        ("P1D", DAY_MS),
        ("P1DT2H3M4.005S", DAY_MS + 7_384_005),
        ("PT90M", 5_400_000),
        ("PT0.0019999S", 1),
        ("P10675198DT23H", 10_675_198 * DAY_MS + 82_800_000),
        ("P10675199D", None),
        (UNLIMITED_TEXT, None),
        ("P10675199DT2H48M5.477539S", None),
        ("P99999999999D", None),
    ],
)
def test_a_duration_is_read(text: str, duration_ms: int | None) -> None:
    """Durations from .NET's longest TimeSpan on mean: never. The Python SDK rounds its last digits."""
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "T5S", "5", "PT5", "P1M", "P1Y", "P1W", "-PT5S", "PT-5S", "pt5s", "PT٥S", "PT1S1S"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Months and years have no length, and negative settings no sense."""
    with pytest.raises(ValueError, match="not an ISO-8601 duration"):
        parse_duration(text)


@given(st.integers(0, UNLIMITED_MS - 1))
def test_every_duration_survives_writing_and_reading(duration_ms: int) -> None:
    """The duration is exact to the millisecond."""
    assert parse_duration(format_duration(duration_ms)) == duration_ms


def test_an_entry_is_read_by_namespace_and_not_by_prefix_or_order() -> None:
    """The SDKs use different prefixes and different orders."""
    text = (
        f'<a:entry xmlns:a="{ATOM}" xmlns="{SERVICE}"><a:content><QueueDescription>'
        "<MaxDeliveryCount> 7 </MaxDeliveryCount><LockDuration>PT5S</LockDuration>"
        '<LockDuration xmlns="urn:other">PT9S</LockDuration><Invented>1</Invented>'
        "</QueueDescription></a:content></a:entry>"
    )
    assert new_queue(text.encode("utf-16")) == QueueDescription("q", max_delivery_count=7, lock_duration_ms=5000)


def test_empty_elements_are_settings_that_were_not_made() -> None:
    """Some clients write empty elements."""
    assert new_queue(body("<LockDuration/><ForwardTo></ForwardTo><Status> </Status>")) == (QueueDescription("q"))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"hello",
        b"<entry>",
        b"<entry/>",
        f'<feed xmlns="{ATOM}"/>'.encode(),
        f'<entry xmlns="{ATOM}"/>'.encode(),
        f'<entry xmlns="{ATOM}"><content/></entry>'.encode(),
        f'<entry xmlns="{ATOM}"><content><QueueDescription xmlns="urn:x"/></content></entry>'.encode(),
        f'<entry xmlns="{ATOM}"><x:content xmlns:x="urn:x"><Q xmlns="{SERVICE}"/></x:content></entry>'.encode(),
        body("<LockDuration>PT5S</LockDuration><LockDuration>PT6S</LockDuration>"),
        body("") + b"<more/>",
        body("<a>" * 100 + "</a>" * 100),
        body("&unknown;"),
        b"\xff\xfe\xff",
    ],
)
def test_what_is_no_entry_is_refused(text: bytes) -> None:
    """Every malformed body ends in one kind of error."""
    with pytest.raises(MalformedEntry):
        new_queue(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "declaration",
    ["<!DOCTYPE entry>", '<!DOCTYPE entry SYSTEM "file:///etc/passwd">', '<!DOCTYPE entry [<!ENTITY a "b">]>'],
)
def test_a_document_type_is_refused_in_any_encoding(declaration: str, encoding: str) -> None:
    """Entities are how XML reads files and exhausts memory; searching the bytes for a word would miss UTF-16."""
    with pytest.raises(MalformedEntry, match="document type"):
        parse_description((declaration + body("").decode()).encode(encoding))


@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_entry_or_a_refusal(noise: bytes) -> None:
    """The parser may not let other errors out."""
    for text in (noise, body("<LockDuration>PT5S</LockDuration>")[: len(noise)] + noise):
        with pytest.raises(MalformedEntry):
            parse_description(text)


@pytest.mark.parametrize(
    "setting",
    [
        "<MaxDeliveryCount>many</MaxDeliveryCount>",
        "<MaxDeliveryCount>1_000</MaxDeliveryCount>",
        "<MaxDeliveryCount>99999999999999999999</MaxDeliveryCount>",
        "<MaxSizeInMegabytes>1.5</MaxSizeInMegabytes>",
        "<MaxMessageSizeInKilobytes>0x10</MaxMessageSizeInKilobytes>",
        "<RequiresSession>maybe</RequiresSession>",
        "<AutoDeleteOnIdle>tomorrow</AutoDeleteOnIdle>",
        "<DuplicateDetectionHistoryTimeWindow>P10675199D</DuplicateDetectionHistoryTimeWindow>",
    ],
)
def test_a_value_that_cannot_be_read_names_its_setting(setting: str) -> None:
    """With seventeen settings in a request, 'invalid value' is no help."""
    with pytest.raises(InvalidDescription, match=setting[1 : setting.index(">")]):
        new_queue(body(setting))


def test_update_keeps_unknown_settings_and_clears_omitted_texts() -> None:
    """Older SDKs know no message size; a text like the metadata can only be cleared by leaving it out."""
    current = QueueDescription("Q", max_message_size_kb=2048, user_metadata="note", max_delivery_count=3, created_ms=5)
    changed = updated(current, description(body("<MaxDeliveryCount>4</MaxDeliveryCount>")), VERSION, now_ms=0)
    assert changed == QueueDescription("Q", max_message_size_kb=2048, max_delivery_count=4, created_ms=5)
