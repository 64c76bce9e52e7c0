"""The clock of a namespace: the machine's clock, and an offset that tests make larger.

A jump is like a machine that slept: all work that has fallen due by the new time is done once, at the new time, and is
committed when the call returns. A scheduled message that becomes active in a jump therefore begins its time to live at
the end of the jump; two calls make two steps.

| clock of the namespace (`Namespace.now_ms`) | machine's clock (`Namespace.real_ms`, the event loop's time) |
| --- | --- |
| locks of messages and sessions, their renewal | tokens: `$cbs`, HTTP, the end of a link whose token expired |
| times to live, scheduled messages | idle time-outs of connections and links, heartbeats |
| windows of duplicate detection | waiting for a session, for the answer to a request, for first bytes |
| deletion of idle entities, times of last use | meter and ledger, time stamps in the texts of errors |
| times that clients see of a message or an entity | pauses before the store, a forwarder or the sweep tries again |

The offset is not stored: after a restart the clock is the machine's again.

The machine's clock shows dates, and may be set while the broker runs. Dates follow it: times to live, scheduled
messages, windows of duplicate detection. What lasts does not: locks of messages and sessions, idle times of entities,
pauses. They are kept as times of this clock too, because clients see them so; when the machine's clock has been set,
which a second clock that nobody can set shows, they are shifted by the same step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pairbus.errors import ConfigError

STEP_MS = 500  # a smaller difference between the two clocks of the machine is drift, and waits until it has grown
OFFSET_MAX_S = 100 * 366 * 86_400  # a century: far below the year 9999, where the dates of Python and of clients end


_STEADY = getattr(time, "CLOCK_BOOTTIME", None)
"Clock that counts also while the machine sleeps, where the system has one."


def wall_ms() -> int:
    """Return the machine's time in milliseconds since 1970: whoever administers the machine may set it."""
    return time.time_ns() // 1_000_000


def machine_steady_ms() -> int:
    """Return milliseconds since some time in the past, by a clock that nobody can set."""
    return (time.monotonic_ns() if _STEADY is None else time.clock_gettime_ns(_STEADY)) // 1_000_000


class NamespaceClock:
    """The time of one namespace; `advance` only moves it forward."""

    def __init__(
        self,
        real_ms: Callable[[], int],
        catch_up: Callable[[], Awaitable[None]],
        *,
        steady_ms: Callable[[], int],
        stepped: Callable[[int], None],
    ) -> None:
        """Make the clock. `catch_up` does all work that has fallen due, and returns when it is committed.

        `steady_ms`: a clock that nobody can set; `stepped(ms)` is called when `real_ms` was set forward by so much.
        """
        self._real_ms = real_ms
        self._steady_ms = steady_ms
        self._stepped = stepped
        self._ahead_ms = real_ms() - steady_ms()
        self._catch_up = catch_up
        self._offset_ms = 0

    def __repr__(self) -> str:
        return f"<NamespaceClock {self.now().isoformat()} offset={self.offset}>"

    def now_ms(self) -> int:
        """Read the clock in milliseconds since 1970."""
        real_ms = self._real_ms()
        step_ms = real_ms - self._steady_ms() - self._ahead_ms
        if not -STEP_MS < step_ms < STEP_MS:
            self._ahead_ms += step_ms
            self._stepped(step_ms)
        return real_ms + self._offset_ms

    def now(self) -> datetime:
        """Read the clock as a date in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    @property
    def offset(self) -> timedelta:
        """Time by which this clock is ahead of the machine's."""
        return timedelta(milliseconds=self._offset_ms)

    async def advance(self, seconds: float | timedelta) -> datetime:
        """Move the clock forward, do all work that falls due, and return the new time.

        ValueError: the length is negative or not finite, or leads too far. StoreError: the clock has moved, and the
        failed work is tried again.
        """
        await self._move(_seconds(seconds))
        return self.now()

    async def advance_to(self, when: datetime) -> datetime:
        """Move the clock to a date with a time zone that is not in the clock's past; errors as of `advance`."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise ValueError(
                f"a date with a time zone is needed, such as datetime(2030, 1, 1, tzinfo=UTC), not {when!r}"
            )
        left_s = when.timestamp() - self.now_ms() / 1000
        if left_s < 0:
            raise ValueError(f"{when.isoformat()} is before {self.now().isoformat()}: the clock moves forward only")
        await self._move(left_s)
        return self.now()

    async def _move(self, seconds: float) -> None:
        if seconds > OFFSET_MAX_S - self._offset_ms / 1000:
            raise ValueError(f"the clock can be at most {OFFSET_MAX_S // (366 * 86_400)} years ahead of the machine's")
        self._offset_ms += round(seconds * 1000)
        await self._catch_up()


def _seconds(length: float | timedelta) -> float:
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if isinstance(length, bool) or not isinstance(length, int | float):
        raise ValueError(f"a number of seconds or a timedelta is needed, not {length!r}")
    if length < 0 or (isinstance(length, float) and not math.isfinite(length)):
        raise ValueError(f"the clock moves forward only, by a finite number of seconds, not by {length!r}")
    return length


# ── JSON ──


def clock_json(clock: NamespaceClock) -> dict[str, Any]:
    """Answer `GET /$pairbus/clock`."""
    return {"now": clock.now().isoformat(), "offset_seconds": clock.offset.total_seconds()}


async def move_clock(clock: NamespaceClock, asked: Any) -> dict[str, Any]:
    """Answer `POST /$pairbus/clock`: `{"advance_seconds": 60}` or `{"advance_to": "2030-01-01T00:00:00Z"}`.

    ConfigError: the request is wrong, and the clock has not moved.
    """
    match asked:
        case {"advance_seconds": seconds, **others} if not others:
            move = clock.advance(seconds)
        case {"advance_to": str(text), **others} if not others:
            move = clock.advance_to(_date(text))
        case _:
            raise ConfigError('the body must be {"advance_seconds": number} or {"advance_to": "date with time zone"}')
    try:
        await move
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return clock_json(clock)


def _date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a date such as 2030-01-01T00:00:00Z") from None
