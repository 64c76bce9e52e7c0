"""Clients that use a broker in every way until it dies, and record what they were told.

One `Load` lives through all rounds of a test: it knows which messages are deferred or scheduled, which ids are in
doubt and are sent again, and to which message every sequence number that was ever seen belongs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pairbus.transport import ClientConnection, ConnectionLost, Receiver, Scheduled, TransportError, connect
from tests.crash.messages import Found, digest_of, found, make
from tests.history.events import Attempt, Kind, Outcome, Sent, Settled
from tests.history.events import Received as ReceivedEvent
from tests.history.record import Recorder

PLAIN, ONCE, LATER, SHORT, SHORT_DEAD, TAKEN = "plain", "once", "later", "short", "short-dead", "taken"
QUEUES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    ONCE: {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": "PT1H"},
    LATER: {},
    SHORT: {},
    SHORT_DEAD: {"dead_lettering_on_message_expiration": True},
    TAKEN: {},
}
"Deliveries are not counted against the messages: abandoning must not decide where they are."
SETTINGS: dict[str, Any] = {"lock_duration": "PT5M", "max_delivery_count": 2000}
TAKEN_CREDIT = 20
IN_FLIGHT_MAX = 64
BACKLOG_MAX = 1500  # messages in the busiest queue, so that a long test does not become a test of queue size
SOON_MS, FAR_MS = 1500, 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def outcome_of(error: BaseException | None) -> Outcome:
    """Tell the outcome of a send or a settlement from its answer."""
    if error is None:
        return Outcome.OK
    assert isinstance(error, TransportError), repr(error)
    return Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED


class Load:
    """All clients of one test. Every random choice comes from `source`, except the faults of the broker."""

    def __init__(self, recorder: Recorder, source: random.Random) -> None:
        self.recorder = recorder
        self.cancelled: set[str] = set()
        "Scheduled messages whose cancellation was acknowledged."
        self.losses: list[TransportError] = []
        "Ends of the connections of the last round."
        self.repeated_numbers: list[str] = []
        self.batches: list[list[str]] = []
        self._source = source
        self._last_id = 0
        self._bearers: dict[tuple[str, int], str] = {}
        self._deferred: dict[int, str] = {}
        self._backlog: set[str] = set()
        "Ids of messages of the plain queue whose send was attempted and that were not removed."
        self._far: dict[int, str] = {}
        self._once: list[tuple[str, bytes]] = []

    async def round(self, connection_string: str) -> None:
        """Use the broker until every connection is lost."""
        actors: list[Callable[[ClientConnection], Awaitable[None]]] = [
            *(self._send_singles, self._send_batches, self._send_once, self._schedule, self._send_short),
            *(self._complete_ranges, self._complete_singly, self._settle_otherwise, self._receive_deferred),
            *(self._complete_dead_letters, self._settle_short, self._send_to_be_taken, self._take, self._complete_once),
        ]
        connections = [await connect(connection_string) for _ in range(3)]
        tasks = [asyncio.create_task(self._act(actor, connections[n % 3])) for n, actor in enumerate(actors)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self.losses = [connection.loss for connection in connections if connection.loss is not None]
            for connection in connections:
                await connection.close()

    @staticmethod
    async def _act(actor: Callable[[ClientConnection], Awaitable[None]], connection: ClientConnection) -> None:
        with suppress(ConnectionLost):
            await actor(connection)

    # ── what is recorded ──

    def _bear(self, entity: str, sequence_number: int, message_id: str) -> None:
        before = self._bearers.setdefault((entity, sequence_number), message_id)
        if before != message_id:
            self.repeated_numbers.append(f"{entity} {sequence_number}: {before} and {message_id}")

    def _see(self, entity: str, payload: bytes) -> Found:
        message = found(payload)
        self._bear(entity, message.sequence_number, message.id)
        self.recorder.add(ReceivedEvent(message.id, entity, message.sequence_number, message.digest))
        return message

    def _new_id(self, kind: str) -> str:
        self._last_id += 1
        return f"{kind}-{self._last_id}"

    def _attempt(self, entity: str, message_id: str, payload: bytes, expires_ms: int | None = None) -> None:
        self.recorder.add(Attempt(message_id, entity, digest_of(payload), expires_ms))
        if entity == PLAIN:
            self._backlog.add(message_id)

    def _settled(self, entity: str, messages: Sequence[Found], kind: Kind, outcome: Outcome) -> None:
        for message in messages:
            self.recorder.add(Settled(message.id, entity, message.sequence_number, kind, outcome))
            if kind is Kind.COMPLETE and outcome is Outcome.OK:
                self._backlog.discard(message.id)

    async def _recorded_send(self, ids: Sequence[str], send: Awaitable[Any]) -> Any:
        """Await one send of all these ids and record its outcome; the answer."""
        outcome = Outcome.UNKNOWN
        try:
            answer = await send
            outcome = Outcome.OK
        except TransportError as error:
            outcome = outcome_of(error)
            raise
        finally:
            for message_id in ids:
                self.recorder.add(Sent(message_id, outcome))
        return answer

    async def _recorded_settlement(
        self, entity: str, messages: Sequence[Found], kind: Kind, settlement: Awaitable[None]
    ) -> None:
        """Await one settlement of all these messages; a refusal is no part of these tests and raises."""
        outcome = Outcome.UNKNOWN
        try:
            await settlement
            outcome = Outcome.OK
        except TransportError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._settled(entity, messages, kind, outcome)

    # ── senders ──

    async def _room(self) -> None:
        """Slows senders down when receivers do not keep up."""
        if len(self._backlog) > BACKLOG_MAX:
            await asyncio.sleep(0.05)

    async def _send_singles(self, connection: ClientConnection) -> None:
        """Pipelined."""
        sender = await connection.sender(PLAIN)
        pause = asyncio.Semaphore(IN_FLIGHT_MAX)

        def answered(message_id: str, future: asyncio.Future[None]) -> None:
            pause.release()
            outcome = Outcome.UNKNOWN if future.cancelled() else outcome_of(future.exception())
            self.recorder.add(Sent(message_id, outcome))

        while True:
            await pause.acquire()
            await self._room()
            await sender.ready()
            message_id = self._new_id("single")
            payload = make(message_id, self._source)
            self._attempt(PLAIN, message_id, payload)
            future = sender.send_nowait(payload)
            future.add_done_callback(partial(answered, message_id))

    async def _send_batches(self, connection: ClientConnection) -> None:
        """A batch is stored whole or not at all."""
        sender = await connection.sender(PLAIN)
        while True:
            await self._room()
            ids = [self._new_id("batch") for _ in range(self._source.randint(1, 20))]
            payloads = [make(message_id, self._source, size=self._source.randint(0, 3000)) for message_id in ids]
            self.batches.append(ids)
            for message_id, payload in zip(ids, payloads, strict=True):
                self._attempt(PLAIN, message_id, payload)
            await self._recorded_send(ids, sender.send_batch(payloads))

    async def _send_once(self, connection: ClientConnection) -> None:
        """Send new messages to a queue that detects duplicates, and repeat those sent lately."""
        sender = await connection.sender(ONCE)
        while True:
            if self._once and self._source.random() < 0.4:
                message_id, payload = self._source.choice(self._once[-50:])
            else:
                message_id = self._new_id("once")
                payload = make(message_id, self._source)
                self._once.append((message_id, payload))
            self._attempt(ONCE, message_id, payload)
            await self._recorded_send([message_id], sender.send(payload))

    async def _schedule(self, connection: ClientConnection) -> None:
        """Soon or far, by request or by annotation; some of the far ones are cancelled."""
        management, sender = await connection.management(LATER), await connection.sender(LATER)
        while True:
            kind = self._source.choice(("soon", "far"))
            delay_ms = self._source.randint(1, SOON_MS) if kind == "soon" else FAR_MS
            message_id = self._new_id(kind)
            payload = make(message_id, self._source, due_ms=now_ms() + delay_ms)
            self._attempt(LATER, message_id, payload)
            if self._source.random() < 0.3:
                await self._recorded_send([message_id], sender.send(payload))
                continue
            [number] = await self._recorded_send([message_id], management.schedule([Scheduled(message_id, payload)]))
            self._bear(LATER, number, message_id)
            if kind == "far":
                self._far[number] = message_id
            if self._far and self._source.random() < 0.3:
                number = self._source.choice(list(self._far))
                message_id = self._far.pop(number)
                gone = Found(message_id, number, "", "scheduled")
                await self._recorded_settlement(LATER, [gone], Kind.COMPLETE, management.cancel([number]))
                self.cancelled.add(message_id)

    async def _send_short(self, connection: ClientConnection) -> None:
        """Send messages that live an hour, or less than a second. One of the queues must keep expired messages."""
        senders = {queue: await connection.sender(queue) for queue in (SHORT, SHORT_DEAD)}
        while True:
            queue = self._source.choice((SHORT, SHORT_DEAD))
            ttl_ms = self._source.choice((self._source.randint(1, 900), FAR_MS))
            message_id = self._new_id("short")
            payload = make(message_id, self._source, ttl_ms=ttl_ms)
            self._attempt(queue, message_id, payload, now_ms() + ttl_ms if queue == SHORT else None)
            await self._recorded_send([message_id], senders[queue].send(payload))
            await asyncio.sleep(0.002)

    async def _send_to_be_taken(self, connection: ClientConnection) -> None:
        sender = await connection.sender(TAKEN)
        while True:
            message_id = self._new_id("taken")
            payload = make(message_id, self._source)
            self._attempt(TAKEN, message_id, payload)
            await self._recorded_send([message_id], sender.send(payload))

    # ── receivers ──

    async def _complete_ranges(self, connection: ClientConnection) -> None:
        receiver = await connection.receiver(PLAIN, credit=60)
        while True:
            if batch := await receiver.receive(30, timeout_s=5):
                messages = [self._see(PLAIN, each.payload) for each in batch]
                await self._recorded_settlement(PLAIN, messages, Kind.COMPLETE, receiver.complete(batch))

    async def _complete_singly(self, connection: ClientConnection) -> None:
        await self._complete_from(await connection.receiver(PLAIN, credit=10), PLAIN)

    async def _complete_once(self, connection: ClientConnection) -> None:
        await self._complete_from(await connection.receiver(ONCE, credit=3), ONCE)

    async def _complete_dead_letters(self, connection: ClientConnection) -> None:
        await self._complete_from(await connection.receiver(PLAIN, sub_queue="dead-letter", credit=1), PLAIN)

    async def _complete_from(self, receiver: Receiver, entity: str) -> None:
        while True:
            for received in await receiver.receive(1, timeout_s=5):
                message = self._see(entity, received.payload)
                await self._recorded_settlement(entity, [message], Kind.COMPLETE, receiver.complete([received]))
                await asyncio.sleep(0.005)

    async def _settle_otherwise(self, connection: ClientConnection) -> None:
        """Abandon, defer, dead-letter, or hold until the end."""
        receiver = await connection.receiver(PLAIN, credit=20)
        while True:
            for received in await receiver.receive(20, timeout_s=5):
                message = self._see(PLAIN, received.payload)
                choice = self._source.choice(("abandon", "defer", "dead-letter", "release", "hold"))
                if choice == "abandon":
                    await self._recorded_settlement(PLAIN, [message], Kind.ABANDON, receiver.abandon([received]))
                elif choice == "defer":
                    await self._recorded_settlement(PLAIN, [message], Kind.DEFER, receiver.defer([received]))
                    self._deferred[message.sequence_number] = message.id
                elif choice == "dead-letter":
                    dead_letter = receiver.dead_letter([received], "test", "because")
                    await self._recorded_settlement(PLAIN, [message], Kind.DEAD_LETTER, dead_letter)
                elif choice == "release":
                    await self._recorded_settlement(PLAIN, [message], Kind.ABANDON, receiver.release([received]))
                await asyncio.sleep(0.001)

    async def _receive_deferred(self, connection: ClientConnection) -> None:
        management = await connection.management(PLAIN)
        while connection.loss is None:
            if len(self._deferred) > 3:
                number = self._source.choice(list(self._deferred))
                message_id = self._deferred.pop(number)
                [deferred] = await management.receive_deferred([number])
                message = self._see(PLAIN, deferred.payload)
                assert message.id == message_id, f"number {number} was deferred as {message_id}, came as {message.id}"
                assert deferred.lock_token is not None
                completion = management.update_disposition("completed", [deferred.lock_token])
                await self._recorded_settlement(PLAIN, [message], Kind.COMPLETE, completion)
            await asyncio.sleep(0.01)

    async def _settle_short(self, connection: ClientConnection) -> None:
        receivers = [await connection.receiver(queue, credit=2) for queue in (SHORT, SHORT_DEAD)]
        while True:
            for queue, receiver in zip((SHORT, SHORT_DEAD), receivers, strict=True):
                for received in await receiver.receive(2, timeout_s=0.02):
                    message = self._see(queue, received.payload)
                    if self._source.random() < 0.5:
                        await self._recorded_settlement(queue, [message], Kind.ABANDON, receiver.abandon([received]))
                    else:
                        await self._recorded_settlement(queue, [message], Kind.COMPLETE, receiver.complete([received]))
            await asyncio.sleep(0.01)

    async def _take(self, connection: ClientConnection) -> None:
        """Receive and delete: messages under way when the broker dies are gone, and never more than the credit."""
        receiver = await connection.receiver(TAKEN, mode="receive-and-delete", credit=TAKEN_CREDIT)
        while True:
            for received in await receiver.receive(TAKEN_CREDIT, timeout_s=5):
                self._settled(TAKEN, [self._see(TAKEN, received.payload)], Kind.DELETE, Outcome.OK)
            await asyncio.sleep(0.003)
