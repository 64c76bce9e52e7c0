"""Counters of paired clients as families of Prometheus, under the names that OpenTelemetry's exporter gives them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from pairbus.telemetry import CLIENT, METRICS, SYSTEM, Metric
from pairbus.telemetry.counters import Snapshot
from pairbus.telemetry.metrics.text import Family, Sample, labels


def client_families(snapshots: Sequence[tuple[str, Snapshot]], only: Container[str] | None = None) -> Iterator[Family]:
    """Yield a family for each metric that has samples. `snapshots`: (name of a client, its counters).

    `only`: names of metrics as OpenTelemetry has them; None: all of them.
    """
    for metric in METRICS:
        if only is not None and metric.name not in only:
            continue
        samples: list[Sample] = [
            ("", _labels({SYSTEM: "servicebus", CLIENT: client, **attributes}), value)
            for client, snapshot in snapshots
            for value, attributes in metric.points(snapshot)
        ]
        if samples:
            yield Family(family_name(metric), metric.kind, f"{metric.description}.", samples)


def family_name(metric: Metric) -> str:
    """Return the name of a metric as Prometheus has it."""
    name = metric.name.replace(".", "_")
    return f"{name}_total" if metric.kind == "counter" else name


def _labels(attributes: dict[str, object]) -> str:
    return labels(**{name.replace(".", "_"): str(value) for name, value in attributes.items()})
