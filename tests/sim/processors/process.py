"""One worker of a history: the genuine processor for asyncio, in a process that can die at any moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pairbus.client.event_outbox import EventOutbox
from pairbus.client.metering import Meters
from pairbus.client.processing.events import LockLost, NotSettled
from pairbus.client.processing.options import ProcessorOptions, queue_options
from pairbus.client.processing.processing import Processing
from pairbus.client.processing.runners import LoopRunner
from pairbus.client.receiving.shared import Receiving
from pairbus.errors import PairbusError
from pairbus.pairing.events import Event
from pairbus.telemetry.counters import Counters
from tests.sim.processors.links import WorkCarrier

if TYPE_CHECKING:
    from tests.sim.processors.world import World

CLOSE_S = 5.0


class Worker:
    """A process with one processor."""

    def __init__(self, world: World, name: str, options: dict[str, Any]) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        "False when the process has died, or was stopped."
        self._has_died = False
        self._carrier = WorkCarrier(world.net, world.primary, f"{name} processor")
        self._carrier.book = world.book
        counters = Counters()
        state = SimpleNamespace(
            options=SimpleNamespace(connect_timeout=3.0),
            primary=SimpleNamespace(new_carrier=lambda timeout_s, credential: self._carrier),
            meters=Meters(None, {}),
            counters=counters,
            events=EventOutbox(counters, None, None),
            processors=[],
            check_receiver=self._check,
        )
        self._receiving = Receiving(cast(Any, state))
        self._runner = LoopRunner(self._handle, self._heard, auto_complete=True, loop=world.loop)
        self.processing = Processing(
            self._receiving,
            queue_options(world.queue.path, only_entity=None),
            ProcessorOptions(**options, on_error=self._heard),
            self._runner,
            lambda event: None,
            is_queue=True,
            can_cancel=True,
        )
        self.processing.chance = world.dice.random

    def start(self) -> None:
        self.processing.start()

    async def _handle(self, message: Any) -> None:
        if self.is_alive:
            await self.world.book.handle(self.name, message)

    def _heard(self, event: Event) -> None:
        if not self._has_died:
            self.world.trace(f"{self.name}: {event}")
            if isinstance(event, LockLost | NotSettled):
                self.world.book.excused.add(event.message_id)

    def _check(self) -> None:
        if not self.is_alive:
            raise PairbusError("the process is dead")

    async def stop(self, *, drain: bool, timeout_s: float | None) -> None:
        """End in order."""
        self.world.trace(f"{self.name} stops, drain={drain}")
        await self.processing.stop(drain=drain, timeout_s=timeout_s)
        await self._receiving.close(CLOSE_S)
        self.is_alive = False
        self.world.trace(f"{self.name} has stopped")

    def crash(self) -> None:
        """Between one instruction and the next: nothing is said or done any more."""
        self.is_alive, self._has_died = False, True
        self.world.trace(f"{self.name} dies")
        settling = [work.name for feed in self.processing._feeds for work in feed._settling]
        self.world.book.died(self.name, settling)
        self._carrier.die()
        tasks: list[asyncio.Task[Any]] = [*self.processing.tasks, *self._receiving.tasks, *self._runner._tasks]
        for task in sorted(tasks, key=hash):
            task.cancel()

    def end(self) -> None:
        self._carrier.die()
