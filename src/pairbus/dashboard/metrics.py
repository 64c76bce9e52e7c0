"""Answers `GET /metrics` of `pairbus dashboard`: a look as families of Prometheus; `docs/telemetry.md` has the names.

Entities of all namespaces have the names of the known exporters. A namespace that does not answer is marked so, and its
counts are left out: Prometheus would take old counts for current ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from pairbus.dashboard.watch import Watch
from pairbus.telemetry.counters import ENTITY_FIELDS, PROCESSOR_FIELDS, Snapshot
from pairbus.telemetry.metrics.entities import EntityGauges, EntityKind, entity_families, labels_of, up_family
from pairbus.telemetry.metrics.serving import metrics_answer, refusal_of
from pairbus.telemetry.metrics.text import Family, Sample, labels
from pairbus.telemetry.prometheus import client_families

PATH = "/metrics"
ANSWER_S = 8.0  # below the ten seconds that Prometheus waits
KINDS: tuple[EntityKind, ...] = ("queue", "topic", "subscription")
OF_CLIENTS = (
    "messaging.client.sent.messages",
    "pairbus.pings",
    "pairbus.failovers",
    "pairbus.recoveries",
    "pairbus.entity.state",
    "pairbus.backlog.out_of_rotation",
    "pairbus.spool.messages",
    "pairbus.processor.active",
    "pairbus.processor.waiting",
    "pairbus.processor.settled.messages",
    "pairbus.processor.failures",
    "pairbus.processor.retries",
    "pairbus.processor.lock_losses",
    "pairbus.processor.renewals",
)


class PageMetrics:
    """The page of metrics of one dashboard, and the right to read it."""

    def __init__(self, watch: Watch, host: str, hosts: frozenset[str], token: str | None) -> None:
        """Take the place of the server: `host`, and its further names `hosts`. `token`: None opens the page to the
        loopback."""
        self._watch = watch
        self._host = host
        self._hosts = hosts
        self._token = token

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a scrape. Without watchers no source is asked: the first scrape after a pause waits for a look."""
        refused = refusal_of(request, self._host, self._token, self._hosts)
        if refused is not None:
            return refused
        look = await self._watch.whole_look(ANSWER_S)
        return await metrics_answer(look_families(look, self._watch.clients))


def look_families(look: dict[str, Any], clients: Sequence[dict[str, Any]]) -> Iterator[Family]:
    """Yield every family. `clients`: descriptions by the control sockets of paired clients."""
    reachable = {name: one for name, one in look["namespaces"].items() if one.get("reachable")}
    yield up_family({name: name in reachable for name in look["namespaces"]})
    for kind in KINDS:
        yield from entity_families(kind, [row for name, one in reachable.items() for row in _entities(name, one, kind)])
    deferred: list[Sample] = [
        ("", labels(entity=path, namespace_name=name), entity["deferred"])
        for name, one in reachable.items()
        for path, entity in one.get("entities", {}).items()
        if "deferred" in entity
    ]
    if deferred:
        yield Family("pairbus_deferred_messages", "gauge", "Messages that a receiver has deferred.", deferred)
    # A broker tells its faults over its control socket also while one of them has shut its port.
    yield from _faults({name: one for name, one in look["namespaces"].items() if "counts_as_of_ms" not in one})
    yield from client_families([(one["client_id"], _snapshot(one)) for one in clients], OF_CLIENTS)
    yield from _pair(look)


def _entities(namespace: str, one: dict[str, Any], kind: EntityKind) -> Iterator[EntityGauges]:
    for path, entity in one.get("entities", {}).items():
        if entity["kind"] != kind:
            continue
        topic, name = _names(path) if kind == "subscription" else (None, path)
        is_topic = kind == "topic"
        yield EntityGauges(
            labels_of(namespace, name, topic),
            active=0 if is_topic else entity.get("active"),
            dead_lettered=0 if is_topic else entity.get("dead"),
            scheduled=entity.get("scheduled", 0),
            transfer=entity.get("transfer", 0),
            transfer_dead_lettered=entity.get("transfer_dead", 0),
            size_bytes=None if topic else entity.get("size_bytes"),
            max_size_bytes=entity.get("max_bytes"),
        )


def _names(path: str) -> tuple[str, str]:
    """Split the path of a subscription into topic and name."""
    at = path.lower().rindex("/subscriptions/")
    return path[:at], path[at + len("/subscriptions/") :]


def _faults(current: dict[str, Any]) -> Iterator[Family]:
    samples: list[Sample] = [
        ("", labels(kind=kind, namespace_name=name), count)
        for name, one in current.items()
        for kind, count in sorted(Counter(fault["kind"] for fault in one.get("faults", [])).items())
    ]
    if samples:
        yield Family("pairbus_faults", "gauge", "Faults that are switched on, by kind.", samples)


def _snapshot(client: dict[str, Any]) -> Snapshot:
    """Return the counters of a client as its control socket told them, without those of single queues."""
    return {
        "entities": {
            one["path"]: {"state": one["state"], **{name: int(one.get(name, 0)) for name in ENTITY_FIELDS}}
            for one in client["entities"]
        },
        "queues": {},
        "total": {},
        "spool_depth": int(client.get("spool_depth", 0)),
        "out_of_rotation": int(client.get("out_of_rotation", 0)),
        "processors": {
            path: {name: int(numbers.get(name, 0)) for name in PROCESSOR_FIELDS}
            for path, numbers in client.get("processor_counts", {}).items()
        },
    }


def _pair(look: dict[str, Any]) -> Iterator[Family]:
    """Yield the backlog and the syphons, where there is a pair."""
    pair: dict[str, Any] = look.get("pair", {})
    secondary = pair.get("secondary")
    if secondary is None:
        return
    of = labels(namespace_name=secondary)
    backlog = pair["backlog"]
    is_known = look["namespaces"][secondary].get("reachable")
    gauges = (
        ("pairbus_backlog_messages", "Messages in the backlog queues; not shown while unknown.", backlog["messages"]),
        ("pairbus_backlog_dead_letters", "Dead letters of the backlog queues.", backlog["dead"]),
        ("pairbus_backlog_oldest_seconds", "Age of the oldest message that waits.", backlog.get("oldest_s", 0)),
    )
    for name, text, value in gauges if is_known else ():
        yield Family(name, "gauge", text, [("", of, value)])
    text = "Messages that syphons of this machine move in a second."
    yield Family("pairbus_syphon_rate", "gauge", text, [("", of, pair["syphon_per_second"])])
