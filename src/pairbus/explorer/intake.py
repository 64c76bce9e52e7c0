"""Receiving under lock from one entity, also session by session; no message stays locked, also after errors.

Laws of this file.
 1. Every message that was received is completed, released, or lost with its link, when `close` returns.
 2. Locks of messages that are held for long are renewed.
 3. A link that breaks is opened again; its messages are received again when their locks have run out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Self

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.explorer.address import Address
from pairbus.explorer.calls import RetryPatience, is_passing, uninterrupted
from pairbus.explorer.message import LOCKED_UNTIL, annotations_of
from pairbus.explorer.sessions import session_ids
from pairbus.transport import Carrier, ClientConnection, ReceivedMessage, Receiver, Refused, TransportError

CREDIT = 200  # messages locked ahead
BATCH = 100
WAIT_S = 1.0  # wait for the next message before the entity counts as empty
RENEWED_AT_ONCE = 500
RENEW_MIN_S, RENEW_MAX_S = 1.0, 20.0
CLOSE_S = 5.0
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"


class MessageIntake:
    """A receiver of an entity. Use it as a context manager; one task at a time."""

    def __init__(
        self,
        carrier: Carrier,
        address: Address,
        *,
        session: str | None = None,
        credit: int = CREDIT,
        wait_s: float = WAIT_S,
    ) -> None:
        self._carrier = carrier
        self._address = address
        self._session = session
        self._credit = credit
        self._wait_s = wait_s
        self._connection: ClientConnection | None = None
        self._receiver: Receiver | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renew_s = RENEW_MAX_S
        self._is_next_wanted = False
        self.held: dict[int, ReceivedMessage] = {}
        "Messages that are locked by this intake, by delivery id."
        self.locked_sessions: list[str] = []
        "Sessions that another receiver has."
        self.lost = 0
        "Messages whose link broke while they were held."

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await uninterrupted(self.close())

    async def batches(self, patience: RetryPatience) -> AsyncIterator[list[ReceivedMessage]]:
        """Yield messages as they arrive, until none arrives for a moment; session by session if there are sessions."""
        if self._session is not None:
            async for batch in self._link_batches(self._session, patience):
                yield batch
            return
        try:
            async for batch in self._link_batches(None, patience):
                yield batch
            return
        except Refused as error:
            if error.condition != NOT_ALLOWED or self._address.is_dead_letter:
                raise
        for session in await session_ids(self._carrier, self._address):
            async for batch in self._link_batches(session, patience):
                yield batch

    def skip_rest(self) -> None:
        """Receive no more from this link: go on with the next session, if there is one."""
        self._is_next_wanted = True

    async def _link_batches(self, session: str | None, patience: RetryPatience) -> AsyncIterator[list[ReceivedMessage]]:
        arrived_bytes = 0
        while True:
            try:
                if not await self._open(session):
                    return
                assert self._receiver is not None
                messages = await self._receiver.receive(min(BATCH, self._credit), self._wait_s)
            except TransportError as error:
                if not is_passing(error):
                    raise
                await uninterrupted(self.close())
                await patience.failed(error)
                continue
            if not messages and self._receiver.arrived_bytes > arrived_bytes:
                arrived_bytes = self._receiver.arrived_bytes  # a peer that stops in the middle is not waited for
                continue
            arrived_bytes = 0
            if not messages:
                await uninterrupted(self.close())
                return
            self.held |= {message.delivery_id: message for message in messages}
            self._note_lock(messages[0])
            yield messages
            if self._is_next_wanted:
                self._is_next_wanted = False
                await uninterrupted(self.close())
                return

    async def _open(self, session: str | None) -> bool:
        """Open the link if it is not open; False when another receiver has the session."""
        if self._receiver is not None and self._receiver.over is None:
            return True
        if self._receiver is not None:
            await uninterrupted(self.close())
        try:
            self._connection = await self._carrier.connection()
            self._receiver = await self._connection.receiver(self._address.path, credit=self._credit, session=session)
        except Refused as error:
            if error.condition != SESSION_CANNOT_BE_LOCKED:
                raise
            self.locked_sessions.append(session or "")
            return False
        self._renewing = asyncio.create_task(self._renew(self._receiver, session))
        return True

    # ── settling ──

    async def complete(self, messages: Iterable[ReceivedMessage]) -> int:
        """Complete messages; return the number of failures: their locks were lost, and they will be received again."""
        messages = list(messages)
        if not messages:
            return 0
        for message in messages:
            self.held.pop(message.delivery_id, None)
        try:
            assert self._receiver is not None
            await self._receiver.complete(messages)
        except Refused as error:
            return len(error.delivery_ids) or len(messages)
        except TransportError:
            return len(messages)
        return 0

    async def release(self, messages: Iterable[ReceivedMessage]) -> None:
        """Release messages, as if they had never been delivered."""
        messages = [message for message in messages if self.held.pop(message.delivery_id, None) is not None]
        if messages and self._receiver is not None and self._receiver.over is None:
            with suppress(TransportError):  # if this fails, the locks run out by themselves
                await self._receiver.release(messages, timeout_s=CLOSE_S)

    async def close(self) -> None:
        """Release all held messages and close the link; never raises for trouble of the peer."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        receiver, held = self._receiver, list(self.held.values())
        if receiver is None:
            return
        if receiver.over is None:
            with suppress(TransportError):
                await receiver.pause(CLOSE_S)
            await self.release(held)
        else:
            self.lost += len(held)
        self.held.clear()
        self._receiver = None
        with suppress(TransportError):
            await receiver.close(CLOSE_S)

    # ── locks ──

    def _note_lock(self, message: ReceivedMessage) -> None:
        until_ms = annotations_of(message.payload).get(LOCKED_UNTIL)
        if isinstance(until_ms, int):
            self._renew_s = min(max((until_ms / 1000 - time.time()) / 3, RENEW_MIN_S), RENEW_MAX_S)

    async def _renew(self, receiver: Receiver, session: str | None) -> None:
        """Renew the locks of held messages, or of the session, from time to time."""
        while receiver.over is None:
            await asyncio.sleep(min(self._renew_s, RENEW_MAX_S))
            with suppress(TransportError, ValueError):  # a lock that is lost is noticed when the message is completed
                if session is not None:
                    assert self._connection is not None
                    management = await self._connection.management(self._address.path)
                    await management.request("renew-session-lock", {"session-id": session})
                    continue
                held = list(self.held.values())
                for at in range(0, len(held), RENEWED_AT_ONCE):
                    chunk = [one for one in held[at : at + RENEWED_AT_ONCE] if one.delivery_id in self.held]
                    if chunk:
                        await receiver.renew(chunk)
