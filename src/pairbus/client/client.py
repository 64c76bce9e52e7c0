"""`PairedServiceBusClient` and `PairedSender` for asyncio: drop-ins for those of `azure.servicebus.aio`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any, Self

from azure.servicebus import ServiceBusMessageBatch

from pairbus.client.errors import tell_outcome, tells_outcome
from pairbus.client.face import Job, PairedClientFace, PairedSenderFace
from pairbus.client.life import AioLife
from pairbus.pairing.events import Closed, Event
from pairbus.pairing.side_states import PairSide
from pairbus.sdk.receivers import end_async_receiver
from pairbus.transport.tasks import Tasks

EVENTS_MAX = 10_000  # events that an iterator may be behind; older ones are dropped then


class PairedServiceBusClient(PairedClientFace["PairedSender"]):
    """A client that sends to the primary, or to backlog queues of the secondary while the primary is away.

    It receives from the primary. It belongs to one event loop, and to the next one when that has ended; its tasks may
    share it. `from_connection_strings` and `from_credential` make the clients of the SDK too; the constructor takes
    clients of the SDK, which it then owns and closes.
    """

    AIO = True
    _life: AioLife

    def _new_life(self) -> AioLife:
        self._life = AioLife(self._state)
        return self._life

    async def __aenter__(self) -> Self:
        await self.pair()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ── pairing ──

    async def pair(self) -> None:
        """Find or create the backlog queues, before the first send. `async with`, or the first send, does it too."""
        await self._life.engine_here().pair()

    async def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        await self._life.engine_here().clear_pairing()

    def _force(self, entity: str, *, over: bool) -> None:
        self._state.force(entity, over=over)

    def _fault(self, side: PairSide, reason: str) -> None:
        engine = self._life.engine
        (engine or self._state).fault(side, reason)
        if self._state.is_faulted and engine is not None and not engine.loop.is_closed():
            for receiver in list(self._receivers):
                engine.loop.call_soon_threadsafe(_end_receiver, engine.tasks, receiver)  # the loop may stand now

    async def events(self) -> AsyncIterator[Event]:
        """Yield every event from now on. A reader that is more than 10 000 behind loses the oldest."""
        if self._state.is_closed:
            return
        self._life.engine_here()
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
            if listen in listeners:  # it is gone when its event loop has ended
                listeners.remove(listen)

    async def close(self) -> None:
        """Stop pings and pumps (they get 5 seconds to finish what they hold) and close both sides.

        Closing goes on when the caller is cancelled, and a later call waits for its end.
        """
        await self._life.close(self._close_sides)

    async def _close_sides(self) -> None:
        await self._primary.close()
        await self._secondary.close()

    def _new_sender(self, path: str, client_identifier: str | None) -> PairedSender:
        return PairedSender(self, path, client_identifier)


def _end_receiver(tasks: Tasks, receiver: Any) -> None:
    tasks.start(end_async_receiver(receiver), "closing a receiver of a faulted client")


class PairedSender(PairedSenderFace):
    """A sender to one queue or topic. Any number of tasks may share it: their sends are pipelined."""

    def __init__(self, client: PairedServiceBusClient, path: str, client_identifier: str | None = None) -> None:
        super().__init__(client, path, client_identifier)
        self._client = client

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _do(self, begin: Callable[..., Job | None], *given: Any) -> Any:
        """Make a job and do it."""
        try:
            job = begin(*given)
            if job is None:
                return None
            engine = self._client._life.engine_here()
            with job.span:
                return await job.work(engine)
        except Exception as error:
            if not tells_outcome(error):  # it was raised before the first attempt
                tell_outcome(error)
            raise

    async def close(self) -> None:
        await self._do(self._closing)

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Send; return when the primary, a backlog queue or the spool has stored the message, raise when none did."""
        await self._do(self._sending, message, timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Make a batch, also while the primary is away: then with the limit that its link had."""
        return self._new_batch(await self._do(self._asking_limit), max_size_in_bytes)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Schedule messages on the primary only: a backlog queue has no sequence numbers to cancel by."""
        return await self._do(self._scheduling, messages, schedule_time_utc, timeout) or []

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        await self._do(self._cancelling, sequence_numbers, timeout)
