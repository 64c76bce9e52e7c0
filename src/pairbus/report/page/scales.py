"""Chooses the ticks of an axis: their places and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor, log10

from pairbus.report.page.words import THIN, Calendar, count

MINUTE, HOUR, DAY = 60, 3600, 86400
TIME_STEPS_S = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(MINUTE * step for step in (1, 2, 5, 10, 15, 30)),
    *(HOUR * step for step in (1, 2, 3, 6, 12)),
    *(DAY * step for step in (1, 2, 7, 14, 28, 91, 182, 364)),
)


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    "Position on the axis, from 0 to 1."
    label: str
    minor: bool = False
    "True for a tick without a label on a narrow page."
    more: str = ""
    "Rest of the label, for a page that is not narrow."


def time_ticks(calendar: Calendar, ticks_max: int = 8) -> list[Tick]:
    """Return ticks at round times of UTC; every second one is minor."""
    length_s = calendar.seconds
    if length_s <= 0:
        return [Tick(0.0, f"{calendar.begins:%H:%M:%S}")]
    step_s = next((step for step in TIME_STEPS_S if length_s / step <= ticks_max), TIME_STEPS_S[-1])
    midnight = datetime(calendar.begins.year, calendar.begins.month, calendar.begins.day, tzinfo=UTC)
    first = ceil((calendar.begins - midnight).total_seconds() / step_s - 1e-9)
    ticks: list[Tick] = []
    while True:
        at = midnight + timedelta(seconds=step_s * (first + len(ticks)))
        share = (at - calendar.begins).total_seconds() / length_s
        if share > 1 + 1e-9:
            return ticks
        ticks.append(Tick(share, _time_label(at, step_s), minor=len(ticks) % 2 == 1))


def _time_label(at: datetime, step_s: float) -> str:
    if step_s >= DAY or (at.hour == at.minute == at.second == 0 and step_s >= HOUR):
        return f"{at.day} {at:%b}"
    if step_s >= MINUTE:
        return f"{at:%H:%M}"
    return f"{at:%H:%M:%S}" + (f".{at.microsecond // 100_000}" if step_s < 1 else "")


def number_ticks(top: float, ticks_max: int = 4, *, whole: bool = False) -> list[float]:
    """Return round numbers from 0 to the first that is at least `top`; only whole ones when `whole`."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / ticks_max
    power = 10.0 ** floor(log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    return [step * number for number in range(ceil(top / step - 1e-9) + 1)]


def count_labels(values: Sequence[float]) -> list[str]:
    return [count(round(value)) for value in values]


def duration_ticks(top_s: float, ticks_max: int = 4) -> tuple[list[float], list[str]]:
    """Return ticks and their labels, all in one unit: 0, 5, 10, 15 min."""
    for unit_s, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        if top_s >= 2 * unit_s or unit == "s":
            break
    values = number_ticks(top_s / unit_s, ticks_max)
    return [value * unit_s for value in values], ["0" if not value else f"{value:g}{THIN}{unit}" for value in values]
