"""The table of settings: what it says, and what is made from it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pairbus.broker.admin import QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.admin.entity_xml import queue_entry, subscription_entry, topic_entry
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.settings import KINDS, SETTINGS, Setting, settings_of
from pairbus.settings.durations import UNLIMITED_MS, format_span, parse_span, seconds_of, short_text
from tests.test_docs import cells, section

DESCRIBED: dict[str, Any] = {
    "queue": QueueDescription("orders"),
    "topic": TopicDescription("events"),
    "subscription": SubscriptionDescription("events", "audit"),
}
NO_SETTINGS = {"path", "topic", "name", "authorization", "created_ms", "updated_ms"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_description_is_a_row_of_the_table(kind: str) -> None:
    """A field without a row could be neither read nor written."""
    attributes = {field.name for field in fields(DESCRIBED[kind])} - NO_SETTINGS
    assert attributes == {setting.attribute for setting in settings_of(kind)}


def test_names_are_told_apart() -> None:
    """Each way of writing finds its row by the name alone."""
    for name in ("attribute", "element", "sdk"):
        assert len({getattr(setting, name) for setting in SETTINGS}) == len(SETTINGS)
    options = [setting.option for setting in SETTINGS if setting.option]
    assert len(set(options)) == len(options)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_in_the_answer_of_the_administration(kind: str) -> None:
    """An answer of the newest version has every setting that has a value, in the type's way of writing."""
    text = answer(kind)
    for setting in settings_of(kind):
        value = getattr(DESCRIBED[kind], setting.attribute)
        written = setting.type.write(value)
        if written is not None:
            shown = str(written).lower() if isinstance(written, bool) else str(written)
            assert f"<{setting.element}>{shown}</{setting.element}>" in text
            assert setting.type.read(shown) == value


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: str(setting.attribute))
def test_value_of_the_sdk_is_the_value_of_the_description(setting: Setting) -> None:
    """A client reads the setting that it has written."""
    value = getattr(DESCRIBED[setting.kinds[0]], setting.attribute)
    assert setting.type.from_sdk(setting.type.to_sdk(value)) == value


def test_documents_have_the_table() -> None:
    """The table of the page is made from the rows; a missing line of it is printed here."""
    shown = cells(section("docs/broker.md", "Settings of entities"))[1:]
    for setting, row in zip(SETTINGS, shown, strict=True):
        assert row == row_of(setting), "| " + " | ".join(row_of(setting)) + " |"


@pytest.mark.parametrize(
    ("text", "seconds"), [("1h30m", 5400), ("PT1H30M", 5400), (".5s", 0.5), ("1w", 604_800), ("-PT5S", None)]
)
def test_one_parser_reads_every_way_of_writing(text: str, seconds: float | None) -> None:
    """People write units, XML writes ISO 8601; a duration with a sign is none."""
    assert seconds_of(text) == seconds


def test_shown_durations_are_read_again() -> None:
    for seconds in (0, 1, 30, 90, 300, 3600, 86_400, 1_209_600):
        assert seconds_of(short_text(seconds)) == seconds
    assert format_span(parse_span("-P1DT0.5S")) == "-P1DT0.5S"


def answer(kind: str) -> str:
    described, common = DESCRIBED[kind], ("https://localhost", "contoso", "2024-05")
    if kind == "queue":
        return queue_entry(QueueInfo(described, 0, 0, 0, 0, 0, 0), *common)
    if kind == "topic":
        return topic_entry(TopicInfo(described, 0, 0, 0, 0, 0, 0), *common)
    return subscription_entry(SubscriptionInfo(described, 0, 0, 0, 0, 0, 0), *common)


def row_of(setting: Setting) -> list[str]:
    """Return the row of a setting in the documents."""
    option = f"`--{setting.option}`" if setting.option else ""
    file = "emulator" if setting.is_known_to_emulator else "beyond it"
    text = setting.help.removesuffix(".").replace("|", "/")
    fixed = "; chosen at creation" if setting.is_fixed else ""
    kinds = "all" if setting.kinds == KINDS else ", ".join(setting.kinds)
    return [f"`{setting.element}`", f"`{setting.sdk}`", option, kinds, accepted(setting), file, f"{text}{fixed}"]


def accepted(setting: Setting) -> str:
    """Return the range as a reader writes it."""
    if setting.high is None:
        return setting.type.word
    if setting.type.word != "duration":
        low = f"{setting.low} to " if setting.type.word == "number" else "at most "
        return f"{low}{setting.high} {setting.unit}".rstrip()
    low = short_text(setting.low / 1000)
    return f"{low} or longer" if setting.high == UNLIMITED_MS else f"{low} to {short_text(setting.high / 1000)}"
