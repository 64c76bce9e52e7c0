"""How `pairbus syphon` and `pairbus redrive` run: signals, the progress line, events as lines, the ledger."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from azure.core.exceptions import AzureError, ResourceNotFoundError

from pairbus.cli.left import NOTHING_LEFT, Left, look
from pairbus.cli.standard import ProgressLine, say
from pairbus.client.sides import Side
from pairbus.errors import ConfigError
from pairbus.ledger import Ledger
from pairbus.ledger.rows import MeterKind
from pairbus.pairing.backlog import primary_of, queue_index, queue_path
from pairbus.pairing.events import DeadLettered, DestinationSkipped, Event, MaybeDuplicated, PumpPaused, Stayed
from pairbus.pairing.options import RANGES
from pairbus.pairing.policy import Kind
from pairbus.pairing.redriving import DEAD_LETTERS, WINDOW_MAX_S, queue_of_dead_letters
from pairbus.pairing.relay import POLL_S, entity_of_dead_letters
from pairbus.provisioning import LIST, PAGE_SIZE, metered
from pairbus.syphon import Progress, Syphon, SyphonSettings, redrive
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import Refused
from pairbus.wire_failures import failure_of

if TYPE_CHECKING:
    from pairbus.cli.spark_pump import SparkPump

Settings = SyphonSettings

LINE_S = 1.0  # between two progress lines on a terminal
LOG_S = 30.0  # and elsewhere
COUNT_S = 5.0  # between two looks at how many messages wait, while some are moved or held back; elsewhere LOG_S
IDLE_COUNT_S = POLL_S  # and while none are: each look is billed
COUNT_LOOK_S = 1.0  # between two questions whether a look is due
STOP_S = 15.0  # for what is on its way when the command is told to end
LOOK_S = 10.0  # for a look at what is left
STOPPED_LOOK_S = 1.0  # of a command that is told to end
QUEUES_TRIED = 10
SHOWN = (DeadLettered, DestinationSkipped, MaybeDuplicated, PumpPaused, Stayed)


class Pump(Protocol):
    """What does the work: in this process, or on Spark."""

    def run(self) -> Awaitable[object]: ...
    def run_once(self) -> Awaitable[object]: ...
    def stop(self, grace_s: float) -> Awaitable[None]: ...
    def progress(self) -> Progress: ...


class Pumping:
    """One run of either command."""

    def __init__(
        self, home: Side, away: Side, settings: SyphonSettings, ledger: Path | None, spark: SparkPump | None = None
    ) -> None:
        self._home = home
        self._away = away
        self._settings = settings
        self._ledger = None if ledger is None or spark is not None else Ledger(ledger, client="syphon")
        self._spark = spark
        self._waiting: int | None = None
        self._listed = 0
        "How many queues the secondary has."
        self._reasons: Counter[str] = Counter()
        self._line = ProgressLine()

    async def syphon(self, primary_name: str, count: int | None, *, once: bool) -> bool:
        queues, may_count = await self._find(primary_name, count, once=once)
        say(f"{self._away.name} -> {self._home.name}: {_many(len(queues), 'backlog queue')} of {primary_name}")

        def make(home: Carrier, away: Carrier) -> Pump:
            if self._spark is not None:
                return self._spark.syphon(queues, self._problem, once=once)
            return Syphon(home, away, list(queues), settings=self._settings, publish=self._heard, meter=self._meter)

        return await self._run(make, list(queues), once=once, counted=primary_name if may_count else None)

    async def redrive(
        self, queue: str, to: str | None, *, once: bool, duplicate_window_s: float | None, new_ids: bool
    ) -> bool:
        queue, window_s = queue_of_dead_letters(queue), duplicate_window_s
        if window_s is None:
            window_s = await self._duplicate_window_s(to or entity_of_dead_letters(queue), new_ids=new_ids)

        def make(home: Carrier, away: Carrier) -> Pump:
            if self._spark is not None:
                return self._spark.redrive(
                    queue, to, self._problem, once=once, duplicate_window_s=window_s, new_ids=new_ids
                )
            return redrive(
                away,
                queue,
                target=to,
                destination=home,
                settings=self._settings,
                publish=self._heard,
                meter=self._meter,
                duplicate_window_s=window_s,
                new_ids=new_ids,
            )

        return await self._run(make, [queue + DEAD_LETTERS], once=once, counted=None)

    async def _run(
        self, make: Callable[[Carrier, Carrier], Pump], drained: list[str], *, once: bool, counted: str | None
    ) -> bool:
        home, away = _carrier(self._home), _carrier(self._away)
        pump = make(home, away)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        work = asyncio.ensure_future(pump.run_once() if once else pump.run())
        told = asyncio.create_task(stop.wait())
        lines = asyncio.create_task(self._show(pump))
        counting = asyncio.sleep(0) if counted is None else self._count(pump, drained, counted, once=once)
        counts = asyncio.create_task(counting)
        unread: TransportError | None = None
        try:
            await asyncio.wait([work, told], return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                await pump.stop(STOP_S)
            try:
                await work
            except TransportError as error:
                unread = error
            except asyncio.CancelledError:
                if not stop.is_set():
                    raise
            left = await self._left(pump, away, drained, once=once, stopped=stop.is_set())
        finally:
            for task in (work, told, lines, counts):
                task.cancel()
            await asyncio.gather(work, told, lines, counts, return_exceptions=True)
            await asyncio.gather(home.close(), away.close(), return_exceptions=True)
            if self._ledger is not None:
                self._ledger.close(2.0)
        stayed = self._summary(pump, left, once=once, stopped=stop.is_set())
        if unread is not None:
            raise unread
        return stayed

    # ── what is there ──

    async def _left(self, pump: Pump, away: Carrier, drained: list[str], *, once: bool, stopped: bool) -> Left:
        """What a pump knows is not all: messages may be locked by somebody who is gone, or be out of its reach."""
        blocked = pump.progress().blocked
        if self._spark is not None:  # which has looked by itself, if it came to its end
            return Left(blocked, is_all=not stopped)
        if not once and not blocked:
            return NOTHING_LEFT

        def meter(path: str, size_bytes: int) -> None:
            self._meter("secondary", path, "peek", 1, size_bytes, "ok")

        left = await look(away, drained, meter, STOPPED_LOOK_S if stopped else LOOK_S)
        return left if left.is_all or left.messages > blocked else Left(blocked, is_all=False)

    async def _find(self, primary_name: str, count: int | None, *, once: bool) -> tuple[dict[str, int | None], bool]:
        """The backlog queues, when each was created, and whether the secondary lets us look at their lengths."""
        if count is not None:
            return dict.fromkeys(queue_path(primary_name, index) for index in range(count)), False
        try:
            queues = await asyncio.to_thread(self._queues)
        except (AzureError, OSError) as error:
            say(
                f"the queues of {self._away.name} cannot be listed ({_line(error)}), so they are tried one by one:"
                " --backlog-queue-count says how many there are"
            )
            return dict.fromkeys(await self._try(primary_name, once=once)), False
        found = {
            queue.name: None if queue.created_at_utc is None else int(queue.created_at_utc.timestamp() * 1000)
            for queue in queues
            if queue_index(primary_name, queue.name) is not None
        }
        if not found:
            raise ConfigError(_no_queues(self._away.name, primary_name, [queue.name for queue in queues]))
        self._waiting = _waiting(queues, found)
        return found, True

    async def _try(self, primary_name: str, *, once: bool) -> list[str]:
        """The backlog queues to which a link can be opened, ten by ten as long as there are any: one may have been
        deleted. A syphon that goes on begins with ten where the secondary cannot be reached yet."""
        found: list[str] = []
        async with _carrier(self._away) as away:
            for first in range(0, int(RANGES["backlog_queue_count"].most), QUEUES_TRIED):
                paths = [queue_path(primary_name, index) for index in range(first, first + QUEUES_TRIED)]
                try:
                    there = await asyncio.gather(*[_is_there(away, path) for path in paths])
                except TransportError as error:
                    if once:
                        raise
                    say(f"{self._away.name} cannot be asked ({_line(error)}): taking 0 … {first + QUEUES_TRIED - 1}")
                    return found + paths
                found += compress(paths, there)
                if not any(there):
                    break
        if not found:
            raise ConfigError(f"{self._away.name} has no backlog queues {queue_path(primary_name, 0)} …")
        return found

    async def _duplicate_window_s(self, path: str, *, new_ids: bool) -> float | None:
        """For how long a destination remembers message ids, 0 when it does not; None when it will not say."""
        try:
            return await asyncio.to_thread(self._ask_duplicate_window_s, path)
        except (AzureError, OSError, ConfigError) as error:
            become = "get new ids" if new_ids else "stay, unless --new-ids is given"
            say(
                f"whether {path} detects duplicates cannot be read ({_line(error)}): dead letters of the last"
                f" {WINDOW_MAX_S / 86_400:.0f} days {become}. --duplicate-window says for how many seconds it remembers"
                " message ids, or 0"
            )
            return None

    def _ask_duplicate_window_s(self, path: str) -> float | None:
        admin: Any = self._home.new_admin()
        try:
            for ask in (admin.get_queue, admin.get_topic):
                try:
                    with metered(self._meter_home, path):
                        found = ask(path)
                except ResourceNotFoundError:
                    continue
                window = found.duplicate_detection_history_time_window
                if not found.requires_duplicate_detection:
                    return 0.0
                return None if window is None else float(window.total_seconds())
            return 0.0  # what is not there remembers nothing
        finally:
            admin.close()

    def _queues(self, known: list[str] | None = None) -> list[Any]:
        """All queues of the secondary; of those that are `known` only these, where that takes fewer requests."""
        admin: Any = self._away.new_admin()
        try:
            if known is not None and len(known) < -(-self._listed // PAGE_SIZE):
                return [found for path in known for found in self._queue(admin, path)]
            with metered(self._meter_list, LIST) as told:
                queues = told(admin.list_queues_runtime_properties())
            self._listed = len(queues)
            return queues
        finally:
            admin.close()

    def _queue(self, admin: Any, path: str) -> list[Any]:
        try:
            with metered(self._meter_list, path):
                return [admin.get_queue_runtime_properties(path)]
        except ResourceNotFoundError:
            return []

    async def _count(self, pump: Pump, queues: list[str], primary_name: str, *, once: bool) -> None:
        """How many messages wait. Nothing that is moved or held back, nothing new to count: an idle syphon costs its
        long polls, and little more."""
        seen, looked_at = _doings(pump), time.monotonic()  # `_find` has looked
        while True:
            await asyncio.sleep(COUNT_LOOK_S)
            now, doings = time.monotonic(), _doings(pump)
            busy_s = COUNT_S if sys.stderr.isatty() else LOG_S
            if now - looked_at < (busy_s if doings != seen or pump.progress().blocked else IDLE_COUNT_S):
                continue
            seen, looked_at = doings, now
            try:
                found = await asyncio.to_thread(self._queues, queues)
            except (AzureError, OSError):
                self._waiting = None  # shown as unknown until the next look
                continue
            if not once:
                self._adopt(pump, queues, primary_name, [queue.name for queue in found])
            self._waiting = _waiting(found, queues)

    def _adopt(self, pump: Pump, queues: list[str], primary_name: str, found: list[str]) -> None:
        """Backlog queues that were created since the last look."""
        new = [path for path in found if path not in queues and queue_index(primary_name, path) is not None]
        if not new:
            return
        queues += new
        self._line.clear()
        if isinstance(pump, Syphon):
            pump.adopt(new)
            say(f"new backlog queues: {', '.join(new)}")
        else:
            say(f"new backlog queues, which are drained when this command is started again: {', '.join(new)}")

    # ── what is shown ──

    async def _show(self, pump: Pump) -> None:
        terminal = sys.stderr.isatty()
        last = ""
        while True:
            line = self._progress(pump)
            if terminal:
                self._line.show(line)
            elif line != last:
                say(line)
            last = line
            await asyncio.sleep(LINE_S if terminal else LOG_S)

    def _progress(self, pump: Pump) -> str:
        now = pump.progress()
        waiting = "?" if self._waiting is None else self._waiting
        going = max((self._waiting or 0) - now.blocked, 0)
        eta = f", {going / now.per_s:.0f} s to go" if going and now.per_s >= 1 else ""
        return (
            f"{_many(now.queues, 'queue')}, {waiting} waiting, {now.moved} moved, {now.per_s:.0f}/s{eta},"
            f" {now.blocked} blocked, {now.dead_lettered} dead-lettered, {now.errors} errors"
        )

    def _summary(self, pump: Pump, left: Left, *, once: bool, stopped: bool) -> bool:
        """Says how it ended; whether everything was asked for, and something had to stay."""
        self._line.clear()
        now = pump.progress()
        at_least = "" if left.is_all else "at least "
        stayed = f", {at_least}{left.messages} left" if left.messages else ""
        dead = f", {now.dead_lettered} dead-lettered" if now.dead_lettered else ""
        print(f"moved {_many(now.moved, 'message')}{dead}{stayed}")
        if now.blocked:
            for reason, _ in self._reasons.most_common(5):
                say(reason)
        if not once or left == NOTHING_LEFT:
            return False
        if stopped:
            say("stopped before everything was moved")
        elif not left.messages:
            say(f"{self._away.name} does not say whether anything is left")
        elif left.messages > now.blocked:
            behind = "lie behind those that could not be sent, " if now.blocked else ""
            say(
                f"{at_least}{left.messages - now.blocked} of those that are left were not received: they {behind}are"
                " new, or locked by another receiver, in a backlog queue for a minute at most"
            )
        return True

    def _heard(self, event: Event) -> None:
        if self._ledger is not None:
            self._ledger.record(event, time.time())
        if isinstance(event, DestinationSkipped):
            self._reasons[f"{event.path}: {event.reason}"] += 1
        if isinstance(event, SHOWN):
            self._line.clear()
            say(str(event))

    def _problem(self, text: str) -> None:
        """Of a task of Spark: an event in words."""
        if not self._reasons[text]:
            self._line.clear()
            say(text)
        self._reasons[text] += 1

    def _meter(
        self,
        side: Literal["primary", "secondary"],
        entity: str,
        kind: str,
        count: int,
        size_bytes: int,
        outcome: str,
    ) -> None:
        if self._ledger is not None:
            name = (self._home if side == "primary" else self._away).name.lower()
            known = cast(MeterKind, kind)
            self._ledger.meter(side, name, entity, known, size_bytes, count, outcome, cause="syphon")

    def _meter_home(self, entity: str, count: int, outcome: str) -> None:
        self._meter("primary", entity, "management", count, 0, outcome)

    def _meter_list(self, entity: str, count: int, outcome: str) -> None:
        self._meter("secondary", entity, "management", count, 0, outcome)


def _no_queues(namespace: str, primary_name: str, found: list[str]) -> str:
    others = sorted({name.lower() for path in found if (name := primary_of(path)) is not None})
    there = f"it has those of {', '.join(others)}" if others else "nor of any other primary: `pairbus pair create`"
    return f"{namespace} has no backlog queues {queue_path(primary_name, 0)} …; {there}"


def _doings(pump: Pump) -> tuple[int, int, int]:
    now = pump.progress()
    return now.moved, now.dead_lettered, now.errors


def _waiting(found: Iterable[Any], queues: Container[str]) -> int:
    return sum(queue.active_message_count or 0 for queue in found if queue.name in queues)


def _carrier(side: Side) -> Carrier:
    return Carrier(side.endpoint, credential=side.credential, ssl=side.ssl, proxy=side.proxy)


async def _is_there(away: Carrier, path: str) -> bool:
    try:
        link = await away.receiver(path, credit=0)
    except Refused as error:  # for any other reason, which its pump will tell
        return failure_of(error).kind is not Kind.NOT_FOUND
    await link.close()
    return True


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
