"""The page of metrics of one namespace: counts from memory, which no fault can change; see `docs/telemetry.md`.

A page of 1 000 entities takes about 20 ms of CPU, and the event loop gets its turn between two families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pairbus.broker.catalog import subscription_info
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.namespace import Namespace
from pairbus.telemetry.metrics.entities import EntityGauges, entity_families, labels_of, up_family
from pairbus.telemetry.metrics.text import Family, Sample, escaped, labels

MEGABYTE = 1 << 20


def namespace_families(namespace: Namespace, connections: Mapping[str, int], opened: int) -> Iterator[Family]:
    """Yield every family. `connections`: protocol → open connections; `opened`: connections since the start."""
    name = namespace.name
    yield up_family({name: True})
    yield from entity_families("queue", _queues(namespace))
    yield from entity_families("topic", _topics(namespace))
    yield from entity_families("subscription", _subscriptions(namespace))
    yield from _receivable(namespace)
    yield from _operations(namespace)
    yield from _commits(namespace)
    of_protocols = [("", labels(namespace_name=name, protocol=protocol), n) for protocol, n in connections.items()]
    yield Family("pairbus_connections", "gauge", "Open connections; http has AMQP over web sockets too.", of_protocols)
    of_namespace = labels(namespace_name=name)
    text = "Connections that were accepted since the start."
    yield Family("pairbus_connections_opened_total", "counter", text, [("", of_namespace, opened)])
    yield Family("pairbus_links", "gauge", "AMQP links to entities.", [("", of_namespace, len(namespace.links))])
    on = Counter(one.fault.kind.name for one in namespace.faults.faults.items())
    faults = [("", labels(kind=kind, namespace_name=name), n) for kind, n in sorted(on.items())]
    yield Family("pairbus_faults", "gauge", "Faults that are switched on, by kind.", faults)


# ── entities ──


def _queues(namespace: Namespace) -> list[EntityGauges]:
    return [
        EntityGauges(
            labels_of(namespace.name, info.description.path),
            info.active,
            info.dead_lettered,
            info.scheduled,
            info.transfer,
            info.transfer_dead_lettered,
            info.size_bytes,
            info.description.max_size_mb * MEGABYTE,
        )
        for info in namespace.queue_infos()
    ]


def _topics(namespace: Namespace) -> list[EntityGauges]:
    """Return the counts of topics: only scheduled messages wait in a topic itself."""
    return [
        EntityGauges(
            labels_of(namespace.name, info.description.path),
            scheduled=info.scheduled,
            size_bytes=info.size_bytes,
            max_size_bytes=info.description.max_size_mb * MEGABYTE,
        )
        for info in namespace.topic_infos()
    ]


def _subscriptions(namespace: Namespace) -> list[EntityGauges]:
    infos = [
        subscription_info(one)
        for _, topic in sorted(namespace.catalog.topics.items())
        for _, one in sorted(topic.subscriptions.items())
    ]
    return [
        EntityGauges(
            labels_of(namespace.name, info.description.name, info.description.topic),
            info.active,
            info.dead_lettered,
            0,
            info.transfer,
            info.transfer_dead_lettered,
        )
        for info in infos
    ]


def _receivable(namespace: Namespace) -> Iterator[Family]:
    """Yield the families that no exporter can get from a namespace of Azure."""
    catalog, of_namespace = namespace.catalog, labels(namespace_name=namespace.name)
    deferred: list[Sample] = []
    lost: list[Sample] = []
    holders: list[Receivable] = [*catalog.queues.values()]
    for topic in catalog.topics.values():
        holders += topic.subscriptions.values()
    for holder in holders:
        of_entity = f'entity="{escaped(holder.path)}",{of_namespace}'
        deferred.append(("", of_entity, holder.deferred_count))
        lost.append(("", of_entity, sum([box.lapsed_count for box in holder.boxes])))
    yield Family("pairbus_deferred_messages", "gauge", "Messages that a receiver has deferred.", deferred)
    text = "Locks that ran out before their receiver settled the message, since the start."
    yield Family("pairbus_lock_losses_total", "counter", text, lost)


# ── operations and commits ──


def _operations(namespace: Namespace) -> Iterator[Family]:
    """Yield the sums of the meter, which limits their number: the last names are counted together as `$others`."""
    meter, of_namespace = namespace.meter, labels(namespace_name=namespace.name)
    if meter is None:
        return
    rows = [
        (f'entity="{escaped(entity)}",kind="{kind.replace(" ", "_")}",outcome="{outcome}",{of_namespace}', *sums)
        for (entity, kind, outcome), sums in meter.totals.items()
    ]
    for name, at, text in (
        ("pairbus_operations_total", 1, "Operations of clients, by entity, kind and outcome."),
        ("pairbus_operation_bytes_total", 3, "Bytes of the messages of these operations."),
    ):
        samples: Sequence[Sample] = [("", row[0], row[at]) for row in rows if row[at]]  # type: ignore[misc]
        yield Family(name, "counter", text, samples)


def _commits(namespace: Namespace) -> Iterator[Family]:
    """Yield the durations of commits; a store without a disk has none."""
    times = namespace.store.commit_times
    if times is None:
        return
    of_namespace = labels(namespace_name=namespace.name)
    text = "Seconds from handing a group of writes to the store until it was durable, or had failed."
    yield Family("pairbus_commit_duration_seconds", "histogram", text, times.durations.samples(of_namespace))
    text = "Groups of writes that the store could not commit."
    yield Family("pairbus_commit_failures_total", "counter", text, [("", of_namespace, times.failures)])
    text = "Seconds that the commit under way has taken so far; 0 when there is none."
    yield Family("pairbus_commit_under_way_seconds", "gauge", text, [("", of_namespace, times.under_way_s())])
