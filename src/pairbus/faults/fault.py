"""A fault as a value: read with care from JSON, from the command line and from Python, and written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pairbus.errors import InvalidFault, did_you_mean
from pairbus.faults.kinds import KINDS, FaultKind
from pairbus.settings.durations import seconds_of

_FIELDS = ("kind", "entity", "direction", "for_s", "probability", "count")
ENTITY_LENGTH_MAX = 1024
SECONDS_MAX = 100 * 366 * 86_400  # a century, as far as the clock of a namespace can be moved
BYTES_PER_S_MAX = 10**12
DURATIONS = "seconds, or a text such as 500ms, 30s, 5m or 1h, up to 100 years"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, checked. Use `read` to make one."""

    kind: FaultKind
    entity: str | None
    "Path of entities in any case, `*` stands for any text; None: every entity."
    direction: str | None
    "Direction in which the fault acts; None: every direction that the kind has."
    for_s: float | None
    "Time that the fault lasts; None: until it is cleared."
    probability: float
    count: int | None
    "Number of operations or connections that the fault meets; None: any number."
    arguments: Mapping[str, float]
    "The numbers of its kind, by name."

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Fault:
        """Check the fields of a fault, or raise InvalidFault that names the field, its value and what is accepted."""
        kind = _kind(fields.get("kind"))
        allowed = [*_FIELDS, *(argument.name for argument in kind.arguments)]
        unknown = [name for name in fields if name not in allowed]
        if unknown:
            hint = did_you_mean(unknown[0], allowed)
            raise InvalidFault(
                f"{kind.name}: {unknown[0]!r} is not known{hint or ';'} accepted are {', '.join(allowed)}"
            )
        wanted = {name: value for name, value in fields.items() if value is not None}
        _check_sense(kind, wanted)
        for_s = _duration(kind, "for_s", wanted["for_s"]) if "for_s" in wanted else kind.for_s
        arguments = {
            argument.name: _number(kind, argument.name, wanted[argument.name])
            if argument.name in wanted
            else argument.default
            for argument in kind.arguments
        }
        return cls(
            kind,
            _entity(kind, wanted.get("entity")),
            _direction(kind, wanted.get("direction")),
            for_s,
            _probability(kind, wanted.get("probability", 1.0)),
            _count(kind, wanted.get("count")),
            arguments,
        )

    @property
    def directions(self) -> tuple[str, ...]:
        return self.kind.directions if self.direction is None else (self.direction,)

    @property
    def is_certain(self) -> bool:
        """Return True when the fault meets every event while it lasts."""
        return self.probability >= 1 and self.count is None

    def to_json(self) -> dict[str, Any]:
        """Write the fields that `read` reads; fields that were not given and have no default are null."""
        return {
            "kind": self.kind.name,
            "entity": self.entity,
            "direction": self.direction,
            "for_s": self.for_s,
            "probability": self.probability,
            "count": self.count,
            **self.arguments,
        }


def read_duration(value: object) -> float:
    """Read a length of time in seconds; ValueError names the accepted forms."""
    seconds = seconds_of(value) if isinstance(value, str) else value
    # Compared before it is made a float, which a number of 400 digits cannot be.
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= SECONDS_MAX:
        return float(seconds)
    raise ValueError(f"{value!r:.80} is no duration; accepted are {DURATIONS}")


def _kind(value: object) -> FaultKind:
    kind = KINDS.get(value) if isinstance(value, str) else None
    if kind is None:
        hint = did_you_mean(str(value), KINDS) or ";"
        raise InvalidFault(f"kind {value!r:.80} is not known{hint} accepted are {', '.join(KINDS)}")
    return kind


def _check_sense(kind: FaultKind, wanted: Mapping[str, Any]) -> None:
    """Refuse fields that the kind does not use: otherwise a fault would look narrower than it is."""
    if not kind.takes_entity and "entity" in wanted:
        instead = "; for one entity use stall" if kind.name == "black-hole" else ""
        raise InvalidFault(f"{kind.name}: it meets the whole namespace, so it takes no entity{instead}")
    for name, whole in (("probability", 1.0), ("count", None)):
        if not kind.takes_chance and wanted.get(name, whole) != whole:
            raise InvalidFault(f"{kind.name}: it acts all the time, so it takes no {name}")


def _entity(kind: FaultKind, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip("/") or len(value) > ENTITY_LENGTH_MAX:
        raise InvalidFault(
            f"{kind.name}: entity {value!r:.80} is wrong; accepted is a path such as orders, orders/* or"
            " topic/Subscriptions/name"
        )
    return value.strip("/")


def _direction(kind: FaultKind, value: object) -> str | None:
    if value is None:
        return None
    if not kind.directions:
        raise InvalidFault(f"{kind.name}: it acts below all operations, so it takes no direction")
    if value not in kind.directions:
        raise InvalidFault(
            f"{kind.name}: direction {value!r:.80} is wrong; accepted: {', '.join(kind.directions)}, or none for all"
        )
    return str(value)


def _duration(kind: FaultKind, name: str, value: object) -> float:
    try:
        duration = read_duration(value)
    except ValueError as error:
        raise InvalidFault(f"{kind.name}: {name}: {error}") from None
    return duration


def _number(kind: FaultKind, name: str, value: object) -> float:
    if name.endswith("bytes_per_s"):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= BYTES_PER_S_MAX:
            raise InvalidFault(
                f"{kind.name}: {name} {value!r:.80} is wrong; accepted is a number from 1 to {BYTES_PER_S_MAX}"
            )
        return float(value)
    return _duration(kind, name, value)


def _probability(kind: FaultKind, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidFault(f"{kind.name}: probability {value!r:.80} is wrong; accepted is a number above 0, up to 1")
    return float(value)


def _count(kind: FaultKind, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidFault(f"{kind.name}: count {value!r:.80} is wrong; accepted is a whole number from 1")
    return value
