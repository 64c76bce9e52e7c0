"""Forwarding spooled messages: home when their entity is healthy, otherwise to a backlog queue.

    forwarder = Forwarder(spool, ways, primary, secondary, publish=print)
    await forwarder.run()            # until `stop`; new messages wake it
    left = await forwarder.drain_once()

Laws of this file.
 1. A message leaves the spool only after a namespace has accepted it. A crash in between sends it twice, with the same
    message id; it is never lost. Up to `BATCH_COUNT` leave with one commit, at most `REMOVE_S` after the first.
 2. A message that was sent without an answer is noted in the spool before it is sent again.
 3. This file waits for disk and network; `spool/lanes.py` and `Ways` decide.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Literal, Protocol, TypeVar

from pairbus.backlog.envelope import Envelope
from pairbus.backlog.filing import together
from pairbus.errors import ConfigError, SpoolError
from pairbus.ledger.rows import billing_groups
from pairbus.pairing.events import Event, MaybeDuplicated, SpoolForwarded, SpoolRefused
from pairbus.pairing.policy import MESSAGE_FAULTS, Failure, Kind
from pairbus.spool import Spool, SpoolEntry
from pairbus.spool.lanes import AT_ONCE, MISSING_GRACE_S, PAUSE_MAX_S, PRIMARY, Lane, Verdict, Way, wrapped
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.spool.forwarder")

BATCH_COUNT = 100
BATCH_BYTES = 192 * 1024  # fits the 256 KB of the Standard tier with room for aliases and the batch's own sections
REMOVE_S = 0.25  # longest time that an accepted message stays in the file, so that others share its fsync
SEND_TIMEOUT_S = 15.0
LOOK_S = 1.0  # between two looks of a waiting lane for another way
PATIENCE_S = 30.0
LAST_WRITE_S = 1.0  # for the disk when a lane ends or is cancelled

T = TypeVar("T")
Numbered = list[tuple[int, SpoolEntry]]


class Ways(Protocol):
    """Choice of the side for each path. Called from the forwarder's event loop; `now` is that of `time.monotonic`."""

    def way(self, path: str, now: float) -> Way | None:
        """Return the way for a path: PRIMARY, or a backlog queue; None when neither side takes messages."""
        ...

    def accepted(self, path: str, way: Way, count: int, now: float) -> None: ...

    def failed(self, path: str, way: Way, failure: Failure, now: float) -> None:
        """Note a failure of the way; failures that are a message's own fault are not reported here."""
        ...


class ForwarderMeter(Protocol):
    """Type of `Ledger.meter`."""

    def __call__(  # noqa: PLR0917 - the fields of a row of the ledger
        self,
        side: Literal["primary", "secondary"],
        namespace: str,
        entity: str,
        kind: Literal["send"],
        size_bytes: int,
        count: int = 1,
        outcome: str = "ok",
        *,
        cause: Literal["spool"],
    ) -> None: ...


