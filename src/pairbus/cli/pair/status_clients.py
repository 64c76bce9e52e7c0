"""Paired clients that run on this machine, as `pairbus status` shows them: the states of their entities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.cli.standard import one_line

HEALTHY, HELD_OVER = "HEALTHY", "HELD_OVER"
NO_CLIENTS = "clients on this machine: none is seen; a client is seen with control_socket=True, by its own user"


@dataclass(frozen=True, slots=True)
class EntityState:
    """One entity of one client."""

    pid: int
    program: str
    path: str
    state: str
    for_s: float
    cause: str = ""

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ProcessorState:
    """One processor of one client."""

    pid: int
    program: str
    path: str
    state: str
    "`running`, `paused`, `stopping`."
    active: int
    "Handlers that run."
    waiting: int
    outage: str | None
    "The reason why it gets no messages; None while all is well."
    outage_s: float | None

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ReceiverState:
    """The receivers of one entity in one client."""

    pid: int
    program: str
    path: str
    count: int
    "Number of receivers."
    outage: str | None
    "The reason why one of them gets no messages; None while all is well."
    outage_s: float | None

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def processors_of(clients: Iterable[dict[str, Any]]) -> tuple[ProcessorState, ...]:
    """Return the processors of clients, as these describe themselves; a client of an earlier release tells none."""
    names = ("path", "state", "active", "waiting", "outage", "outage_s")
    return tuple(
        ProcessorState(client["pid"], client["program"], *(each[name] for name in names))
        for client in clients
        if not client["ended"]
        for each in client.get("processors", ())
    )


def receivers_of(clients: Iterable[dict[str, Any]]) -> tuple[ReceiverState, ...]:
    """Return the receivers of clients, as these describe themselves; a client of an earlier release tells none."""
    return tuple(
        ReceiverState(client["pid"], client["program"], each["path"], each["count"], each["outage"], each["outage_s"])
        for client in clients
        if not client["ended"]
        for each in client.get("receivers", ())
    )


def lines_of_processors(processors: Sequence[ProcessorState], time_s: float) -> list[str]:
    """Return the lines of `pairbus status` about the processors; none when there is none."""
    away = [each for each in processors if each.outage is not None]
    head = f"processors on this machine: {len(processors)}, {len(away)} of them get no messages"
    return [head, *_lines_of_outages(away, time_s)] if processors else []


def lines_of_receivers(receivers: Sequence[ReceiverState], time_s: float) -> list[str]:
    """Return the lines of `pairbus status` about the receivers; none when there is none."""
    away = [each for each in receivers if each.outage is not None]
    count = sum(each.count for each in receivers)
    head = f"receivers on this machine: {count}; entities that give them no messages: {len(away)}"
    return [head, *_lines_of_outages(away, time_s)] if receivers else []


def _lines_of_outages(away: Sequence[ProcessorState | ReceiverState], time_s: float) -> list[str]:
    from pairbus.cli.pair.status_facts import duration, moment

    return [
        one_line(
            f"  {each.path}: no messages since {moment(time_s - (each.outage_s or 0.0))}"
            f" ({duration(each.outage_s or 0.0)}), pid {each.pid} {each.program}: {each.outage}"
        )
        for each in away
    ]


def states_of(clients: Iterable[dict[str, Any]]) -> tuple[EntityState, ...]:
    """Return the entities of clients, as these describe themselves; a client that has ended has none."""
    return tuple(
        EntityState(client["pid"], client["program"], each["path"], each["state"], each["for_s"], each["cause"] or "")
        for client in clients
        if not client["ended"]
        for each in client["entities"]
    )


def lines_of_clients(count: int, entities: Sequence[EntityState], time_s: float) -> list[str]:
    """Return the lines of `pairbus status` about the clients; `count` of them are seen."""
    from pairbus.cli.pair.status_facts import duration, moment

    if not count:
        return [NO_CLIENTS]
    ill = [entity for entity in entities if entity.state != HEALTHY]
    states = f"{len(ill)} of {len(entities)} entities not HEALTHY" if entities else "no entity yet"
    head = f"clients on this machine: {count}, {states}"
    return [head] + [
        one_line(
            f"  {entity.path}: {entity.state} since {moment(time_s - entity.for_s)} ({duration(entity.for_s)}),"
            f" pid {entity.pid} {entity.program}{f': {entity.cause}' if entity.cause else ''}"
        )
        for entity in ill
    ]
