"""A namespace in one answer: entities with their counts, faults, clock and meter.

The overview is read every second while a page is open, so an entity costs only a few microseconds: no description is
copied, and the store is not read.
"""

from __future__ import annotations

from typing import Any

from pairbus.broker.description import QueueDescription, TopicDescription
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.kit.clock import clock_json
from pairbus.broker.namespace import Namespace


def overview(namespace: Namespace) -> dict[str, Any]:
    """Answer `GET /$pairbus/overview`. The keys of `entities` are paths."""
    by_path: dict[str, Any] = {}
    for queue in namespace.catalog.queues.values():
        by_path[queue.path] = _holder("queue", queue) | {"scheduled": queue.scheduled_count}
    for topic in namespace.catalog.topics.values():
        by_path[topic.path] = {
            "kind": "topic",
            "status": topic.description.status,
            "scheduled": topic.scheduled_count,
            "size_bytes": topic.size_bytes,
            "max_bytes": topic.description.max_size_mb << 20,
            "received": topic.last_seq,
            "subscriptions": len(topic.subscriptions),
            **_duplicates(topic.description),
        }
        for subscription in topic.subscriptions.values():
            by_path[subscription.path] = _holder("subscription", subscription)
    return {
        "name": namespace.name,
        "port": getattr(namespace.faults.connections.port, "number", None),
        "entities": by_path,
        "faults": namespace.faults.list(),
        "clock": clock_json(namespace.clock),
        "meter": None if namespace.meter is None else _by_kind(namespace.meter.totals),
    }


def _holder(kind: str, holder: Queue | Subscription) -> dict[str, Any]:
    settings = holder.description
    facts: dict[str, Any] = {
        "kind": kind,
        "status": settings.status,
        "active": holder.active_count,
        "dead": holder.dead_count,
        "deferred": holder.deferred_count,
        "size_bytes": holder.size_bytes,
        "received": holder.last_seq,
        "sessions": settings.requires_session,
    }
    if isinstance(holder, Queue):
        facts["max_bytes"] = holder.description.max_size_mb << 20
        facts |= _duplicates(holder.description)
    if settings.forward_to:
        facts["forward_to"] = settings.forward_to
    if holder.transfer_dead_count:
        facts["transfer_dead"] = holder.transfer_dead_count
    return facts


def _duplicates(settings: QueueDescription | TopicDescription) -> dict[str, float]:
    return {"duplicate_window_s": settings.duplicate_window_ms / 1000} if settings.requires_duplicate_detection else {}


def _by_kind(totals: dict[Any, list[int]]) -> dict[str, list[int]]:
    """Sum the meter's totals: kind of operation → operations, billable operations, bytes."""
    sums: dict[str, list[int]] = {}
    for (_, kind, _), counts in totals.items():
        known = sums.setdefault(kind, [0, 0, 0])
        for at, count in enumerate(counts):
            known[at] += count
    return sums
