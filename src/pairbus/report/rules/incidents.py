"""Joins outages of any entities whose times overlap to incidents: an operator takes them for one event.

An outage lasts here from its first failure until it recovered and its messages are home. An open outage lasts to the
end of the report. Messages that still wait after a recovery do not prolong it: otherwise it would join all later
outages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pairbus.report.model import EntityOutage


@dataclass(frozen=True, slots=True)
class Incident:
    """Outages that belong together, in the order in which they began."""

    outages: tuple[EntityOutage, ...]
    ends: str
    "Time at which the last of them was over, or the end of the report."

    @property
    def entities(self) -> list[str]:
        """Names of its entities, each once, in the order in which they failed."""
        return list(dict.fromkeys(outage.entity for outage in self.outages))

    @property
    def begins(self) -> str:
        return self.outages[0].begins

    @property
    def failed_over(self) -> str | None:
        """Time at which the first entity was diverted; None: none was."""
        return min((outage.failed_over for outage in self.outages if outage.failed_over), default=None)

    @property
    def recovered(self) -> str | None:
        """Time at which the last entity recovered; None: one has not."""
        times = [outage.recovered for outage in self.outages]
        return None if None in times else max(time for time in times if time)

    @property
    def drained(self) -> str | None:
        """Time at which the last message was home; None: some wait, or none was diverted."""
        if any(outage.waiting or (outage.diverted and outage.drained is None) for outage in self.outages):
            return None
        return max((outage.drained for outage in self.outages if outage.drained), default=None)

    @property
    def is_suspicion(self) -> bool:
        """True when no message was diverted."""
        return self.failed_over is None

    @property
    def diverted(self) -> int:
        return sum(outage.diverted for outage in self.outages)

    @property
    def failed_sends(self) -> int:
        return sum(outage.failed_sends for outage in self.outages)

    @property
    def waiting(self) -> int:
        return sum(outage.waiting for outage in self.outages)

    @property
    def times_to_divert_s(self) -> list[float]:
        return sorted(o.time_to_divert_s for o in self.outages if o.time_to_divert_s is not None)


def incidents_of(outages: Iterable[EntityOutage], report_ends: str) -> list[Incident]:
    """Group outages that overlap, or touch, in time; incidents are in the order of their beginning.

    Times are texts of the ledger, which sort as the times do.
    """
    incidents: list[Incident] = []
    group: list[EntityOutage] = []
    ends = ""
    for outage in sorted(outages, key=lambda each: (each.begins, each.entity)):
        if group and outage.begins > ends:
            incidents.append(Incident(tuple(group), ends))
            group, ends = [], ""
        group.append(outage)
        ends = max(ends, end_of(outage, report_ends))
    return [*incidents, Incident(tuple(group), ends)] if group else incidents


def end_of(outage: EntityOutage, report_ends: str) -> str:
    """Find when an outage and the way home of its messages were over."""
    if outage.recovered is None:
        return max(report_ends, outage.begins)
    return max(outage.recovered, outage.drained or "")


def largest(incidents: Sequence[Incident]) -> Incident | None:
    """Choose the incident that diverted most messages; of equal ones, the first. Suspicions do not count."""
    real = [incident for incident in incidents if not incident.is_suspicion]
    return max(real, key=lambda incident: incident.diverted, default=None)
