"""`PairedServiceBusClient` for asyncio: a drop-in for `azure.servicebus.aio.ServiceBusClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from pairbus import sdk
from pairbus.client.engine import Engine
from pairbus.client.face import PairedClientFace, sender_keywords
from pairbus.client.sender import PairedSender
from pairbus.pairing.events import Closed, Event
from pairbus.pairing.life import Side as SideName
from pairbus.transport.threads import in_thread

EVENTS_MAX = 10_000  # that an iterator may be behind; older ones are dropped then


class PairedServiceBusClient(PairedClientFace):
    """Sends to the primary, or to backlog queues of the secondary while the primary is away; receives from the primary.

    Belongs to one event loop, and to the next one when that has ended; safe to share between its tasks. Made by
    `from_connection_strings` or `from_credential`, everything that it needs is made for it; the constructor takes
    clients of the SDK, which it then owns and closes.
    """

    AIO = True
    _engine: Engine | None = None

    async def __aenter__(self) -> Self:
        await self.pair()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _engine_here(self) -> Engine:
        """Return the engine of the running loop; a loop that is not the client's is refused while the other lives."""
        engine, loop = self._engine, asyncio.get_running_loop()
        if engine is not None and engine.loop is loop:
            return engine
        if engine is not None:
            if not engine.loop.is_closed():
                raise RuntimeError("This client belongs to another event loop, which is not closed: make one for each.")
            self._state.after_loop()
        self._engine = Engine(self._state)
        return self._engine

    # ── pairing ──

    async def pair(self) -> None:
        """Find or create the backlog queues. Nothing is sent before; `async with`, or the first send, does it."""
        await self._engine_here().pair()

    async def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        await self._engine_here().clear_pairing()

    def force_failover(self, entity: str) -> None:
        """Send this entity's messages to the backlog until `force_healthy` is called."""
        self._state.force(entity, over=True)

    def force_healthy(self, entity: str) -> None:
        """Send this entity's messages to the primary again, whatever is known about it."""
        self._state.force(entity, over=False)

    def fault(self, side: SideName = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other follows."""
        self._fault(side, "fault() was called")

    def _fault(self, side: SideName, reason: str) -> None:
        if self._engine is None:
            self._state.fault(side, reason)
        else:
            self._engine.fault(side, reason)
        if self._state.is_faulted and self._engine is not None and not self._engine.loop.is_closed():
            for receiver in list(self._receivers):
                self._engine.spawn(sdk.end_async_receiver(receiver))

    def _closed_under_us(self, side: SideName) -> None:
        if not self._state.is_closed:
            self._fault(side, f"the client of the {side} was closed by somebody else")

    async def events(self) -> AsyncIterator[Event]:
        """Yield every event from now on. A reader that is more than 10 000 behind loses the oldest."""
        if self._state.is_closed:
            return
        self._engine_here()
        queue: asyncio.Queue[Event] = asyncio.Queue(EVENTS_MAX)

        def listen(event: Event) -> None:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

        listeners = self._state.events.listeners
        listeners.append(listen)
        try:
            while True:
                event = await queue.get()
                yield event
                if isinstance(event, Closed):
                    return
        finally:
            if listen in listeners:  # not any more when its event loop has ended
                listeners.remove(listen)

    async def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides."""
        if self._state.is_closed:
            return
        engine = self._engine_here()
        self._state.is_closed = True
        await engine.close()
        await self._primary.close()
        await self._secondary.close()
        await in_thread("pairbus-release", self._state.release)

    # ── senders ──

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> PairedSender:
        self._state.check()
        return PairedSender(self, queue_name, **sender_keywords(kwargs))

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> PairedSender:
        self._state.check()
        return PairedSender(self, topic_name, **sender_keywords(kwargs))

    def _after_fork(self) -> None:
        sdk.keep(self._engine)
        self._engine = None
        super()._after_fork()