class Forwarder:
    """Forwarder of one spool in one event loop; `wake`, `retry_now` and `stop` may be called from any thread.

    Without a secondary every way must be PRIMARY. `disk` has the threads that wait for the spool; None: the default
    executor of the event loop.
    """

    def __init__(  # noqa: PLR0913 - the parts of a forwarder
        self,
        spool: Spool,
        ways: Ways,
        primary: Carrier,
        secondary: Carrier | None,
        *,
        publish: Callable[[Event], None],
        meter: ForwarderMeter | None = None,
        missing_grace_s: float = MISSING_GRACE_S,
        timeout_s: float = SEND_TIMEOUT_S,
        disk: Executor | None = None,
    ) -> None:
        self._spool = spool
        self._ways = ways
        self._primary = primary
        self._secondary = secondary
        self._publish = publish
        self._meter = meter
        self._missing_grace_s = missing_grace_s
        self._timeout_s = timeout_s
        self._disk = disk
        self._lanes: dict[str, Lane] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._retries: dict[str, asyncio.Event] = {}
        "Event of each lane that ends its pause."
        self._loop: asyncio.AbstractEventLoop | None = None
        self._awake = asyncio.Event()
        self._stopping = False

    def __repr__(self) -> str:
        return f"<Forwarder {self._spool!r} lanes={list(self._lanes.values())}>"

    @property
    def reasons(self) -> dict[str, str]:
        """Return path → reason, for paths whose messages do not move."""
        return {lane.path: lane.reason for lane in self._lanes.values() if lane.reason}

    async def run(self) -> None:
        """Forward all messages, later ones too, until `stop`."""
        self._loop = asyncio.get_running_loop()
        self._spool.on_append = self.wake
        try:
            while not self._stopping:
                self._awake.clear()
                try:
                    await self._start_lanes(patience_s=None)
                except SpoolError as error:
                    logger.error("%s; it is tried again in %.0f s", error, PAUSE_MAX_S)
                    self._loop.call_later(PAUSE_MAX_S, self._awake.set)
                await self._awake.wait()
            await asyncio.gather(*self._tasks.values())
        finally:
            self._spool.on_append = None
            await self._cancel()

    async def drain_once(self, patience_s: float = PATIENCE_S) -> dict[str, str]:
        """Forward the messages that are there; return path → reason for messages that are left.

        A path is given up when there is no way for it, or when none of its messages has moved for `patience_s`.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._start_lanes(patience_s)
            await asyncio.gather(*self._tasks.values())
        finally:
            await self._cancel()
        return self.reasons

    def wake(self) -> None:
        """Look for new messages, after an append."""
        self._call(self._awake.set)

    def retry_now(self) -> None:
        """End all pauses, because a side is back, except those that a throttling service asked for."""
        self._call(self._end_pauses)

    def stop(self) -> None:
        """Let `run` end when the sends under way have ended."""
        self._stopping = True
        self._call(self._end_pauses)

    def _call(self, what: Callable[[], object]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    def _end_pauses(self) -> None:
        self._awake.set()
        for key, retry in self._retries.items():
            if self._stopping or not self._lanes[key].is_busy:
                retry.set()

    # ── lanes ──

    async def _start_lanes(self, patience_s: float | None) -> None:
        for task in [task for task in self._tasks.values() if task.done()]:
            task.result()  # raises the error of a lane that ended by a bug
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
        for path in await self._on_disk(self._spool.paths):
            key = path.lower()
            if key not in self._tasks:
                lane = self._lanes.setdefault(key, Lane(path, self._missing_grace_s))
                self._retries[key] = asyncio.Event()
                task = self._tasks[key] = asyncio.create_task(self._forward_path(lane, self._retries[key], patience_s))
                task.add_done_callback(lambda _: self._awake.set())

    async def _cancel(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward_path(self, lane: Lane, retry: asyncio.Event, patience_s: float | None) -> None:
        """Forward one lane until its path is empty, the forwarder stops, or patience ends."""
        removable: list[int] = []
        try:
            await self._forward_lane(lane, retry, patience_s, removable)
        except asyncio.CancelledError:
            await self._last_removal(removable)
            raise
        await self._last_removal(removable)
        if not self._spool.has(lane.path):
            self._lanes.pop(lane.path.lower(), None)
            self._retries.pop(lane.path.lower(), None)

    async def _forward_lane(
        self, lane: Lane, retry: asyncio.Event, patience_s: float | None, removable: list[int]
    ) -> None:
        """Do the work of `_forward_path`. `removable`: accepted messages still in the file."""
        moved_at = time.monotonic()
        while not self._stopping and (self._spool.has(lane.path) or removable):
            way = self._ways.way(lane.path, time.monotonic())
            last_reason = lane.reason
            try:
                if way is not None and await self._move(lane, way, removable):
                    moved_at = time.monotonic()
                    continue
            except SpoolError as error:
                lane.stuck(str(error))
            if way is None:
                lane.reason = lane.reason or "neither namespace takes messages for it"
            if lane.reason != last_reason:
                logger.warning("%s waits in %s: %s", lane.path, self._spool.folder, lane.reason)
            pause_s = LOOK_S if way is None else lane.pause_s
            if patience_s is not None and (way is None or time.monotonic() - moved_at + pause_s > patience_s):
                return
            await self._pause(lane, way, retry, pause_s)

    async def _pause(self, lane: Lane, way: Way | None, retry: asyncio.Event, pause_s: float) -> None:
        """Wait until the time is over. `retry_now`, or another way, ends the wait earlier, except for throttling."""
        until = time.monotonic() + pause_s
        while (left_s := until - time.monotonic()) > 0:
            # At least LOOK_S long: two sides that fail in turns must not be tried without a pause.
            if await _is_set(retry, min(left_s, LOOK_S)):
                retry.clear()
                return
            other = None if way is None or lane.is_busy else self._ways.way(lane.path, time.monotonic())
            if other is not None and (other == PRIMARY) != (way == PRIMARY):
                return

    async def _move(self, lane: Lane, way: Way, removable: list[int]) -> bool:
        """Forward one batch; True when the lane may go on at once. `removable`: accepted messages still in the file."""
        await self._remove(removable)
        batch = await self._on_disk(self._spool.next_batch, lane.path, BATCH_COUNT, BATCH_BYTES)
        remove_at = time.monotonic() + REMOVE_S
        while batch:
            began = time.monotonic()
            count, failure = await self._send_and_remove(lane, way, batch, removable, remove_at)
            now = time.monotonic()
            again_s = None if failure is None else lane.again_s(way, failure, began, now)
            if again_s is not None and not self._stopping:
                await asyncio.sleep(again_s)
                continue
            group, batch = batch[:count], batch[count:]
            if failure is None:
                self._accepted(lane, way, group, removable)
                if now >= remove_at or self._stopping:
                    await self._remove(removable)
                    remove_at = time.monotonic() + REMOVE_S
                if self._stopping:
                    return True
                continue
            if failure.kind not in MESSAGE_FAULTS:
                self._ways.failed(lane.path, way, failure, now)
            verdict = lane.failed(way, failure, count, now)
            if verdict is Verdict.WAIT:
                await self._remove(removable)
                return False
            if verdict is Verdict.SINGLY:
                break
            await self._refuse(lane, *group[0], failure)
        await self._remove(removable)
        return True

    async def _send_and_remove(
        self, lane: Lane, way: Way, batch: Numbered, removable: list[int], remove_at: float
    ) -> tuple[int, Failure | None]:
        """Send the first messages of a batch, and remove accepted ones from the file in time even if that takes long.

        Returns how many messages were sent, and the failure. When the removal fails or is cancelled, messages that were
        accepted meanwhile join the removable ones: they must not be sent again.
        """
        sending = self._send_some(lane, way, batch)
        if not removable:
            return await sending
        task = asyncio.create_task(sending)
        try:
            await asyncio.wait({task}, timeout=max(remove_at - time.monotonic(), 0.0))
            if not task.done():
                await self._remove(removable)
            return await task
        except BaseException:
            task.cancel()
            # The error that ended this is raised, not that of the task.
            [ended] = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(ended, BaseException) and ended[1] is None:
                self._accepted(lane, way, batch[: ended[0]], removable)
            raise

    def _accepted(self, lane: Lane, way: Way, group: Numbered, removable: list[int]) -> None:
        """Note that a namespace has accepted these messages, and publish it."""
        lane.accepted(len(group))
        removable += [number for number, _ in group]
        self._ways.accepted(lane.path, way, len(group), time.monotonic())
        ids = tuple([entry.message_id for _, entry in group])
        left = max(self._spool.waiting - len(removable), 0)
        self._publish(SpoolForwarded(lane.path, len(group), str(way), left, ids))

    async def _remove(self, removable: list[int]) -> None:
        if removable:
            # A copy: when this is cancelled, the thread still reads its numbers, and others may join the list.
            await self._on_disk(self._spool.forwarded, tuple(removable))
            removable.clear()

    async def _last_removal(self, removable: list[int]) -> None:
        """Remove accepted messages when their lane ends. If this fails, they are sent again."""
        if removable:
            await self._last_write(self._spool.forwarded, tuple(removable))

    async def _refuse(self, lane: Lane, number: int, entry: SpoolEntry, failure: Failure) -> None:
        await self._on_disk(partial(self._spool.refuse, [(number, failure.text)], refused_ms=_now_ms()))
        lane.moved(1)
        self._publish(SpoolRefused(lane.path, entry.message_id, failure.text))

    def _on_disk(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._disk, work, *args)

    async def _last_write(self, write: Callable[..., object], *args: object) -> None:
        """Write in a task that ends or is cancelled. A disk that does not answer within a second is not waited for:
        the write ends later, and the application's event loop goes on."""
        writing = asyncio.ensure_future(self._on_disk(write, *args))
        writing.add_done_callback(_tell_error)
        await asyncio.wait([writing], timeout=LAST_WRITE_S)

    # ── sending ──

    async def _send_some(self, lane: Lane, way: Way, batch: Numbered) -> tuple[int, Failure | None]:
        """Send the first messages of a batch together; return how many they were, and the failure."""
        payloads: list[bytes] = []
        for _, entry in batch[: 1 if lane.singly else len(batch)]:
            payload = entry.payload if way == PRIMARY else wrapped(entry.payload, _envelope(entry))
            if isinstance(payload, Failure):
                if payloads:
                    break
                return 1, payload
            payloads.append(payload)
        count = together(payloads, BATCH_BYTES)
        return count, await self._send(lane.path, way, payloads[:count], batch[:count])

    async def _send(self, path: str, way: Way, payloads: list[bytes], group: Numbered) -> Failure | None:
        carrier, target = (self._primary, path) if way.queue is None else (self._secondary, way.queue)
        assert carrier is not None, "a way to a backlog queue needs a secondary"
        failure: Failure | None = None
        attempt_ms: int | None = None
        try:
            sender = await carrier.sender(target, self._timeout_s)
            attempt_ms = _now_ms()
            if len(payloads) == 1:
                await sender.send(payloads[0], timeout_s=self._timeout_s)
            else:
                await sender.send_batch(payloads, timeout_s=self._timeout_s)
        except TransportError as error:
            failure = failure_of(error)
            if failure.kind is Kind.TIMEOUT or failure.kind in AT_ONCE:
                carrier.forget(target)
        except ConfigError as error:
            failure = Failure(Kind.UNAUTHORIZED, str(error), error=error)  # the key is for another entity
        except asyncio.CancelledError:
            if attempt_ms is not None:
                self._tell_unanswered(path, way, group)
                # If this fails, the event is the only trace.
                await self._last_write(self._spool.attempted, group, attempt_ms)
            raise
        self._count(carrier, way, target, payloads, failure)
        if failure is not None and failure.outcome_unknown and attempt_ms is not None:
            await self._on_disk(self._spool.attempted, group, attempt_ms)
            self._tell_unanswered(path, way, group)
        return failure

    def _tell_unanswered(self, path: str, way: Way, group: Numbered) -> None:
        """Tell that a backlog queue may have these messages; its copies have no mark that tells of another copy."""
        if way.queue is not None:
            for _, entry in group:
                self._publish(MaybeDuplicated.unanswered(path, entry.message_id, way.queue))

    def _count(self, carrier: Carrier, way: Way, target: str, payloads: list[bytes], failure: Failure | None) -> None:
        if self._meter is not None:
            side: Literal["primary", "secondary"] = "primary" if way == PRIMARY else "secondary"
            outcome = "ok" if failure is None else failure.kind.value
            namespace = carrier.endpoint.authority.lower()
            for count, size_bytes in billing_groups(map(len, payloads)):
                self._meter(side, namespace, target, "send", size_bytes, count, outcome, cause="spool")


def _tell_error(writing: asyncio.Future[object]) -> None:
    """Log the error of a last write: its lane has ended, and its messages are sent again by the next one."""
    error = None if writing.cancelled() else writing.exception()
    if error is not None:
        logger.warning("messages that were forwarded stay in the spool, and are sent again: %s", error)


async def _is_set(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


def _envelope(entry: SpoolEntry) -> Envelope:
    return Envelope(entry.path, entry.first_attempt_ms, entry.sender, entry.counter)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
