"""Clients and senders for asyncio: drop-ins for those of `azure.servicebus.aio`, with a pair and without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Self, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient as AsyncSdkClient

from pairbus.client.background import PUMP_GRACE_S
from pairbus.client.errors import tell_outcome, tells_outcome
from pairbus.client.face import ClientFace, Job, SenderFace, SenderT
from pairbus.client.life import AioLife
from pairbus.client.paired import PairedClientFace
from pairbus.client.processing.aio import ServiceBusProcessor
from pairbus.client.processing.message import AioProcessorMessage
from pairbus.client.processing.thread import ProcessingThread, new_thread
from pairbus.client.receiving.aio import ServiceBusReceiver
from pairbus.client.receiving.options import ReceiverOptions
from pairbus.client.single import SingleClientFace
from pairbus.pairing.events import Closed, Event
from pairbus.pairing.side_states import PairSide

EVENTS_MAX = 10_000  # events that an iterator may be behind; older ones are dropped then


class AioClient(ClientFace[SenderT, ServiceBusReceiver]):
    """A client for asyncio, of a pair or of one namespace."""

    AIO = True
    _life: AioLife
    _thread: ProcessingThread | None = None

    def _new_receiver(self, options: ReceiverOptions) -> ServiceBusReceiver:
        return ServiceBusReceiver(self, options)

    def _new_life(self) -> AioLife:
        self._life = AioLife(self._state)
        return self._life

    async def __aenter__(self) -> Self:
        self._state.check()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _fault(self, side: PairSide, reason: str) -> None:
        (self._life.engine or self._state).fault(side, reason)
        if self._state.is_faulted and self._thread is not None:
            self._thread.end()

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

    # ── processors ──

    def get_queue_processor(
        self, queue_name: str, handler: Callable[[AioProcessorMessage], Awaitable[object]], **options: Any
    ) -> ServiceBusProcessor:
        """Return a processor, which calls `handler` for each message of the primary's queue.

        docs/receiving.md has the options.
        """
        self._state.check()
        return ServiceBusProcessor(self, (queue_name,), handler, options)

    def get_subscription_processor(
        self,
        topic_name: str,
        subscription_name: str,
        handler: Callable[[AioProcessorMessage], Awaitable[object]],
        **options: Any,
    ) -> ServiceBusProcessor:
        """Return a processor, which calls `handler` for each message of the primary's subscription."""
        self._state.check()
        return ServiceBusProcessor(self, (topic_name, subscription_name), handler, options)

    def _processing_thread(self) -> ProcessingThread:
        """Return the thread in which the processors of this client work."""
        if self._thread is None or not self._thread.is_usable:
            self._thread = new_thread(self._state)
        return self._thread

    async def close(self) -> None:
        """Stop what is under way (it gets 5 seconds to end) and close all connections.

        Closing goes on when the caller is cancelled, and a later call waits for its end.
        """
        for processor in list(self._processors):
            await processor.stop(timeout=PUMP_GRACE_S)
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.close()
        await self._life.close(self._close_sides)

    async def _close_sides(self) -> None:
        for side in self._state.sides.values():
            await cast(AsyncSdkClient, side.client).close()


class ServiceBusClient(SingleClientFace["ServiceBusSender", ServiceBusReceiver], AioClient["ServiceBusSender"]):
    """A client of one namespace: a drop-in for that of `azure.servicebus.aio`, on the engine of the paired client.

    It belongs to one event loop, and to the next one when that has ended; its tasks may share it.
    """

    def _new_sender(self, path: str, client_identifier: str | None) -> ServiceBusSender:
        return ServiceBusSender(self, path, client_identifier)


class PairedServiceBusClient(PairedClientFace["PairedSender", ServiceBusReceiver], AioClient["PairedSender"]):
    """A client that sends to the primary, or to backlog queues of the secondary while the primary is away.

    It receives from the primary. It belongs to one event loop, and to the next one when that has ended; its tasks may
    share it. `from_connection_strings` and `from_credential` make the clients of the SDK too; the constructor takes
    clients of the SDK, which it then owns and closes.
    """

    async def __aenter__(self) -> Self:
        await self.pair()
        return self

    async def pair(self) -> None:
        """Find or create the backlog queues, before the first send. `async with`, or the first send, does it too."""
        await self._life.engine_here().pair()

    async def clear_pairing(self) -> None:
        """Forget all state and timers, and be a plain client of the primary from now on. The spool is given back."""
        await self._life.engine_here().clear_pairing()

    def _force(self, entity: str, *, over: bool) -> None:
        self._state.force(entity, over=over)

    def _new_sender(self, path: str, client_identifier: str | None) -> PairedSender:
        return PairedSender(self, path, client_identifier)


class ServiceBusSender(SenderFace):
    """A sender to one queue or topic. Any number of tasks may share it: their sends are pipelined."""

    def __init__(self, client: AioClient[Any], path: str, client_identifier: str | None = None) -> None:
        super().__init__(client, path, client_identifier)
        self._client = client

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _do(self, begin: Callable[..., Job | None], *arguments: Any) -> Any:
        """Make a job and do it."""
        try:
            job = begin(*arguments)
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
        """Send; return when the message is stored, raise when it is not: `outcome_unknown` tells whether it may be."""
        await self._do(self._sending, message, timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Make a batch, also while the namespace is away: then with the limit that its link had."""
        return self._new_batch(await self._do(self._asking_limit), max_size_in_bytes)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Schedule messages, on the primary only: a backlog queue has no sequence numbers to cancel by."""
        return await self._do(self._scheduling, messages, schedule_time_utc, timeout) or []

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        await self._do(self._cancelling, sequence_numbers, timeout)


class PairedSender(ServiceBusSender):
    """A sender of a paired client: a message is stored in the primary, in a backlog queue or in the spool."""
