"""One round: a storm, the healing, the drain, and everything that was recorded."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from pairbus.transport import ClientConnection, NextSession, Refused, connect
from tests.nemesis.log import Log
from tests.nemesis.messages import recognise
from tests.nemesis.places import BACKLOG, PRIMARY, SECONDARY, SESSION_SINKS, SINKS
from tests.nemesis.plan import AddFault, Kill, Plan, Stop
from tests.nemesis.world import World

DRAIN_S, DRAIN_PER_S = 60.0, 1000.0
CALLS_WITHIN_S = 30.0
LOOK_S = 0.5
DEAD = "/$DeadLetterQueue"
PAGE = 200


@dataclass(slots=True)
class Story:
    """Outcome of a round."""

    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    gave_up: Counter[str] = field(default_factory=Counter)
    "Processes that ended without being asked, and were started again."
    backlog: int = 0
    "Messages in the backlog queues when everything was healed."
    drained_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    "Sentences about other faults than those of messages."


class Round:
    """A round in a world whose brokers run."""

    def __init__(self, world: World, number: int, plan: Plan) -> None:
        self.story = Story()
        self.folder = world.folder / f"round-{number}"
        self._world = world
        self._number = number
        self._plan = plan
        self._hurt: set[str] = set()
        "Processes that are stopped or killed now: no other fault is done to them meanwhile."
        self._restarting: dict[str, asyncio.Event] = {}
        "Killed processes; set when they run again."

    async def run(self) -> None:
        """Play the storm, heal, and drain; everything is in the logs of the folder then."""
        world, plan = self._world, self._plan
        self.folder.mkdir()
        await asyncio.to_thread(world.begin_round, self._number, self.folder, plan)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            caring = group.create_task(self._care())
            for step in plan.steps:
                await asyncio.sleep(max(began + step.at - time.monotonic(), 0.0))
                group.create_task(self._play(step, began + plan.storm_s))
            await asyncio.sleep(max(began + plan.storm_s - time.monotonic(), 0.0))
            deadline = began + plan.storm_s + CALLS_WITHIN_S
            while self._calls() < plan.calls_least and time.monotonic() < deadline:  # noqa: ASYNC110 - it is in files
                await asyncio.sleep(LOOK_S)
            caring.cancel()
        await self._heal()
        await self._drain()
        await self._end()

    def _calls(self) -> int:
        """Count the calls of senders."""
        files = [file for name in self._plan.senders for file in self.folder.glob(f"{name}*.jsonl")]
        return sum(file.read_text().count('["call"') for file in files)

    # ── the storm ──

    async def _play(self, step: AddFault | Kill | Stop, until: float) -> None:
        if isinstance(step, AddFault):
            if step.side in self._restarting:
                await self._restarting[step.side].wait()
            if await asyncio.to_thread(self._world.add_fault, step.side, step.fields):
                self.story.faults[step.fields["kind"]] += 1
            return
        victims = [name for name in step.processes if name not in self._hurt]
        self._hurt |= set(victims)
        if isinstance(step, Kill):
            self.story.kills.update(victims)
            self._restarting |= {name: asyncio.Event() for name in victims}
            await asyncio.gather(*(asyncio.to_thread(self._world.kill, name) for name in victims))
        else:
            self.story.stops.update(victims)
            for name in victims:
                self._world.send(name, signal.SIGSTOP)
        await asyncio.sleep(max(min(step.for_s, until - time.monotonic()), 0.0))
        if isinstance(step, Kill):
            await asyncio.gather(*(asyncio.to_thread(self._world.start, name) for name in victims))
            for name in victims:
                self._restarting.pop(name).set()
        else:
            for name in victims:
                self._world.send(name, signal.SIGCONT)
        self._hurt -= set(victims)

    async def _care(self) -> None:
        """Start processes again that gave up by themselves."""
        while True:
            await asyncio.sleep(1.0)
            self._start_missing(set(self._world.children) - self._hurt)

    def _start_missing(self, names: set[str]) -> None:
        for name in names:
            if not self._world.children[name].look():
                self._world.start(name)

    # ── the end ──

    async def _heal(self) -> None:
        """Every step of the storm has undone itself; faults may last longer."""
        world = self._world
        self._start_missing(set(world.children) - set(self._plan.senders))
        for side in (PRIMARY, SECONDARY):
            await asyncio.to_thread(world.clear_faults, side)
        for name in self._plan.senders:
            world.send(name, signal.SIGTERM)
        counts = await asyncio.to_thread(world.counts)
        self.story.backlog = sum(counts[queue] for queue in BACKLOG)

    async def _drain(self) -> None:
        """Wait until nothing waits anywhere; too long is a violation."""
        world, story, began = self._world, self.story, time.monotonic()
        limit_s = DRAIN_S + story.backlog / DRAIN_PER_S
        ending = [asyncio.create_task(asyncio.to_thread(world.children[name].finish)) for name in self._plan.senders]
        for name, ended in zip(self._plan.senders, await asyncio.gather(*ending), strict=True):
            if not ended:
                story.wrong.append(f"the sender {name} did not end after SIGTERM")
        while left := await asyncio.to_thread(world.counts):
            if time.monotonic() > began + limit_s:
                story.wrong.append(f"not drained within {limit_s:.1f} s: {dict(left)}")
                break
            await asyncio.sleep(LOOK_S)
            self._start_missing(set(world.children) - set(self._plan.senders))
        story.drained_s = time.monotonic() - began

    async def _end(self) -> None:
        """End receivers and syphons, and look with links of our own for messages that are left."""
        world = self._world
        names = [*self._plan.receivers, *self._plan.syphons]
        for name in names:
            world.send(name, signal.SIGTERM)
        ended = await asyncio.gather(*(asyncio.to_thread(world.children[name].finish) for name in names))
        self.story.wrong += [
            f"{name} did not end after SIGTERM" for name, is_over in zip(names, ended, strict=True) if not is_over
        ]
        self.story.gave_up = +Counter({name: len(child.ended_early) for name, child in world.children.items()})
        log = Log(self.folder / "drain.jsonl")
        for side, paths in ((PRIMARY, SINKS), (SECONDARY, BACKLOG)):
            async with await connect(world.connection_string(side)) as connection:
                for path in paths:
                    for source in (path, path + DEAD):
                        await _take_all(connection, source, path, log)
        self.story.wrong += world.tracebacks()


async def _take_all(connection: ClientConnection, source: str, path: str, log: Log) -> None:
    session = NextSession(0.2) if source in SESSION_SINKS else None
    while True:
        try:
            receiver = await connection.receiver(source, mode="receive-and-delete", credit=PAGE, session=session)
        except Refused:
            if session is None:
                raise
            return  # no session has messages
        batch = await receiver.receive(PAGE, timeout_s=0)
        await receiver.pause()  # when this returns, all messages of the queue have arrived
        while batch or receiver.buffered:
            for received in batch:
                message_id, number, digest = recognise(received.payload)
                log.add(("left", source, path, number, message_id, digest))
            batch = await receiver.receive(PAGE, timeout_s=0)
            await receiver.pause()
        await receiver.close()
        if session is None:
            return
