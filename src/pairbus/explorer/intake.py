"""Receives under lock from one entity, also session by session; no message stays locked, also after errors.

Laws of this file.
 1. Every message that was received is completed, released, or lost with its link, when `close` returns.
 2. Locks of messages that are held for long, or wait for the batch before theirs, are renewed.
 3. Bytes of messages are kept until the caller has acted upon their batch; of those passed over, only the lock is held.
 4. A link that breaks is opened again; its messages are received again when their locks have run out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Self

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.explorer.address import Address
from pairbus.explorer.calls import RetryPatience, is_passing, uninterrupted
from pairbus.explorer.message import LOCKED_UNTIL, annotations_of, sequence_number_of
from pairbus.explorer.sessions import session_ids
from pairbus.transport import Carrier, ClientConnection, ReceivedMessage, Receiver, Refused, TransportError
from pairbus.transport.tasks import Tasks

CREDIT = 200  # messages locked ahead, if they are small
BATCH = 100
BYTES_AHEAD_MAX = 32 << 20  # of messages that arrive ahead; as much is in the batch that is acted upon
WAIT_S = 1.0  # wait for the next message before the entity counts as empty
RENEWED_AT_ONCE = 500
RENEW_MIN_S, RENEW_MAX_S = 1.0, 20.0
RENEW_UNKNOWN_S = 1.5  # before a message has told its lock: the shortest lock of the service is 5 seconds
PARTITION_BITS = 48  # above these bits a sequence number has its partition, within which numbers grow
CLOSE_S = 5.0
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"


class MessageIntake:
    """A receiver of an entity. Use it as a context manager; one task at a time.

    `sessions`: those to visit, if the entity requires sessions and no single `session` is given; None: all.
    """

    def __init__(
        self,
        carrier: Carrier,
        address: Address,
        *,
        session: str | None = None,
        sessions: Sequence[str] | None = None,
        credit: int = CREDIT,
        wait_s: float = WAIT_S,
    ) -> None:
        self._carrier = carrier
        self._address = address
        # Dead letters keep their session ids, but their queue does not require sessions, and has none to lock.
        self._session = None if address.is_dead_letter else session
        self._sessions = sessions
        self.session: str | None = None
        "Session that this intake has locked now."
        self._credit = credit
        self._wait_s = wait_s
        self._connection: ClientConnection | None = None
        self._receiver: Receiver | None = None
        self._tasks = Tasks()
        self._renewing: asyncio.Task[None] | None = None
        self._renew_s = RENEW_UNKNOWN_S
        self._first_lock = asyncio.Event()
        self._highest: dict[int, int] = {}
        "Highest sequence number that has arrived on this link, by partition."
        self._settlements = 0
        "Calls that completed or released messages."
        self._is_next_wanted = False
        self._ahead = 1  # the first message tells how large messages are
        self._average_size = 0.0
        self.held: dict[int, ReceivedMessage] = {}
        "Messages that are locked by this intake, by delivery id."
        self._numbers: dict[int, int] = {}
        self._deliveries: dict[int, int] = {}
        "Sequence numbers of held messages by delivery id, and the other way."
        self.locked_sessions: list[str] = []
        "Sessions that another receiver has."
        self.lost = 0
        "Messages whose link broke while they were held."

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await uninterrupted(self.close())

    async def batches(self, patience: RetryPatience) -> AsyncIterator[list[ReceivedMessage]]:
        """Yield messages as they arrive, until none arrives for a moment; session by session if there are sessions.

        When the caller asks for the next batch, messages of this one that it has not settled lose their payload.
        """
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
        sessions = await session_ids(self._carrier, self._address) if self._sessions is None else self._sessions
        for session in sessions:
            async for batch in self._link_batches(session, patience):
                yield batch

    def skip_rest(self) -> None:
        """Receive no more from this link: go on with the next session, if there is one."""
        self._is_next_wanted = True

    async def _link_batches(self, session: str | None, patience: RetryPatience) -> AsyncIterator[list[ReceivedMessage]]:
        clock = asyncio.get_running_loop().time
        arrived_bytes, until_s = 0, 0.0
        while True:
            try:
                if self._receiver is None or self._receiver.over is not None:
                    if not await self._open(session):
                        return
                    until_s = clock() + self._wait_s
                assert self._receiver is not None
                messages = await self._receiver.receive(min(BATCH, self._ahead), max(until_s - clock(), 0.0))
            except TransportError as error:
                if not is_passing(error):
                    raise
                await uninterrupted(self.close())
                await patience.failed(error)
                continue
            if not messages and self._receiver.arrived_bytes > arrived_bytes:
                arrived_bytes = self._receiver.arrived_bytes  # a peer that stops in the middle is not waited for
                until_s = clock() + self._wait_s
                continue
            arrived_bytes = 0
            if not messages:
                await uninterrupted(self.close())
                return
            is_progress, settlements = self._hold(messages), self._settlements
            self._note_lock(messages[0])
            self._receiver.credit = self._ahead = self._credit_for(messages)
            yield messages
            for message in messages:
                if message.delivery_id in self.held:
                    message.payload = b""
            # Messages that come again after their locks were lost, and are passed over again, do not prolong the wait.
            if is_progress or self._settlements > settlements:
                until_s = clock() + self._wait_s
            if self._is_next_wanted or clock() >= until_s:
                self._is_next_wanted = False
                await uninterrupted(self.close())
                return

    def _credit_for(self, messages: list[ReceivedMessage]) -> int:
        """Return how many messages may be ahead, if they are as large as the last ones."""
        average = sum(len(message.payload) for message in messages) / len(messages)
        self._average_size = max(average, self._average_size / 2, 1.0)  # one small batch does not forget large ones
        return max(min(self._credit, int(BYTES_AHEAD_MAX / self._average_size)), 1)

    def _hold(self, messages: list[ReceivedMessage]) -> bool:
        """Note locked messages; return True when one of them is new, False when all have been delivered before."""
        is_new = False
        for message in messages:
            assigned = sequence_number_of(message.payload)
            number = -1 - message.delivery_id if assigned is None else assigned  # without one, a message is only itself
            if number in self._deliveries:
                self._drop(self._deliveries[number])  # its lock has ended: otherwise it would not have come again
            self._deliveries[number], self._numbers[message.delivery_id] = message.delivery_id, number
            self.held[message.delivery_id] = message
            partition = number >> PARTITION_BITS
            if number > self._highest.get(partition, -1):
                self._highest[partition], is_new = number, True
        return is_new

    async def _open(self, session: str | None) -> bool:
        """Open the link; False when another receiver has the session."""
        if self._receiver is not None:
            await uninterrupted(self.close())
        try:
            self._connection = await self._carrier.connection()
            self._receiver = await self._connection.receiver(self._address.path, credit=self._ahead, session=session)
        except Refused as error:
            if error.condition != SESSION_CANNOT_BE_LOCKED:
                raise
            self.locked_sessions.append(session or "")
            return False
        self.session = session
        self._first_lock = asyncio.Event()
        if session is not None:
            self._first_lock.set()  # the lock of a session begins with the link
        self._renewing = self._tasks.start(self._renew(self._receiver, session), "renewing locks")
        return True

    # ── settling ──

    async def complete(self, messages: Iterable[ReceivedMessage]) -> set[int]:
        """Complete messages; return the delivery ids of those that are not known to be completed.

        Their locks were lost, so that they will be received again, or the answer was.
        """
        messages = list(messages)
        if not messages:
            return set()
        self._settlements += 1
        for message in messages:
            self._drop(message.delivery_id)
        try:
            assert self._receiver is not None
            await self._receiver.complete(messages)
        except TransportError as error:
            refused = error.delivery_ids if isinstance(error, Refused) else ()
            return set(refused) or {message.delivery_id for message in messages}
        return set()

    async def release(self, messages: Iterable[ReceivedMessage]) -> None:
        """Release messages, as if they had never been delivered."""
        messages = [message for message in messages if self._drop(message.delivery_id)]
        self._settlements += bool(messages)
        if messages and self._receiver is not None and self._receiver.over is None:
            with suppress(TransportError):  # if this fails, the locks run out by themselves
                await self._receiver.release(messages, timeout_s=CLOSE_S)

    def _drop(self, delivery_id: int) -> bool:
        """Forget a message that is settled, or whose lock was lost; False when it is not held."""
        if self.held.pop(delivery_id, None) is None:
            return False
        del self._deliveries[self._numbers.pop(delivery_id)]
        return True

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
        self._numbers.clear()
        self._deliveries.clear()
        self._highest.clear()
        self._receiver = self.session = None
        with suppress(TransportError):
            await receiver.close(CLOSE_S)

    # ── locks ──

    def _note_lock(self, message: ReceivedMessage) -> None:
        until_ms = annotations_of(message.payload).get(LOCKED_UNTIL)
        if isinstance(until_ms, int):
            self._renew_s = min(max((until_ms / 1000 - time.time()) / 3, RENEW_MIN_S), RENEW_MAX_S)
        self._first_lock.set()

    async def _renew(self, receiver: Receiver, session: str | None) -> None:
        """Renew the locks of all messages here, or of the session, from time to time; begin when there is a lock."""
        await self._first_lock.wait()
        while receiver.over is None:
            await asyncio.sleep(self._renew_s)
            with suppress(TransportError, ValueError):  # a lock that is lost is noticed when the message is completed
                if session is not None:
                    assert self._connection is not None
                    management = await self._connection.management(self._address.path)
                    await management.request("renew-session-lock", {"session-id": session})
                    continue
                locked = [*self.held.values(), *receiver.unread()]
                for at in range(0, len(locked), RENEWED_AT_ONCE):
                    await self._renew_locks(receiver, locked[at : at + RENEWED_AT_ONCE])

    async def _renew_locks(self, receiver: Receiver, messages: list[ReceivedMessage]) -> None:
        """Renew locks; those that are lost are found by halves, and their messages are no longer held.

        One lost lock lets the service refuse all of a request.
        """
        locked = self.held.keys() | {message.delivery_id for message in receiver.unread()}
        messages = [message for message in messages if message.delivery_id in locked]  # the others are settled
        if not messages:
            return
        try:
            await receiver.renew(messages)
        except Refused as error:
            if is_passing(error):
                raise
            if len(messages) == 1:
                self._drop(messages[0].delivery_id)
                return
            middle = len(messages) // 2
            await self._renew_locks(receiver, messages[:middle])
            await self._renew_locks(receiver, messages[middle:])
