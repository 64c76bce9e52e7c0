"""One history of a queue and its workers: a seed decides it, it runs, and broken promises are named."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pairbus import Backoff
from pairbus.amqp.message import Message, Properties
from pairbus.client.processing import feed, runners
from pairbus.client.processing.held import HeldMessage
from tests.sim import faults
from tests.sim.broker import EPOCH_MS, Namespace
from tests.sim.checker import History
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.processors import links
from tests.sim.processors.checker import violations
from tests.sim.processors.entity import WorkQueue
from tests.sim.processors.handlers import Book
from tests.sim.processors.process import Worker
from tests.sim.wire import DELAY_MAX_S, IDLE_S, Net
from tests.sim.world import Report

HORIZONS_S = (10.0, 60.0, 200.0)
DRAIN_MAX_S = 7200.0  # handlers that hang keep their locks for 300 s, and retries are 300 s apart
STOP_MAX_S = 60.0
LOOK_S = 5.0


class NumberedMessage(HeldMessage):
    """Hashed by its sequence number: sets are walked in the same order in every run."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(self.sequence)


class World:
    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.dice = dice = Random(seed)
        self._tell = tell
        self.loop = VirtualLoop(dice)
        self.primary, self.secondary = Namespace("primary"), Namespace("secondary")
        self.queue = WorkQueue("orders", self.loop, dice, lock_s=dice.choice((5.0, 10.0, 30.0, 60.0)))
        self.primary.queues["orders"] = self.queue
        self.net = Net(self.loop, dice, History(), lambda owner: None)
        self.book = Book(self.queue, self.loop, dice, self.trace)
        self.sent: list[str] = []
        self.workers: list[Worker] = []
        self.options = SimpleNamespace(missing_destination_grace=900)
        self.found: list[str] = []
        "Broken promises that were seen on the way."
        self.unreliable: set[str] = set()
        self.may_dead_letter = False
        self._names = itertools.count(1)
        self._restarts = 0
        self._stopping: list[asyncio.Task[None]] = []
        self._troubles: dict[asyncio.TimerHandle, faults.Fault] = {}
        self._is_healed = False
        self._settings = _settings(dice)

    def trace(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.loop.time():10.4f}  {text}")

    def run(self) -> list[str]:
        """Play the history and return the promises that were broken."""
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # the code under test logs every failure, and this test causes many
        clock = SimpleNamespace(time=lambda: EPOCH_MS / 1000 + self.loop.time())
        try:
            with (
                patch.object(feed, "time", clock),
                patch.object(feed, "HeldMessage", NumberedMessage),
                patch.object(runners, "perf_counter", self.loop.time),
                patch.object(links, "_names", itertools.count(1)),
            ):
                self.loop.run_until_complete(self._live())
        except Stuck as error:
            self.found.append(f"stuck: {error}")
        finally:
            complaints = [f"asyncio: {complaint}" for complaint in self.loop.complaints]
            self._end()
            logging.disable(level)
        return self.found + self.book.found + complaints + violations(self)

    async def _live(self) -> None:
        dice = self.dice
        horizon_s = dice.choice(HORIZONS_S)
        for fault in self._plan(horizon_s):
            self._schedule(fault)
        for number in range(dice.randrange(3, 40)):
            self.loop.call_at(dice.choice((0.0, 0.8)) * dice.random() * horizon_s, self._send, f"sim-{number:05d}")
        for _ in range(dice.choice((1, 1, 2))):
            self._start_worker()
        await asyncio.sleep(horizon_s)
        self._heal()
        self.book.is_quiet = True
        await self._drained()
        await asyncio.sleep(IDLE_S + DELAY_MAX_S)  # connections that were deaf are over then
        await self._stopped()

    def _plan(self, horizon_s: float) -> list[faults.Fault]:
        dice, found = self.dice, []
        for _ in range(dice.choice((0, 1, 2, 4, 8))):
            lasts_s = dice.choice((0.1, 1.0, 4.0, 12.0, 40.0)) * dice.uniform(0.5, 1.5)
            found.append(faults._fault(self, dice, self.primary, dice.random() * horizon_s, lasts_s))  # type: ignore[arg-type]
        if dice.random() < 0.2:
            found.append(self._full_disk(dice.random() * horizon_s, dice.choice((5.0, 40.0))))
        for kind, act in {"a worker dies": self._crash_one, "a worker is replaced": self._replace_one}.items():
            found += [
                faults.Fault(dice.random() * horizon_s, 0.0, kind, act, lambda: None)
                for _ in range(dice.choice((0, 0, 1, 2)))
            ]
        return found

    def _full_disk(self, at: float, lasts_s: float) -> faults.Fault:
        def begin() -> None:
            self.queue.stores_nothing = True

        def end() -> None:
            self.queue.stores_nothing = False

        return faults.Fault(at, lasts_s, "the disk is full", begin, end)

    def _schedule(self, fault: faults.Fault) -> None:
        def begin() -> None:
            if not self._is_healed:
                self.trace(f"FAULT {fault.kind} for {fault.lasts_s:.1f} s")
                fault.begin()
                self._troubles[self.loop.call_later(fault.lasts_s, end)] = fault

        def end() -> None:
            self.trace(f"END   {fault.kind}")
            fault.end()

        self.loop.call_at(fault.at, begin)

    def _heal(self) -> None:
        self.trace("HEALED")
        self._is_healed = True
        for timer, fault in self._troubles.items():
            if not timer.cancelled() and timer.when() > self.loop.time():
                timer.cancel()
                fault.end()

    def _send(self, message_id: str) -> None:
        self.sent.append(message_id)
        payload = Message(
            properties=Properties(message_id=message_id), application_properties={"who": "me"}, data=[b"a book"]
        ).encode()
        trouble, self.queue.trouble = self.queue.trouble, None  # trouble of receivers only
        self.queue.store([payload], "sender")
        self.queue.trouble = trouble
        self.queue.dispatch()

    # ── workers ──

    def _start_worker(self) -> None:
        worker = Worker(self, f"worker{next(self._names)}", self._settings)
        self.workers.append(worker)
        worker.start()

    @property
    def _alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive and worker.processing.state == "running"]

    def _crash_one(self) -> None:
        if self._alive:
            self.dice.choice(self._alive).crash()
            self._restarts += 1
            self.loop.call_later(self.dice.choice((0.1, 5.0, 50.0)), self._restart)

    def _restart(self) -> None:
        self._restarts -= 1
        self._start_worker()

    def _replace_one(self) -> None:
        """A new version is rolled out: the old worker is told to stop, the new one is there already."""
        if self._alive:
            old, dice = self.dice.choice(self._alive), self.dice
            drain, timeout_s = dice.random() < 0.7, dice.choice((None, 1.0, 20.0))
            self._stopping.append(self.loop.create_task(old.stop(drain=drain, timeout_s=timeout_s)))
            self._start_worker()

    async def _drained(self) -> None:
        until = self.loop.time() + DRAIN_MAX_S
        while (
            self._restarts
            or self.queue.copies
            or self.queue.scheduled
            or any(not each.done() for each in self._stopping)
        ):
            if self.loop.time() > until:
                self.found.append(f"left behind: {len(self.queue.copies)} in the queue, long after all was healed")
                return
            await asyncio.sleep(LOOK_S)
        for task in self._stopping:
            task.result()

    async def _stopped(self) -> None:
        """Fill the queue once more and stop the workers in the middle of it: nothing may stay locked."""
        self.found += [
            f"ended by itself: {each.name}: {each.processing.failure!r}"
            for each in self.workers
            if each.is_alive and each.processing.state != "running"
        ]
        self.book.is_quiet = self.dice.random() < 0.5
        first = len(self.sent)
        for number in range(first, first + 12):
            self._send(f"sim-{number:05d}")
        await asyncio.sleep(self.dice.choice((0.0, 0.02, 0.3, 3.0)))
        for worker in self._alive:
            drain = self.book.is_quiet or self.dice.random() < 0.5
            try:
                async with asyncio.timeout(STOP_MAX_S):
                    await worker.stop(drain=drain, timeout_s=20.0)
            except TimeoutError:
                self.found.append(f"not stopped: {worker.name} within {STOP_MAX_S:.0f} s")
        self.found += [f"locked after the stop: {copy.message_id}" for copy in self.queue.locked]

    def _end(self) -> None:
        for task in sorted(asyncio.all_tasks(self.loop), key=hash):
            task.cancel()
        self._tell = None
        for worker in self.workers:
            worker.end()
        self.loop.run_until_complete(asyncio.sleep(30.0))
        self.loop.close()


def _settings(dice: Random) -> dict[str, Any]:
    return {
        "max_concurrent_calls": dice.choice((1, 4, 16)),
        "retry": dice.choice((None, Backoff(), Backoff(first=0.5, factor=1.5, max=5.0), Backoff())),
        "max_attempts": dice.choice(("default", "default", 3, None)),
        "max_auto_lock_renewal_duration": dice.choice((300.0, 300.0, 20.0, 0.0)),
    }


def play(seed: int, *, tell: Callable[[str], None] | None = None) -> Report:
    """Run the history of one seed."""
    began = time.perf_counter()
    world = World(seed, tell=tell)
    found = world.run()
    return Report(seed, found, time.perf_counter() - began, world.loop.steps, len(world.sent))
