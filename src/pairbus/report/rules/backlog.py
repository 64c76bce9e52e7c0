"""Computes depth and age of the backlog over time, and the delay of messages that came home.

Ledgers may be of any size, so the waits of messages are looked at in blocks, twice, and the driver gets only sums:
first counts by second, and delays by classes; then exact values at the chosen points and within the classes that have a
percentile. Blocks are numpy arrays, in a worker of Spark or, for a small ledger, on the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from pairbus.report.model import BacklogPoint, Delay
from pairbus.report.passes.records import Sum
from pairbus.report.rules.times import text_of

if TYPE_CHECKING:
    import numpy as np

    Int64Array = np.ndarray[tuple[int], np.dtype[np.int64]]

POINTS_MAX = 500
BUCKETS = (POINTS_MAX - 2) // 2  # two points of each, the highest and the last second; and the ends of the period
PERCENTILES = (50, 95, 99, 100)
ALL = "*"
DELAY_LIMITS_S = (
    *(round(step * 10.0**power, 2) for power in range(-1, 5) for step in (1, 1.5, 2, 3, 5, 7)),
    *(100_000.0, 250_000.0, 1_000_000.0, 10_000_000.0),
)
"Upper limits of bars for delays of very different length: 40 of them, from a tenth of a second to four months."
BARS_MAX = 20
"Bars of equal length, for delays that do not differ that much."
BAR_STEPS_MS = (
    *(step * 10**power for power in range(5) for step in (1, 2, 5)),
    *(step * 60_000 for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(step * 86_400_000 for step in (1, 2, 7, 14, 28)),
)
WIDE_SPREAD = 10
"Ratio of the longest delay to the median from which on bars of equal length would put most messages into one."
NEVER = -(2**63)
"Time that is absent, in an array."
CLASS_BITS = 12
SPAN = 1000  # factor that packs two points into one number: the first and the last at which a message waits
CHANGE, CLASS, BAR, WAITING, DELAY, OLDEST = "change", "class", "bar", "waiting", "delay", "oldest"
AT_BEGIN, AT_END = 0, 1


@dataclass(frozen=True, slots=True)
class Block:
    """Waits of some messages: an entity and three times each."""

    entities: Sequence[str]
    entity: Int64Array
    "Index of the entity in `entities`."
    diverted_ms: Int64Array
    home_ms: Int64Array
    ended_ms: Int64Array


@dataclass(frozen=True, slots=True)
class Question:
    """Points and classes of delays for the second look."""

    seconds: tuple[int, ...]
    "Seconds of the points, in order."
    classes: frozenset[tuple[str, int]]
    "Entity, or ALL, and class of its delays."
    limits_ms: tuple[int, ...] = ()
    "Upper limits of the histogram's bars."


@dataclass(frozen=True, slots=True)
class FirstLook:
    """Sums of the first look at all blocks; seconds, of which there may be a million, in arrays."""

    seconds: Int64Array
    "Seconds with a change of the depth, in any order."
    steps: Int64Array
    sums: Iterable[Sum]
    "All sums but the changes."


class Waits(Protocol):
    """Waits of all diverted messages, in the workers or on the driver."""

    def first_look(self, begins_ms: int) -> FirstLook: ...

    def second_look(self, question: Question) -> Iterable[Sum]: ...


def class_of(delay_ms: int) -> int:
    """Return the class of a delay: the delay itself when it is short, or else its highest bits."""
    shift = max(delay_ms.bit_length() - CLASS_BITS, 0)
    return (shift << CLASS_BITS) + (delay_ms >> shift)


# ── the two looks at a block ──


def changes(block: Block) -> tuple[Int64Array, Int64Array]:
    """Return the seconds in which the depth changed, and by how much."""
    import numpy as np

    ended = block.ended_ms[block.ended_ms != NEVER]
    times = np.concatenate([block.diverted_ms, ended])
    steps = np.concatenate([np.ones(len(block.diverted_ms), np.int64), -np.ones(len(ended), np.int64)])
    seconds, places = np.unique(times // 1000, return_inverse=True)
    sums = np.zeros(len(seconds), np.int64)
    np.add.at(sums, places, steps)
    return seconds, sums


def look_first(block: Block, begins_ms: int) -> Iterator[Sum]:
    """Yield delays by class, and the messages that wait at the ends of the period."""
    for name, delays in _delays(block):
        classes = _classes(delays)
        yield from (Sum(CLASS, name, number, count, None) for number, count in _counted(classes))
    waits = block.ended_ms == NEVER
    at_begin = (block.diverted_ms <= begins_ms) & (waits | (block.ended_ms > begins_ms))
    yield Sum(WAITING, "", AT_BEGIN, int(at_begin.sum()), None)
    yield Sum(WAITING, "", AT_END, int(waits.sum()), int(block.diverted_ms[waits].min()) if waits.any() else None)


def look_again(block: Block, question: Question) -> Iterator[Sum]:
    """Yield delays one by one within the asked classes, all delays by bar, and the oldest message by the points at
    which it waits."""
    import numpy as np

    limits = np.array(question.limits_ms, np.int64)
    for name, delays in _delays(block):
        bars = np.minimum(np.searchsorted(limits, delays), len(limits) - 1)
        yield from (Sum(BAR, "", number, count, None) for number, count in _counted(bars))
        classes = _classes(delays)
        for of in (name, ALL):
            open_numbers = [number for entity, number in question.classes if entity == of]
            in_classes = delays[np.isin(classes, np.array(open_numbers, np.int64))]
            yield from (Sum(DELAY, of, delay_ms, count, None) for delay_ms, count in _counted(in_classes))
    points = np.array(question.seconds, np.int64)
    first = np.searchsorted(points, block.diverted_ms // 1000)
    last = np.where(
        block.ended_ms == NEVER, len(points) - 1, np.searchsorted(points, block.ended_ms // 1000, side="left") - 1
    )
    covers = first <= last
    numbers, places = np.unique(first[covers] * SPAN + last[covers], return_inverse=True)
    least = np.full(len(numbers), 2**63 - 1, np.int64)
    np.minimum.at(least, places, block.diverted_ms[covers])
    yield from (Sum(OLDEST, "", int(number), 0, int(ms)) for number, ms in zip(numbers, least, strict=True))


def _delays(block: Block) -> Iterator[tuple[str, Int64Array]]:
    """Yield the delays of the messages that came home, by entity."""
    is_home = block.home_ms != NEVER
    for index, name in enumerate(block.entities):
        of_entity = is_home & (block.entity == index)
        yield name, block.home_ms[of_entity] - block.diverted_ms[of_entity]


def _classes(delays: Int64Array) -> Int64Array:
    """Return the classes of delays, as `class_of` does."""
    import numpy as np

    bits: Int64Array = np.frexp(delays.astype(np.float64))[1].astype(np.int64)  # exact: a delay has less than 53 bits
    shift: Int64Array = np.maximum(bits - CLASS_BITS, 0)
    return (shift << CLASS_BITS) + (delays >> shift)


def _counted(values: Int64Array) -> Iterator[tuple[int, int]]:
    import numpy as np

    distinct, counts = np.unique(values, return_counts=True)
    return ((int(value), int(count)) for value, count in zip(distinct, counts, strict=True))


# ── figures ──


def backlog_and_delays(
    waits: Waits, begins_ms: int, ends_ms: int
) -> tuple[list[BacklogPoint], dict[str, Delay], tuple[tuple[float, int], ...]]:
    """Return the points of the backlog's curve; delays by entity, with all together under `*`; and the histogram of
    all.

    Percentiles are exact nearest ranks.
    """
    look = waits.first_look(begins_ms)
    classes: dict[str, dict[int, int]] = {}
    bars: dict[int, int] = {}
    ends: dict[int, tuple[int, int | None]] = {}
    for each in look.sums:
        if each.name == CLASS:
            for name in (each.entity, ALL):
                of = classes.setdefault(name, {})
                of[each.number] = of.get(each.number, 0) + each.counted
        else:
            ends[each.number] = each.counted, each.least_ms
    points = _kept(look.seconds, look.steps)
    classes_to_open = {name: _classes_of_percentiles(counts) for name, counts in classes.items()}
    open_classes = frozenset((name, number) for name, numbers in classes_to_open.items() for number in numbers)
    limits_ms = bar_limits(classes[ALL]) if ALL in classes else ()
    question = Question(tuple(second for second, _ in points), open_classes, limits_ms)
    exact: dict[str, dict[int, int]] = {}
    spans: list[tuple[int, int, int]] = []
    for each in waits.second_look(question) if points else ():
        if each.name == DELAY:
            exact.setdefault(each.entity, {})[each.number] = each.counted
        elif each.name == BAR:
            bars[each.number] = bars.get(each.number, 0) + each.counted
        elif each.least_ms is not None:
            spans.append((*divmod(each.number, SPAN), each.least_ms))
    delays = {name: _delay(counts, exact[name]) for name, counts in classes.items()}
    oldest = _walk(spans, len(points))
    return _points(points, oldest, ends, begins_ms, ends_ms), delays, _bars(bars, limits_ms)


def _kept(seconds: Int64Array, steps: Int64Array) -> list[tuple[int, int]]:
    """Return the seconds that become points, and the depth after each.

    When more than 498 seconds have a change, they are cut into 249 groups of the same size, and each group keeps its
    highest and its last second: a short outage in a long period is not missed.
    """
    import numpy as np

    order = np.argsort(seconds)
    depths = np.cumsum(steps[order])
    indexes = list(range(len(order)))
    if len(order) > 2 * BUCKETS:
        groups = np.arange(len(order)) * BUCKETS // len(order)
        ends = [*np.flatnonzero(np.diff(groups)) + 1, len(order)]
        begins = [0, *ends[:-1]]
        highest = [begin + int(np.argmax(depths[begin:end])) for begin, end in zip(begins, ends, strict=True)]
        indexes = sorted({*highest, *(int(end) - 1 for end in ends)})
    return [(int(seconds[order[index]]), int(depths[index])) for index in indexes]


def _points(
    depths_by_second: Sequence[tuple[int, int]],
    oldest: Mapping[int, int],
    ends: Mapping[int, tuple[int, int | None]],
    begins_ms: int,
    ends_ms: int,
) -> list[BacklogPoint]:
    """Return points at the ends of the period and after seconds with a change.

    With up to 249 such seconds there is also a point at the end of each quiet time: messages grow older while nothing
    changes.
    """
    waiting, left = ends.get(AT_BEGIN, (0, None)), ends.get(AT_END, (0, None))
    points = [BacklogPoint(text_of(begins_ms), waiting[0], 0.0)]
    is_all = len(depths_by_second) <= BUCKETS  # otherwise there is no room for further points
    for index, (second, depth) in enumerate(depths_by_second):
        quiet_ms, time_ms = second * 1000 - 1, min(second * 1000 + 999, ends_ms)
        before = depths_by_second[index - 1] if index and is_all else None
        if before is not None and before[0] < second - 1 and begins_ms < quiet_ms < ends_ms:
            points.append(BacklogPoint(text_of(quiet_ms), before[1], _age_s(quiet_ms, oldest.get(index - 1))))
        if begins_ms < time_ms < ends_ms:
            points.append(BacklogPoint(text_of(time_ms), depth, _age_s(time_ms, oldest.get(index))))
    if ends_ms > begins_ms:
        points.append(BacklogPoint(text_of(ends_ms), left[0], _age_s(ends_ms, left[1])))
    return points


def _age_s(time_ms: int, since_ms: int | None) -> float:
    return 0.0 if since_ms is None else max(0, time_ms - since_ms) / 1000


def _walk(spans: Sequence[tuple[int, int, int]], points: int) -> dict[int, int]:
    """Return point → the least value of the spans that cover it."""
    starting: dict[int, list[tuple[int, int]]] = {}
    for first, last, value in spans:
        starting.setdefault(first, []).append((value, last))
    open_spans: list[tuple[int, int]] = []
    least = {}
    for point in range(points):
        for span in starting.get(point, ()):
            heappush(open_spans, span)
        while open_spans and open_spans[0][1] < point:
            heappop(open_spans)
        if open_spans:
            least[point] = open_spans[0][0]
    return least


# ── percentiles ──


def _classes_of_percentiles(counts: Mapping[int, int]) -> set[int]:
    return {_at_rank(counts, rank)[0] for rank in _ranks(counts)}


def _delay(classes: Mapping[int, int], exact: Mapping[int, int]) -> Delay:
    """Return percentiles from counts by class, and counts one by one within the needed classes."""
    by_class: dict[int, dict[int, int]] = {}
    for delay_ms, count in exact.items():
        by_class.setdefault(class_of(delay_ms), {})[delay_ms] = count
    percentiles = []
    for rank in _ranks(classes):
        number, before = _at_rank(classes, rank)
        percentiles.append(_at_rank(by_class[number], rank - before)[0] / 1000)
    return Delay(sum(classes.values()), *percentiles)


def _ranks(counts: Mapping[int, int]) -> list[int]:
    """Return the ranks of the percentiles: for p, the least whole number that is at least p/100 of all."""
    total = sum(counts.values())
    return [-(-percent * total // 100) for percent in PERCENTILES]


def _at_rank(counts: Mapping[int, int], rank: int) -> tuple[int, int]:
    """Return the value at a rank, and how many values are below it."""
    before = 0
    for value in sorted(counts):
        if before + counts[value] >= rank:
            return value, before
        before += counts[value]
    raise AssertionError("the rank is beyond all values")


def bar_limits(classes: Mapping[int, int]) -> tuple[int, ...]:
    """Choose upper limits of the bars from the counts of all delays by class.

    Bars are of equal length, at round times, unless the longest delay is much longer than the median.
    """
    low_ms, top_ms = _ends_of(min(classes))[0], _ends_of(max(classes))[1]
    median_ms = _ends_of(_at_rank(classes, _ranks(classes)[0])[0])[0]
    if top_ms > WIDE_SPREAD * max(median_ms, 100):
        limits = [round(limit * 1000) for limit in DELAY_LIMITS_S]
        first = max((index for index, limit in enumerate(limits) if limit < low_ms), default=0)
        last = next((index for index, limit in enumerate(limits) if limit >= top_ms), len(limits) - 1)
        return tuple(limits[first : last + 1])
    from_ms = low_ms if 4 * low_ms > top_ms else 0
    step_ms = next((step for step in BAR_STEPS_MS if top_ms - from_ms <= step * BARS_MAX), None)
    step_ms = step_ms or -(-(top_ms - from_ms) // BARS_MAX)
    first_ms = max((from_ms - 1) // step_ms, 0) * step_ms  # a delay of exactly a limit belongs below it
    return tuple(range(first_ms or step_ms, max(top_ms, 1) + step_ms, step_ms))


def _ends_of(number: int) -> tuple[int, int]:
    """Return the shortest and longest delay of a class, in milliseconds."""
    shift = number >> CLASS_BITS
    least_ms = (number - (shift << CLASS_BITS)) << shift
    return least_ms, least_ms + (1 << shift) - 1


def _bars(messages: Mapping[int, int], limits_ms: Sequence[int]) -> tuple[tuple[float, int], ...]:
    """Return the bars up to the last one with messages; the first is empty when the data begin behind it."""
    if not messages:
        return ()
    first = max(min(messages) - 1, 0)
    return tuple((limits_ms[i] / 1000, messages.get(i, 0)) for i in range(first, max(messages) + 1))


def added(sums: Iterable[Sum]) -> list[Sum]:
    """Sum the sums of the same name, entity and number."""
    sums_by_key: dict[tuple[str, str, int], tuple[int, int | None]] = {}
    for each in sums:
        key = each.name, each.entity, each.number
        count, least_ms = sums_by_key.get(key, (0, None))
        times = [time for time in (least_ms, each.least_ms) if time is not None]
        sums_by_key[key] = count + each.counted, min(times, default=None)
    return [Sum(*key, *value) for key, value in sums_by_key.items()]
