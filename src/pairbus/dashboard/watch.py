"""Looks at all namespaces, tells watchers what changed, and keeps the log of events.

Laws of this file.
 1. Without watchers brokers and clients are looked at for the log of events only: when they tell a change, and every
    `IDLE_S`. A namespace whose looks are billed is not asked at all.
 2. Each source has its own task and its own pace, so a silent namespace does not delay the others.
 3. A source that tells its events is looked at again at once; the pace is for counts, and for other sources.
 4. A watcher that does not read is cut, not waited for: after `WAITING_MAX` lines it must connect again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.dashboard.cost import running_cost, visible_operations
from pairbus.dashboard.event_log import EventLog
from pairbus.dashboard.facts import IsOurs, clients_at_work, described, pair_facts
from pairbus.dashboard.following import Following
from pairbus.dashboard.news import Happening, backlog_of, happenings, patch_of
from pairbus.errors import PairbusError
from pairbus.ledger.prices import PriceSheet
from pairbus.transport.threads import in_thread

if TYPE_CHECKING:
    from pairbus.dashboard.targets import WatchedNamespace

logger = logging.getLogger("pairbus.dashboard")

TICK_S = 1.0
CLIENTS_S = 1.0
QUICK_S = 0.25  # between two looks at a source that answers quickly
REST = 200  # the pause after a look is so many times its duration: half a percent of a core at most
FOLLOW_AGAIN_S = 1.0
LOOK_S = 3.0
LINGER_S = 10.0  # a page that is opened again soon after finds fresh data
WAITING_MAX = 64
IDLE_S = 15.0  # between two looks at a source while nobody watches
WATCHERS_MAX = 100

CLIENTS = ""  # key that is no name of a namespace

PairLook = Callable[[], Awaitable[dict[str, Any]]]
"Function that looks at a pair as `pairbus status` does."


class Pairing:
    """Names of a pair, or of a namespace that may be part of one."""

    def __init__(
        self, is_ours: IsOurs, *, names: tuple[str, str] | None = None, primary_name: str | None = None
    ) -> None:
        """Take the names of the targets that are primary and secondary; None for a namespace alone."""
        self.is_ours = is_ours
        self.names = names
        self.primary_name = primary_name
        self.look: PairLook | None = None


class Watcher:
    """One browser that follows. Lines wait here until it reads them."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str | None] = asyncio.Queue(WAITING_MAX)

    def tell(self, line: str | None) -> bool:
        """Add a line, None for the end; False when the watcher reads too slowly."""
        try:
            self.lines.put_nowait(line)
        except asyncio.QueueFull:
            return False
        return True


