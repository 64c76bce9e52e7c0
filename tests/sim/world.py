"""One history: a seed decides the world, the world runs, and the checker names broken promises."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.client import sends
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.rotation import queue_path
from pairbus.spool import forwarder
from tests.sim import faults
from tests.sim.broker import EPOCH_MS, Namespace, Queue
from tests.sim.checker import Call, History, violations
from tests.sim.disk import Disk, SpoolModel
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.processes import SenderProcess, SyphonProcess
from tests.sim.wire import DELAY_MAX_S, Net

HORIZONS_S = (20.0, 60.0, 200.0)  # a history uses one of these: sends and faults begin within it
CROWDS = (1, 3, 3, 30)  # sends in flight at once; a quarter of all histories has many
DRAIN_MAX_S = 3600.0  # time to drain after all faults have ended; pumps pause for two minutes at most
LOOK_S = 5.0
WINDOW_S = 30.0  # duplicate window of the options; entities have windows of their own, or none
ID = b"sim-00000"


def _template(session: str | None, ttl_ms: int | None, scheduled: bool, own: dict[str, Any] | None) -> bytes:
    return Message(
        header=None if ttl_ms is None else Header(ttl=ttl_ms),
        annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(EPOCH_MS)} if scheduled else None,
        properties=Properties(message_id=ID.decode(), subject="order", group_id=session),
        application_properties=own,
        data=[b"body of " + ID],
    ).encode()


PLAIN = [
    _template(None, None, False, None),
    _template(None, None, False, {"tries": 3, "who": "me"}),
    _template(None, 3_600_000, False, {"a": True}),
    _template(None, 60_000, True, None),
    _template("session", None, False, None),
]


@dataclass(frozen=True, slots=True)
class Variants:
    """Parts of which a deliberately broken world is built; the genuine parts unless told otherwise."""

    spool: Callable[[Disk, Callable[[], None]], SpoolModel] = SpoolModel
    syphon: type[SyphonProcess] = SyphonProcess
    sender: type[SenderProcess] = SenderProcess


GENUINE = Variants()


class World:
    def __init__(self, seed: int, variants: Variants = GENUINE, *, tell: Callable[[str], None] | None = None) -> None:
        self.dice = dice = Random(seed)
        self._tell = tell
        self._variants = variants
        self.loop = VirtualLoop(dice)
        self.history = History()
        self.found: list[str] = []
        "Broken promises that were seen on the way."
        self.options = _options(dice)
        self.primary, self.secondary = Namespace("primary"), Namespace("secondary")
        for index in range(dice.choice((1, 2, 2, 3))):
            window_s = dice.choice((None, None, 30.0, 600.0))
            self._add(self.primary, Queue(f"orders/{index}", self.loop, dice, window_s))
        for index in range(self.options.backlog_queue_count):
            self._add(self.secondary, Queue(queue_path("primary", index), self.loop, dice))
        self.net = Net(self.loop, dice, self.history, self.stored)
        self.senders: list[SenderProcess] = []
        self.syphons: list[SyphonProcess] = []
        self._callers: list[asyncio.Task[Any]] = []
        self._restarts = 0
        "Processes that died and will be there again."
        self._troubles: dict[asyncio.TimerHandle, faults.Fault] = {}
        self._horizon_s = 0.0
        self._crowd = 1
        "Sends that a caller may have in flight together."
        self._crash_plan: tuple[str, int, float] | None = None
        self.is_paired = self.options.spool_dir is None or dice.random() < 0.85
        "False: clients started without their secondary, and have nothing but the spool."
        self.unreliable: set[str] = set()
        "Queues that any fault of this world can keep from storing a message."
        self.is_healed = False
        self.may_dead_letter = False
        self.keeps_order = self.options.ordered

    @staticmethod
    def _add(namespace: Namespace, queue: Queue) -> None:
        namespace.queues[queue.path.lower()] = queue

    def trace(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.loop.time():10.4f}  {text}")

    # ── the course of things ──

    def run(self) -> list[str]:
        """Play the history and return the promises that were broken."""
        clock = SimpleNamespace(
            monotonic=self.loop.time,
            time=lambda: EPOCH_MS / 1000 + self.loop.time(),
            time_ns=lambda: EPOCH_MS * 1_000_000 + int(self.loop.time() * 1e9),
        )
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # the code under test logs every failure, and this test causes many
        try:
            with (
                patch.object(forwarder, "time", clock),
                patch.object(sends, "time", clock),
            ):
                self.loop.run_until_complete(self._live())
        except Stuck as error:
            self.found.append(f"stuck: {error}")
        finally:
            self._end()
            logging.disable(level)
        return self.found + violations(self)

    async def _live(self) -> None:
        dice = self.dice
        self._horizon_s = dice.choice(HORIZONS_S)
        self._crowd = dice.choice(CROWDS)
        for fault in faults.plan(self, dice, self._horizon_s):
            self._schedule(fault)
        for number in range(dice.choice((1, 1, 2))):
            self._start_sender(f"client{number}", Disk())
        for number in range(1 if self.keeps_order else dice.choice((1, 1, 2))):
            self._start_syphon(f"syphon{number}")
        await asyncio.sleep(self._horizon_s)
        while self._restarts or any(not task.done() for task in self._callers):  # noqa: ASYNC110 - who calls changes
            await asyncio.sleep(LOOK_S)
        self._heal()
        await self._drained()

    def _schedule(self, fault: faults.Fault) -> None:
        def begin() -> None:
            if not self.is_healed:
                self.trace(f"FAULT {fault.kind} for {fault.lasts_s:.1f} s")
                fault.begin()
                self._troubles[self.loop.call_later(fault.lasts_s, end)] = fault

        def end() -> None:
            self.trace(f"END   {fault.kind}")
            fault.end()

        self.loop.call_at(fault.at, begin)

    def _heal(self) -> None:
        """End all faults that still last; no more faults begin from here on."""
        self.trace("HEALED")
        self.is_healed = True
        for timer, fault in self._troubles.items():
            if not timer.cancelled() and timer.when() > self.loop.time():
                timer.cancel()
                fault.end()

    async def _drained(self) -> None:
        """Until nothing waits anywhere or is on its way there, and every entity is healthy again."""
        arrived_by = self.loop.time() + DELAY_MAX_S
        until, healthy_by = self.loop.time() + DRAIN_MAX_S, self.loop.time() + self._recovery_max_s()
        while self.loop.time() < until:
            waiting = any(queue.copies for queue in self.secondary.queues.values())
            alive = [process for process in self.senders if process.is_alive]
            spooled = any(process.spool is not None and process.spool.waiting for process in alive)
            away = any(entity.state.value != "HEALTHY" for process in alive for entity in process.pair.entities())
            if not waiting and not spooled and not away and self.loop.time() >= arrived_by:
                return
            if away and self.loop.time() > healthy_by:
                self.found.append(f"not back: an entity is away {self._recovery_max_s():.0f} s after all was healed")
                return
            self._try_home(alive)
            await asyncio.sleep(LOOK_S)

    def _recovery_max_s(self) -> float:
        """After everything works: a suspicion that ends, the pings, throttling of the last of them, late answers."""
        options = self.options
        a_ping_s = options.ping_primary_interval + 5.0
        return options.failover_interval + (options.healthy_pings_required + 1) * a_ping_s + 10.0 + DELAY_MAX_S + LOOK_S

    def _try_home(self, alive: list[SenderProcess]) -> None:
        """Send to entities for which a probe earns only a trial: it takes a send to make them healthy."""
        if self.options.ping == "attach" and all(task.done() for task in self._callers):
            for process in alive:
                for entity in process.pair.entities():
                    if entity.trial:
                        self._callers.append(process.spawn(self._send(process, f"{process.name} last", entity.path)))

    def _end(self) -> None:
        """End all tasks and carriers, and run the loop until asyncio has reported its last errors."""
        for task in sorted(asyncio.all_tasks(self.loop), key=hash):
            task.cancel()
        self._tell = None
        for process in self._processes:
            for carrier in process._carriers:
                carrier.die()
        self.loop.run_until_complete(asyncio.sleep(30.0))
        self.loop.close()

    # ── processes ──

    def _start_sender(self, name: str, disk: Disk | None) -> None:
        spool = None
        if self.options.spool_dir is not None and disk is not None:
            spool = self._variants.spool(disk, lambda: self.stored(f"{name} spool"))
        process = self._variants.sender(self, name, spool)
        self.senders.append(process)
        process.start()
        for number in range(self.dice.choice((1, 2, 3))):
            self._callers.append(process.spawn(self._call(process, f"{name} caller{number}")))

    def _start_syphon(self, name: str) -> None:
        process = self._variants.syphon(self, name)
        self.syphons.append(process)
        process.start()

    async def _call(self, process: SenderProcess, lane: str) -> None:
        """A caller: sends, waits for the word, goes on."""
        dice = self.dice
        path = dice.choice([queue.path for queue in self.primary.queues.values()])
        path = path.title() if dice.random() < 0.1 else path  # paths compare without case
        count, haste = dice.randrange(1, 9), dice.choice((0.2, 0.9))
        await asyncio.sleep(dice.choice((0.0, 0.5)) * self._horizon_s)
        for turn in range(count):
            pace_s = 2 * self._horizon_s / count if dice.random() > haste else 0.1
            await asyncio.sleep(dice.random() * pace_s)
            at_once = dice.choice((1, 1, self._crowd))
            # Sends in flight together have no order among themselves: each is a lane of its own.
            lanes = [lane] if at_once == 1 else [f"{lane} {turn}.{place}" for place in range(at_once)]
            await asyncio.gather(*(self._send(process, each, path) for each in lanes))

    async def _send(self, process: SenderProcess, lane: str, path: str) -> None:
        message_id = b"sim-%05d" % len(self.history.calls)
        template = _session_template(lane) if self.options.ordered else self.dice.choice(PLAIN)
        payload = template.replace(ID, message_id)
        call = self.history.calls[message_id.decode()] = Call(message_id.decode(), path, payload, f"{lane} {path}")
        await process.send(call, self.dice.choice((5.0, 15.0, 60.0)))
        self.trace(f"{lane} {call.message_id}: {call.receipt or call.refusal}")

    @property
    def _processes(self) -> list[SenderProcess | SyphonProcess]:
        return [*self.senders, *self.syphons]

    def crash_one(self, down_s: float) -> None:
        """Let a process die; mostly another one takes its place a while later."""
        alive = [process for process in self._processes if process.is_alive]
        if alive and not self.is_healed:
            self._crash(self.dice.choice(alive), down_s)

    def crash_at(self, role: str, countdown: int, down_s: float) -> None:
        """Plan a crash: the process that does the `countdown`-th store in this role from now on dies right after it."""
        self._crash_plan = (role, countdown, down_s)

    def stored(self, owner: str) -> None:
        """Note that a process has stored a message in a role, and does not know it yet."""
        if self._crash_plan is None or self.is_healed:
            return
        name, role = owner.split()
        planned, countdown, down_s = self._crash_plan
        if role == planned:
            self._crash_plan = (planned, countdown - 1, down_s) if countdown > 1 else None
            if countdown == 1:
                victim = next(process for process in self._processes if process.name == name)
                self.loop.call_later(self.dice.random() * 0.03, self._crash, victim, down_s)

    def _crash(self, victim: SenderProcess | SyphonProcess, down_s: float) -> None:
        if not victim.is_alive:
            return
        victim.crash()
        if isinstance(victim, SyphonProcess) or self.dice.random() < 0.8:
            self._restarts += 1
            self.loop.call_later(down_s, self._restart, victim)

    def _restart(self, victim: SenderProcess | SyphonProcess) -> None:
        self._restarts -= 1
        self.trace(f"{victim.name} is back")
        if isinstance(victim, SyphonProcess):
            self._start_syphon(f"{victim.name}+")
        else:
            self._start_sender(f"{victim.name}+", None if victim.spool is None else victim.spool.disk)

    def replace_syphon(self) -> None:
        """A new version is rolled out: the old process is told to stop, the new one is there already."""
        self.keeps_order = False
        old = next((process for process in self.syphons if process.is_alive), None)
        if old is not None and not self.is_healed:
            old.spawn(old.syphon.stop())
            self._start_syphon(f"{old.name}*")

    def force_away(self) -> None:
        for process in self.senders:
            for queue in self.primary.queues.values():
                process.pair.force_failover(queue.path, self.loop.time())

    def force_home(self) -> None:
        for process in self.senders:
            for queue in self.primary.queues.values():
                process.pair.force_healthy(queue.path, self.loop.time())

    def elsewhere(self, message_id: str) -> list[str]:
        """Return the places where a message that is not at home waits, or lies for a reason."""
        found = []
        for queue in self.secondary.queues.values():
            found += [queue.path for copy in queue.copies.values() if copy.message_id == message_id]
            found += [f"dead letters of {queue.path}" for copy in queue.dead if copy.message_id == message_id]
        disks = {id(process.spool.disk): process for process in self.senders if process.spool is not None}
        for process in disks.values():
            assert process.spool is not None
            disk = process.spool.disk
            entries = (*disk.waiting.values(), *(entry for entry, _ in disk.refused.values()))
            found += [f"spool of {process.name}" for entry in entries if entry.message_id == message_id]
        return found


def _session_template(lane: str) -> bytes:
    known = _SESSIONS.get(lane)
    if known is None:
        known = _SESSIONS[lane] = _template(lane, None, False, None)
    return known


_SESSIONS: dict[str, bytes] = {}


def _options(dice: Random) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(
        backlog_queue_count=dice.choice((1, 2, 3)),
        failover_interval=dice.choice((0, 0, 5, 20)),
        ping_primary_interval=dice.choice((1, 5, 30)),
        ping=dice.choice(("message", "message", "attach")),
        healthy_pings_required=dice.choice((1, 1, 2)),
        busy_counts_after=dice.choice((None, None, 15)),
        backlog_retry_interval=dice.choice((1, 10, 60)),
        ordered=dice.random() < 0.3,
        missing_destination_grace=dice.choice((20, 900)),
        duplicate_detection_window=WINDOW_S,
        max_messages_per_second=dice.choice((None, None, 5)),
        spool_dir=dice.choice((None, "spool")),
    )


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    found: list[str]
    took_s: float
    steps: int
    messages: int


def play(seed: int, variants: Variants = GENUINE, *, tell: Callable[[str], None] | None = None) -> Report:
    """Run the history of one seed."""
    began = time.perf_counter()
    world = World(seed, variants, tell=tell)
    found = world.run()
    return Report(seed, found, time.perf_counter() - began, world.loop.steps, len(world.history.calls))
