"""Prometheus' text format, version 0.0.4, as a pure function over families of samples."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

FamilyKind = Literal["counter", "gauge", "histogram"]
Sample = tuple[str, str, float]
"(suffix of the name, labels as `labels` writes them, value)."

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_SUFFIX: dict[FamilyKind, str] = {"counter": "_total", "gauge": "", "histogram": ""}
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric. The name of a counter ends with `_total`."""

    name: str
    kind: FamilyKind
    help: str
    samples: Sequence[Sample]

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} is no name of a metric")
        if not self.name.endswith(_SUFFIX[self.kind]):
            raise ValueError(f"{self.name!r} is a {self.kind}; its name must end with {_SUFFIX[self.kind]}")


def labels(**values: str) -> str:
    """Write labels, their values escaped; made once for all samples of an entity."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in values.items()])


def escaped(value: str) -> str:
    """Escape the value of a label; names of entities hardly ever need it."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.translate(_VALUE_ESCAPES)
    return value


def render(family: Family) -> str:
    """Write one family: its help, its type, and a line for each sample."""
    head = f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {family.name} {family.kind}\n"
    name = family.name
    lines = [
        f"{name}{suffix}{f'{{{label_text}}}' if label_text else ''} {value if type(value) is int else number(value)}\n"
        for suffix, label_text, value in family.samples
    ]
    return head + "".join(lines)


def render_all(families: Iterable[Family]) -> Iterator[str]:
    """Write families one by one. ValueError when a name comes twice: Prometheus would refuse the whole page."""
    seen: set[str] = set()
    for family in families:
        if family.name in seen:
            raise ValueError(f"the family {family.name} comes twice")
        seen.add(family.name)
        yield render(family)


def number(value: float) -> str:
    """Write a value as Prometheus reads it."""
    if isinstance(value, int):
        return str(int(value))  # a bool is an int too
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


class Histogram:
    """Counts of values by size. `observe` costs less than a microsecond."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start empty. `bounds`: ascending upper bounds; a value above the last one is counted too."""
        if list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of a histogram must ascend: {bounds}")
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def samples(self, label_text: str) -> list[Sample]:
        """Return the samples of a family: cumulative buckets, sum and count."""
        before = f"{label_text}," if label_text else ""
        sums = list(accumulate(self._counts))
        names = [*map(number, map(float, self._bounds)), "+Inf"]
        buckets: list[Sample] = [
            ("_bucket", f'{before}le="{name}"', up_to) for name, up_to in zip(names, sums, strict=True)
        ]
        return [*buckets, ("_sum", label_text, self.sum), ("_count", label_text, sums[-1])]
