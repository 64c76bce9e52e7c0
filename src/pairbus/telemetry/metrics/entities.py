"""Entities of a namespace as families, under the names of the known exporters of Service Bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pairbus.telemetry.metrics.text import Family, escaped, labels

EntityKind = Literal["queue", "topic", "subscription"]


class EntityGauges(NamedTuple):
    """Counts of one entity. None: not known, or this kind of entity has no such count; the sample is left out."""

    labels: str
    "Labels of the entity, from `labels_of`."
    active: int | None = 0
    dead_lettered: int | None = 0
    scheduled: int | None = 0
    transfer: int | None = 0
    transfer_dead_lettered: int | None = 0
    size_bytes: int | None = None
    max_size_bytes: int | None = None


# Name after `servicebus_<kind>_`, its place in EntityGauges, and its help.
GAUGES = (
    ("active_messages", 1, "Messages that can be received or are locked"),
    ("dead_letter_messages", 2, "Messages in the dead-letter queue"),
    ("scheduled_messages", 3, "Messages that are scheduled for later"),
    ("transfer_messages", 4, "Messages on their way to the entity to which they are forwarded"),
    ("transfer_dead_letter_messages", 5, "Messages that could not be forwarded"),
    ("size_bytes", 6, "Bytes of all messages"),
    ("max_size_bytes", 7, "Bytes that the messages may have together"),
)


def labels_of(namespace: str, name: str, topic: str | None = None) -> str:
    """Write the labels of an entity; a subscription has its topic as a label."""
    of_topic = "" if topic is None else f',topic_name="{escaped(topic)}"'
    return f'name="{escaped(name)}",namespace_name="{escaped(namespace)}"{of_topic}'


def entity_families(kind: EntityKind, entities: Sequence[EntityGauges]) -> Iterator[Family]:
    """Yield a family for each gauge that an entity of this kind has."""
    for name, place, text in GAUGES:
        samples = [("", entity[0], value) for entity in entities if (value := entity[place]) is not None]
        if samples:
            yield Family(f"servicebus_{kind}_{name}", "gauge", f"{text}, by {kind}.", samples)  # type: ignore[arg-type]


def up_family(is_known: Mapping[str, bool]) -> Family:
    """Return the family that says, for each namespace, whether its counts could be read for this page."""
    text = "1: the counts of the namespace are on this page; 0: it could not be asked."
    samples = [("", labels(namespace_name=name), int(known)) for name, known in is_known.items()]
    return Family("servicebus_up", "gauge", text, samples)