class Watch:
    """Data about some namespaces, kept fresh while there are watchers."""

    def __init__(
        self,
        title: str,
        targets: Sequence[WatchedNamespace],
        pairing: Pairing,
        sheet: PriceSheet,
        log: EventLog | None = None,
    ) -> None:
        """Watch these targets. `log`: events that were noted before."""
        self.title = title
        self.targets = {target.name: target for target in targets}
        self.log = log or EventLog()
        self._pairing = pairing
        self._sheet = sheet
        self._watchers: set[Watcher] = set()
        self._wanted_s = 0.0
        "Last time of a request, on the clock of the event loop."
        self._tasks: list[asyncio.Task[None]] = []
        self.is_at_work = False
        "True while the sources are asked for watchers; False: at most for the log of events."
        self._asked: set[str] = set()
        "Namespaces, and `CLIENTS`, that have answered, or failed to, since the sources are asked for watchers."
        self._answered_ms: dict[str, int] = {}
        "Time of the last answer of each namespace."
        self._first = asyncio.Event()
        self._arrived = asyncio.Event()
        "Set when all namespaces and clients have answered, or failed to."
        self.overviews: dict[str, dict[str, Any]] = {}
        "Answers of the namespaces, by name."
        self._pair: dict[str, Any] = {}
        self.clients: list[dict[str, Any]] = []
        "Paired clients of these namespaces on this machine, as their control sockets described them last."
        self._status: dict[str, Any] = {}
        self._look: dict[str, Any] = {}
        self._following: Following | None = None
        self._news: dict[str, asyncio.Event] = {}
        "Set when a namespace, by its name, or the clients, by `CLIENTS`, have told of an event."

    # ── for those who ask ──

    async def look(self) -> dict[str, Any]:
        """Return the look as it is now, or was a moment ago; starts the watch when there was no watcher."""
        self.begin()
        await self._first.wait()
        return self._look

    async def whole_look(self, wait_s: float) -> dict[str, Any]:
        """Return the look, and wait a while for namespaces that have not answered yet."""
        await self.look()
        if not self._arrived.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), wait_s)
            self._assemble()
        return self._look

    async def join(self) -> Watcher:
        """Return a watcher that has been told the whole look; `leave` ends it. PairbusError: too many watchers."""
        if len(self._watchers) >= WATCHERS_MAX:
            raise PairbusError(f"{WATCHERS_MAX} pages watch already; close one")
        look = await self.look()
        watcher = Watcher()
        watcher.tell(_line("look", look))
        watcher.tell(_line("happened", list(self.log.events)))
        self._watchers.add(watcher)
        self.begin()  # on a busy machine the watch may have come to rest since the look
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        self._wanted_s = asyncio.get_running_loop().time()

    def tell(self, kind: str, value: Any) -> None:
        """Tell all watchers a fact that is no part of the look."""
        line = _line(kind, value)
        for watcher in list(self._watchers):
            if not watcher.tell(line):
                self._watchers.discard(watcher)
                watcher.lines.get_nowait()
                watcher.tell(None)

    def note(self, happening: Happening) -> None:
        """Add an event to the list, and tell the watchers."""
        self.tell("happened", [self.log.note(happening)])

    async def refresh(self, name: str) -> None:
        """Ask one namespace at once, because it was just changed from here."""
        if self._tasks:
            await self._ask(self.targets[name])
            self._assemble()

    async def close(self) -> None:
        """End all watchers and tasks, and close the targets."""
        for watcher in list(self._watchers):
            watcher.tell(None)
        self._watchers.clear()
        await asyncio.gather(*self._stop_sources(), return_exceptions=True)
        for target in self.targets.values():
            await target.close()

    # ── the sources ──

    def begin(self) -> None:
        """Ask all sources at their own pace, for a while or as long as there are watchers; then only for the log."""
        self._wanted_s = asyncio.get_running_loop().time()
        if self.is_at_work:
            return
        self._stop_sources()
        self.is_at_work = True
        self._first, self._arrived = asyncio.Event(), asyncio.Event()
        self._asked = set()
        self._start(list(self.targets.values()))
        self._add(self._tick())

    def _rest(self) -> None:
        """Ask only for the log of events from now on."""
        self._stop_sources()
        self.is_at_work = False
        self._start([target for target in self.targets.values() if target.can_switch], IDLE_S)

    def _start(self, targets: Sequence[WatchedNamespace], pace_s: float | None = None) -> None:
        """Ask these targets, and the clients, again and again: at their own pace, or at the one that is given."""
        self._news = {name: asyncio.Event() for name in (*self.targets, CLIENTS)}
        self._following = Following(self._hear_clients)
        for target in targets:
            ask = partial(self._ask, target)
            self._add(self._keep(ask, target.pace_s if pace_s is None else pace_s, self._news[target.name]))
            if target.can_switch:
                self._add(self._follow(target))
        if self._pairing.look is not None and len(targets) == len(self.targets):
            look_s = max(LOOK_S, *(target.pace_s for target in targets))  # Azure bills this look too
            self._add(self._keep(self._ask_status, look_s if pace_s is None else pace_s, asyncio.Event()))
        self._add(self._keep(self._ask_clients, CLIENTS_S if pace_s is None else pace_s, self._news[CLIENTS]))

    def _add(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_tell_failure)
        self._tasks.append(task)

    def _stop_sources(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks = self._tasks, []
        if self._following is not None:
            self._following.keep(())
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()
        return tasks

    async def _keep(self, look: Callable[[], Awaitable[bool]], pace_s: float, news: asyncio.Event) -> None:
        """Ask a source again and again, and tell changes at once; a quick source is asked more often.

        `look` returns whether there is a change. `news` ends the pause before the next look, but only after the source
        has had a rest, so that a storm of events costs no more than the looks do.
        """
        loop = asyncio.get_running_loop()
        rested_at_s = 0.0
        while True:
            news.clear()
            began_s = loop.time()
            if await look() and self._first.is_set():
                self._assemble(is_tick=False)
            rest_s = min(pace_s, (loop.time() - began_s) * REST)
            is_quick = pace_s <= TICK_S
            next_at_s = loop.time() + (max(QUICK_S, rest_s) if is_quick else pace_s)
            await asyncio.sleep(min(next_at_s, rested_at_s) - loop.time())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_at_s):  # `wait_for` of Python 3.11 may overlook a cancellation
                    await news.wait()
                rested_at_s = loop.time() + rest_s

    async def _follow(self, target: WatchedNamespace) -> None:
        """Look at a namespace again as soon as it tells of an event, and when it stops telling."""
        while True:
            with suppress(PairbusError):  # the next look shows the error
                async for _ in target.changes():
                    self._news[target.name].set()
            self._news[target.name].set()
            await asyncio.sleep(FOLLOW_AGAIN_S)

    def _hear_clients(self) -> None:
        """Look at all sources again: an event of a client shows in the namespaces too."""
        for news in self._news.values():
            news.set()

    async def _ask(self, target: WatchedNamespace) -> bool:
        before = self.overviews.get(target.name, {})
        try:
            overview = await target.overview()
        except PairbusError as error:
            # The last counts stay: a namespace that is away still has its messages.
            since_ms = before.get("away_since_ms") or int(time.time() * 1000)
            overview = {**before, "reachable": False, "error": str(error), "away_since_ms": since_ms}
            if target.name in self._answered_ms:
                overview["counts_as_of_ms"] = self._answered_ms[target.name]
        else:
            overview = {**overview, "reachable": True}
            self._answered_ms[target.name] = int(time.time() * 1000)
        self._asked.add(target.name)
        self.overviews[target.name] = overview
        self._has_arrived()
        return _without_time(before) != _without_time(overview)

    def _has_arrived(self) -> None:
        if len(self._asked) > len(self.targets):
            self._arrived.set()

    async def _ask_clients(self) -> bool:
        clients = await in_thread("pairbus-control", described)
        ours = [one for one in clients if self._pairing.is_ours(one)]
        self.clients = clients_at_work(ours)
        if self._following is not None and self._tasks:
            self._following.keep(one["socket"] for one in ours)
        before, self._pair = self._pair, pair_facts(ours, time.time())
        self._asked.add(CLIENTS)
        self._has_arrived()
        return before != self._pair

    async def _ask_status(self) -> bool:
        assert self._pairing.look is not None
        before, self._status = self._status, await self._pairing.look()
        return before != self._status

    async def _tick(self) -> None:
        """Put the look together, once every source has had a moment, and end when there is no watcher any more."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):  # a silent source is shown as silent
            await asyncio.wait_for(self._arrived.wait(), TICK_S)
        while True:
            self._assemble()
            self._first.set()  # before it may end: a request of a busy moment still waits for it
            if self._watchers:
                self._wanted_s = loop.time()
            elif loop.time() - self._wanted_s > LINGER_S:
                self._rest()
                return
            await asyncio.sleep(TICK_S)

    def _assemble(self, *, is_tick: bool = True) -> None:
        """Put the look together, and tell what has changed; between two ticks a new time alone is no change."""
        before, now = self._look, self._together()
        patch = patch_of(before, now) if before else {}
        if not is_tick and patch.keys() <= {"time_ms"}:
            return
        self._look = now
        if not before:
            return
        for happening in happenings(before, now):
            self.note(happening)
        if patch and self._watchers:
            self.tell("patch", patch)

    def _together(self) -> dict[str, Any]:
        namespaces = {}
        for name, target in self.targets.items():
            overview = self.overviews.get(name, {"reachable": False, "error": "it has not answered yet"})
            status = self._status.get(target.role or "", {})
            if status and overview["reachable"] and not status.get("reachable", True):
                # The control socket answers although the port does not: for clients the namespace is away.
                overview = {**overview, "reachable": False, "error": status.get("error")}
            namespaces[name] = {
                **{key: value for key, value in overview.items() if key not in ("name", "meter")},
                "role": target.role,
                "address": target.address,
                "can_switch": target.can_switch,
            }
        look = {
            "title": self.title,
            "time_ms": int(time.time() * 1000),
            "namespaces": namespaces,
            "pair": self._pair_facts(namespaces),
            "cost": self._cost(),
        }
        return {key: _shallow(value) for key, value in look.items() if value is not None}

    def _cost(self) -> dict[str, Any] | None:
        meters = [overview["meter"] for overview in self.overviews.values() if overview.get("meter")]
        billed = {target.role: target.operations for target in self.targets.values() if not target.can_switch}
        visible = visible_operations(self._pair, billed) if billed else None
        return running_cost(meters, self._sheet, visible, len(billed))

    def _pair_facts(self, namespaces: dict[str, Any]) -> dict[str, Any]:
        names = self._pairing.names
        holders = [names[1]] if names is not None else list(namespaces)
        backlog = backlog_of(
            {path: one for name in holders for path, one in namespaces[name].get("entities", {}).items()},
            self._pairing.primary_name,
            {one["path"]: one["oldest_s"] for one in self._status.get("queues", []) if one["oldest_s"] is not None},
        )
        facts = {**self._pair, "backlog": backlog}
        if names is not None:
            facts |= {"primary": names[0], "secondary": names[1], "problems": self._status.get("problems") or None}
        return facts


def _without_time(overview: dict[str, Any]) -> dict[str, Any]:
    """Return an overview without the time of its clock, which always differs."""
    return {**overview, "clock": overview.get("clock", {}).get("offset_seconds")}


def _shallow(value: Any) -> Any:
    """Remove nulls down to the namespaces; entities have none, and there may be thousands."""
    if not isinstance(value, dict):
        return value
    return {
        key: {inner: each for inner, each in one.items() if each is not None} if isinstance(one, dict) else one
        for key, one in value.items()
        if one is not None
    }


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the dashboard stops to watch a part", exc_info=error)


def _line(kind: str, value: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"
