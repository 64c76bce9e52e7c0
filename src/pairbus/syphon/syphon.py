"""A syphon: its pumps, the probe of the primary, stopping them, and their progress."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pairbus.backlog.reader import Reader
from pairbus.pairing.events import Event, PrimaryUnreachable
from pairbus.pairing.policy import Failure, Kind
from pairbus.syphon.decide.batch import Opener
from pairbus.syphon.decide.destinations import Destinations
from pairbus.syphon.decide.pace import Budget
from pairbus.syphon.decide.redriving import Redriving, entity_of_dead_letters, queue_of_dead_letters
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.syphon.presence import Presence
from pairbus.syphon.pump import Pump
from pairbus.syphon.receive import LINGER_S
from pairbus.syphon.shared import Meter, SyphonState, wall_ms
from pairbus.transport import Carrier

STOP_GRACE_S = 5.0
RATE_WINDOW_S = 5.0


@dataclass(frozen=True, slots=True)
class SyphonProgress:
    """Counts of a syphon so far."""

    queues: int
    moved: int
    "Messages that are at home; each counts once."
    per_s: float
    "Messages moved a second, over the last seconds."
    blocked: int
    "Messages that wait for their destination; `run_once` counts a message again in each of its passes."
    dead_lettered: int
    errors: int
    waiting: int | None = None
    "Messages in the queues; None when they were not counted."
    uncompleted: int = 0
    "Messages that are at home and still in their queue, because the secondary failed to complete them."
    is_away: bool = False
    "True while the primary as a whole cannot be reached."


class Syphon:
    """Syphon of some backlog queues. The caller owns the carriers and closes them."""

    def __init__(  # noqa: PLR0913 - the parts of a syphon: its two ends, what it reports to, and its clocks
        self,
        primary: Carrier,
        secondary: Carrier,
        queues: Sequence[str],
        *,
        settings: SyphonSettings,
        publish: Callable[[Event], None],
        meter: Meter | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_ms,
        new_opener: Callable[[], Opener] = lambda: Reader().unwrap,
        sub_queue: Literal["dead-letter"] | None = None,
    ) -> None:
        self._shared = SyphonState(
            primary,
            secondary,
            settings,
            publish,
            meter or _no_meter,
            clock,
            wall_ms,
            new_opener,
            dead_letters=sub_queue is None,
            destinations=Destinations(settings.missing_destination_grace_s),
            budget=Budget(settings.max_messages_per_second),
            presence=Presence(settings.retry_interval_s),
            pumps=max(len(queues), 1),
        )
        self._sub_queue = sub_queue
        self._stopping = asyncio.Event()
        self._adopted = asyncio.Event()
        self._pumps = [Pump(self._shared, queue, self._stopping, sub_queue) for queue in queues]
        self._tasks: list[asyncio.Task[None]] = []
        self._samples: deque[tuple[float, int]] = deque()

    def __repr__(self) -> str:
        now = self.progress()
        return f"<Syphon {now.queues} queues moved={now.moved} blocked={now.blocked} errors={now.errors}>"

    async def run(self) -> None:
        """Move messages until `stop`; a failing queue or destination is reported in events and tried again."""
        shared = self._shared
        watch = shared.presence.watch(
            shared.primary, shared.settings.send_timeout_s, shared.clock, shared.publish, self._answered
        )
        probe = asyncio.create_task(watch)
        try:
            await self._run([pump.run() for pump in self._pumps], to_first_failure=True, probe=probe)
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    async def run_once(self, wait_s: float = LINGER_S) -> SyphonProgress:
        """Drain each queue of the messages that are there now, until none arrives for `wait_s`.

        Messages that arrive meanwhile stay, and blocked ones are released at the end. The drain ends early when the
        primary cannot be reached. TransportError when a queue cannot be read.
        """
        try:
            await self._run([pump.run_once(wait_s) for pump in self._pumps], to_first_failure=False)
        finally:
            presence = self._shared.presence
            if presence.is_away:
                name = self._shared.primary.endpoint.authority
                away_s = self._shared.clock() - presence.since
                self._shared.publish(PrimaryUnreachable(name, presence.reason, away_s, None))
        return self.progress()

    def _answered(self, path: str, failure: Failure) -> None:
        """Note the probe's answer: an entity that is busy gets no messages for ten seconds."""
        if failure.kind is Kind.BUSY:
            self._shared.destinations.failed(path, failure, self._shared.clock(), at_attach=True)

    def adopt(self, queues: Iterable[str]) -> None:
        """Add pumps for queues that were created while `run` goes on."""
        for queue in queues:
            pump = Pump(self._shared, queue, self._stopping, self._sub_queue, is_new=True)
            self._pumps.append(pump)
            if self._tasks:  # otherwise `run` has not begun, and will start all pumps
                self._tasks.append(asyncio.create_task(pump.run()))
        self._shared.pumps = len(self._pumps)
        self._adopted.set()

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Receive no more, give messages on their way `grace_s` to arrive, and leave no message locked."""
        self._stopping.set()
        tasks = [task for task in self._tasks if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def progress(self) -> SyphonProgress:
        moved = sum(pump.moved for pump in self._pumps)
        return SyphonProgress(
            queues=len(self._pumps),
            moved=moved,
            per_s=self._rate(moved),
            blocked=sum(pump.blocked for pump in self._pumps),
            dead_lettered=sum(pump.dead_lettered for pump in self._pumps),
            errors=sum(pump.errors for pump in self._pumps),
            uncompleted=sum(pump.uncompleted for pump in self._pumps),
            is_away=self._shared.presence.is_away,
        )

    def _rate(self, moved: int) -> float:
        """Return the rate since the oldest call within the window."""
        now = self._shared.clock()
        while self._samples and now - self._samples[0][0] > RATE_WINDOW_S:
            self._samples.popleft()
        then, moved_then = self._samples[0] if self._samples else (now, moved)
        self._samples.append((now, moved))
        return (moved - moved_then) / (now - then) if now > then else 0.0

    async def _run(
        self,
        works: list[Coroutine[Any, Any, None]],
        *,
        to_first_failure: bool,
        probe: asyncio.Task[None] | None = None,
    ) -> None:
        """Run the pumps, and raise the first error of one, or of the probe, without which pumps may wait for ever."""
        self._tasks = [asyncio.create_task(work) for work in works]
        beside = [] if probe is None else [probe]
        try:
            while under_way := [task for task in self._tasks if not task.done()]:
                adopted = asyncio.create_task(self._adopted.wait())
                try:
                    await asyncio.wait([*under_way, *beside, adopted], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    adopted.cancel()
                self._adopted.clear()
                if to_first_failure and any(map(_has_failed, [*beside, *self._tasks])):
                    break
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in [*beside, *self._tasks]:
            if task.done() and not task.cancelled():  # `stop` cancels tasks, and so does the failure of another task
                task.result()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def redrive(  # noqa: PLR0913 - the options of the command, as keywords
    source: Carrier,
    queue: str,
    *,
    target: str | None = None,
    destination: Carrier | None = None,
    settings: SyphonSettings | None = None,
    publish: Callable[[Event], None],
    meter: Meter | None = None,
    duplicate_window_s: float | None = None,
    new_ids: bool = False,
) -> Syphon:
    """Make a syphon from the dead-letter queue of `queue` (or of `topic/Subscriptions/name`) back to its entity.

    `target` is another entity, `destination` another namespace. Messages that cannot be sent stay in the queue. So do
    messages whose ids the entity may remember, because it would drop them as duplicates: `duplicate_window_s` is the
    time for which it remembers ids; 0: it does not; None: not known, a week is assumed. With `new_ids` these messages
    are sent with a new id, and keep their own in the application property `x-pairbus-original-message-id`.
    """
    queue = queue_of_dead_letters(queue)
    origin = f"{source.endpoint.authority}/{queue}"
    letters = Redriving(target or entity_of_dead_letters(queue), origin, duplicate_window_s, new_ids)
    return Syphon(
        destination or source,
        source,
        [queue],
        settings=settings or SyphonSettings(),
        publish=publish,
        meter=meter,
        new_opener=lambda: letters.opener(wall_ms),
        sub_queue="dead-letter",
    )


def _no_meter(
    namespace: Literal["primary", "secondary"], entity: str, kind: str, count: int, size_bytes: int, outcome: str, /
) -> None:
    pass
