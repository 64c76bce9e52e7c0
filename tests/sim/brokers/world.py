"""One history of a broker: a seed decides entities, clients, disk and kills; the checker names broken promises."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from unittest.mock import patch

from pairbus.broker import forward
from pairbus.broker.boxes import box, due, line, sessions
from pairbus.broker.entities import overdue, schedule
from tests.sim.brokers.checker import leftovers, miscounts, violations
from tests.sim.brokers.clients import Client
from tests.sim.brokers.disk import DiskStore, Platter, Wear
from tests.sim.brokers.ledger import Ledger
from tests.sim.brokers.process import EPOCH_MS, BrokerProcess, ProcessLoop
from tests.sim.brokers.senders import Sender
from tests.sim.brokers.topology import Topology
from tests.sim.loop import Stuck, VirtualLoop
from tests.sim.world import Report

STEPS = (60, 120)
PAUSES_S = (0.005, 0.05, 0.4)  # between two steps of all clients, at most
SETTLE_S = 30.0  # longer than any lock, schedule, time to live and pause: then nothing moves any more
LOOK_S = 0.2  # longer than a few commits of a healed disk, shorter than any lock
HEALED_S = 0.003
LIMITS = (
    *((line, "READY_MAX"), (box, "CHUNK_MAX"), (line, "SLACK"), (due, "SLACK"), (schedule, "CHUNK_MAX")),
    *((overdue, "CHUNK_MAX"), (sessions, "READY_MAX"), (sessions, "SLACK"), (forward, "BATCH_MAX")),
)
"Limits that a dozen messages never meet, unless they are small."


class World:
    def __init__(self, seed: int, *, tell: Callable[[str], None] | None = None) -> None:
        self.dice = dice = Random(seed)
        self._tell = tell
        self.loop = VirtualLoop(dice)
        self.topology = Topology(dice)
        self.ledger = Ledger(self.topology)
        self.platter = Platter(self.topology.descriptions())
        self._wear = Wear(
            dice.choice((0.003, 0.03, 0.3)), dice.choice((0.001, 0.03, 0.3)), dice.choice((0.0, 0.0, 0.05))
        )
        self._kill_chance = dice.choice((0.0, 0.01, 0.04))
        "Probability that the broker is killed about a commit."
        self.process: BrokerProcess | None = None
        self.senders = [Sender(self, f"sender{number}") for number in range(2)]
        self.clients = [Client(self, f"client{number}") for number in range(3)]
        self._is_healed = False
        self._numbers = 0

    def trace(self, text: str) -> None:
        if self._tell is not None:
            self._tell(f"{self.loop.time():10.4f}  {text}")

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.loop.time() * 1000)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    # ── the broker's life ──

    def start(self) -> None:
        self.process = BrokerProcess(self.loop, self._store)
        self.trace("the broker starts")
        self.ledger.found += self.process.damage
        self.ledger.found += miscounts(self.process, self.platter)

    def _store(self, loop: ProcessLoop) -> DiskStore:
        return DiskStore(self.platter, loop, self.dice, self._wear, self._committed)

    def _committed(self) -> None:
        if not self._is_healed and self.dice.random() < self._kill_chance:
            self.loop.call_later(self.dice.random() * self._wear.answer_s * 2, self.kill)

    def kill(self) -> None:
        if self.process is None or self._is_healed:
            return
        self.trace(f"the broker is killed: {self.process.kill()}")
        self.process = None
        self.ledger.killed()
        for client in self.clients:
            client.disconnected()
        self.loop.call_later(self.dice.random() * self.dice.choice((0.1, 3.0)), self.start)

    # ── the course of things ──

    def run(self) -> list[str]:
        """Play the history; return the broken promises."""
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        with ExitStack() as stack:
            if self.dice.random() < 0.5:
                for module, name in LIMITS:
                    stack.enter_context(patch.object(module, name, 2))
            try:
                self.loop.run_until_complete(self._live())
            except Stuck as error:
                self.ledger.violation(f"stuck: {error}")
            except Exception as error:  # an operation of the broker raised: reported as a violation with its seed
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.ledger.violation(f"raised: {error!r} in {where.name}, line {where.lineno} of {where.filename}")
            finally:
                self.loop.close()
                logging.disable(level)
        found = self.ledger.found + [f"asyncio: {complaint}" for complaint in self.loop.complaints]
        return found + violations(self.ledger, self.now_ms())

    async def _live(self) -> None:
        dice = self.dice
        self.start()
        pause_s = dice.choice(PAUSES_S)
        for _ in range(dice.choice(STEPS)):
            await asyncio.sleep(dice.random() * pause_s)
            if self.process is not None:
                self._act()
            if dice.random() < 0.005:
                self.kill()
        self._is_healed = True
        self._wear.commit_s = self._wear.answer_s = HEALED_S
        self._wear.failing = 0.0
        await asyncio.sleep(SETTLE_S)
        assert self.process is not None
        self.trace("nothing moves any more")
        for client in self.clients:
            client.close()
        await asyncio.sleep(LOOK_S)
        await self._drain()

    def _act(self) -> None:
        sender, client = self.dice.choice(self.senders), self.dice.choice(self.clients)
        actions = (
            *((sender.send, 10), (sender.cancel, 1), (client.receive, 12), (client.settle, 12), (client.renew, 2)),
            *((client.receive_deferred, 2), (client.peek, 1), (client.state, 2), (client.close, 1)),
            (client.leave, 2),
        )
        [action] = self.dice.choices([each for each, _ in actions], [weight for _, weight in actions])
        action()

    # ── the end ──

    async def _drain(self) -> None:
        """Look at everything, receive everything, complete everything; then nothing is left."""
        assert self.process is not None
        self.ledger.found += miscounts(self.process, self.platter)
        auditor = Client(self, "auditor")
        for path in self.topology.leaves:
            for is_dead in (True, False):
                await self._drain_box(auditor, path, is_dead)
        await asyncio.sleep(LOOK_S)
        self.ledger.found += miscounts(self.process, self.platter) + leftovers(self.platter)

    async def _drain_box(self, auditor: Client, path: str, is_dead: bool) -> None:
        there = auditor.peeked(path, is_dead, 10_000)
        copies = [self.ledger.seen(path, is_dead, message) for message in there]
        deferred = {message.seq: message.session_id for message in there if message.state}
        if self.topology.places[path].has_sessions and not is_dead:
            for session_id in sorted({message.session_id for message in there}):
                if auditor.accept(path, session_id):
                    mine = [seq for seq, each in deferred.items() if each == session_id]
                    await self._drain_line(auditor, path, is_dead, mine)
                    auditor.close()
        else:
            await self._drain_line(auditor, path, is_dead, list(deferred))
        for copy in copies:
            if copy is not None and not copy.is_gone:
                self.ledger.violation(f"stuck: {copy.text} of {path} is shown, and cannot be received")

    async def _drain_line(self, auditor: Client, path: str, is_dead: bool, deferred: list[int]) -> None:
        if deferred:
            auditor.take_deferred(path, is_dead, deferred, for_good=False)
            await asyncio.sleep(LOOK_S)
        while auditor.take(path, is_dead, 1, for_good=False):
            pass
        if auditor.deliveries:
            auditor.complete(list(auditor.deliveries))
        await asyncio.sleep(LOOK_S)


def play(seed: int, *, tell: Callable[[str], None] | None = None) -> Report:
    """Run the history of one seed."""
    began = time.perf_counter()
    world = World(seed, tell=tell)
    found = world.run()
    return Report(seed, found, time.perf_counter() - began, world.loop.steps, len(world.ledger.sent))
