"""`PairedSender` for asyncio: a drop-in for `azure.servicebus.aio.ServiceBusSender`."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusMessageBatch

from pairbus import sdk
from pairbus.client.face import PairedSenderFace, timeout_of
from pairbus.client.outgoing import new_batch, scheduled

if TYPE_CHECKING:
    from pairbus.client.client import PairedServiceBusClient


class PairedSender(PairedSenderFace):
    """Sends to one queue or topic. Any number of tasks may share it: their sends are pipelined."""

    def __init__(self, client: PairedServiceBusClient, path: str, client_identifier: str | None = None) -> None:
        super().__init__(client, path, client_identifier)
        self._client = client

    async def __aenter__(self) -> Self:
        self._check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._origin.link_name is not None and not self._state.is_closed:
                await self._client._engine_here().forget_link(self._origin)

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """Return when the primary, a backlog queue or the spool has stored it; raise when none did."""
        timeout_s = timeout_of(timeout)
        self._check()
        engine = self._client._engine_here()
        going = self._outgoing(message)
        if going is None:
            return
        with self._span(sdk.SEND, going):
            await engine.send(self._origin, going, timeout_s)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Make a batch, also while the primary is away: then with the limit that its link had."""
        self._check()
        limit = await self._client._engine_here().batch_limit(self._origin)
        return new_batch(limit, max_size_in_bytes, sdk.attributes(self.fully_qualified_namespace, self.entity_name))

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime, *, timeout: float | None = None
    ) -> list[int]:
        """Schedule messages on the primary only: a backlog queue has no sequence numbers to cancel by."""
        timeout_s = timeout_of(timeout)
        self._check()
        engine = self._client._engine_here()
        entries, going = scheduled(messages, schedule_time_utc, self._traced())
        if going is None:
            return []
        with self._span(sdk.SCHEDULE, going):
            return await engine.schedule(self._origin, going, entries, timeout_s)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        timeout_s = timeout_of(timeout)
        self._check()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if numbers:
            await self._client._engine_here().cancel(self._origin, numbers, timeout_s)
