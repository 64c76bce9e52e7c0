"""Step 3, send: messages that were received together depart as a shipment; each destination gets its part in chunks.

`Shipments` gathers messages while earlier ones are on their way: otherwise few messages of a queue with many
destinations could share a send. `Sending` brings a shipment home: accepted messages go to
`settle.py`, others to `failed_sends.py`.

Laws of this file.
 1. A destination gets the messages of a queue in their order: a shipment begins there when the one before it is
    sent, answered or not.
 2. Until a queue has stored a completion, one message at a time goes to each destination.
 3. A message whose lock may have ended is not sent.
"""

from __future__ import annotations

import asyncio

from pairbus import telemetry
from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.errors import ConfigError
from pairbus.pairing.policy import MESSAGE_FAULTS, Kind
from pairbus.syphon.decide.batch import Chunk, Item, by_destination, waves
from pairbus.syphon.decide.destinations import key_of
from pairbus.syphon.decide.pace import BatchSize
from pairbus.syphon.failed_sends import FailedSends
from pairbus.syphon.settle import Settling, meter_send
from pairbus.syphon.shared import Batch, SyphonState
from pairbus.transport import Sender, TransportError
from pairbus.transport.errors import failure_of

AHEAD = 2  # shipments under way at once
SHIPMENT_BYTES = 4 << 20
AT_ONCE = 16  # destinations of one queue to which messages go at once
TURNS_MAX = 1000  # destinations whose last shipment is remembered


class Shipments:
    """Shipments of one pass: messages of one link, of one batch or of several."""

    def __init__(self, sending: Sending, size: BatchSize) -> None:
        self._sending = sending
        self._size = size
        self._under_way: set[asyncio.Task[None]] = set()
        self._failed: list[asyncio.Task[None]] = []
        self._batch: Batch | None = None
        self._items: list[Item] = []
        self._bytes = 0

    async def add(self, batch: Batch, items: list[Item]) -> None:
        """Add messages; return when there is room for more."""
        if self._batch is None or len(self._items) + len(items) > self._size.shipment or not self._batch.join(batch):
            await self._depart()
            self._batch = batch
        self._items += items
        self._bytes += sum([len(item.payload) for item in items])
        if len(self._under_way) < AHEAD or len(self._items) >= self._size.shipment or self._bytes >= SHIPMENT_BYTES:
            await self._depart()

    async def all_home(self) -> None:
        """Wait for all shipments. Raises the error of any of them."""
        await self._depart()
        while self._under_way:
            await asyncio.wait(self._under_way)
        self._raise()

    async def cancel(self) -> None:
        self._batch, self._items = None, []
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _depart(self) -> None:
        """Let the gathered messages go, as soon as fewer than AHEAD shipments are under way."""
        while self._batch is not None and len(self._under_way) >= AHEAD:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        self._start()
        self._raise()

    def _start(self) -> None:
        batch, items = self._batch, self._items
        if batch is not None:
            self._batch, self._items, self._bytes = None, [], 0
            task = asyncio.create_task(self._carry(batch, items))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    async def _carry(self, batch: Batch, items: list[Item]) -> None:
        clock, results = self._sending.clock, batch.results
        began, before = clock(), results.delivered
        await self._sending.send_home(batch, items)
        self._size.moved(results.delivered - before, clock() - began)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            if task.exception() is not None:
                self._failed.append(task)
            self._start()

    def _raise(self) -> None:
        for task in self._failed:
            task.result()


class _Turn:
    """The turn of a shipment at one destination."""

    __slots__ = ("_before", "_sent")

    def __init__(self, before: _Turn | None) -> None:
        self._before = before
        self._sent = asyncio.get_running_loop().create_future()

    async def come(self) -> None:
        if self._before is not None:
            await asyncio.wait([self._before._sent])
            self._before = None

    @property
    def is_over(self) -> bool:
        return self._sent.done()

    def end(self) -> None:
        """Let the next shipment begin: all messages of this one that could be sent at once are sent."""
        if not self._sent.done():
            self._sent.set_result(None)


class Sending:
    """Sends of the messages of one queue."""

    def __init__(self, shared: SyphonState, queue: str, settling: Settling) -> None:
        self._shared = shared
        self._queue = queue
        self.settling = settling
        self.failures = FailedSends(shared, queue, settling)
        self.clock = shared.clock
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._turns: dict[str, _Turn] = {}
        "Key of a destination → turn of the last shipment there."

    async def send_home(self, batch: Batch, items: list[Item]) -> None:
        """Send messages to their destinations, and settle each as its destination answers."""
        groups = [(group, self._next_turn(key)) for key, group in by_destination(items).items()]
        try:
            if len(groups) == 1:
                await self._send_in_turn(batch, *groups[0])
            else:
                async with asyncio.TaskGroup() as tasks:
                    for group, turn in groups:
                        tasks.create_task(self._send_in_turn(batch, group, turn))
        finally:
            for _, turn in groups:
                turn.end()

    def _next_turn(self, key: str) -> _Turn:
        if len(self._turns) >= TURNS_MAX and key not in self._turns:
            self._turns = {key: turn for key, turn in self._turns.items() if not turn.is_over}
        turn = self._turns[key] = _Turn(self._turns.get(key))
        return turn

    async def _send_in_turn(self, batch: Batch, items: list[Item], turn: _Turn) -> None:
        """Send messages of one destination after those that have an earlier turn there."""
        await turn.come()
        async with self._at_once:
            while items and not self.settling.is_proven and batch.results.over is None:
                await self._send_to_destination(batch, items[:1], None)
                items = items[1:]
            if items:
                await self._send_to_destination(batch, items, turn)

    async def _send_to_destination(self, batch: Batch, items: list[Item], turn: _Turn | None) -> None:
        """Send messages of one destination, unless it or the whole primary is to be left alone."""
        shared, settling, path = self._shared, self.settling, items[0].home.path
        now = shared.clock()
        if batch.results.over is not None or shared.presence.is_away:
            settling.hold(batch, items)
            return
        reason = batch.results.skipped.get(key_of(path)) or shared.destinations.closed_because(path, now)
        if reason is not None:
            settling.skip(batch, path, reason, items)
            return
        wait_s = shared.budget.take(len(items), now)
        if wait_s:
            await asyncio.sleep(wait_s)
        if (late := batch.too_late(shared.clock())) is not None:
            settling.stop(batch, late)
            settling.hold(batch, items)
            return
        try:
            sender = await shared.primary.sender(path, shared.settings.send_timeout_s)
        except TransportError as error:
            await self.failures.answer(batch, path, items, error, now, at_attach=True)
            return
        except ConfigError as error:  # the connection string is for another entity
            batch.results.errors += 1
            settling.skip(batch, path, str(error), items)
            return
        await self._send_waves(batch, sender, items, turn, in_batches=shared.destinations.takes_batches(path))

    async def _send_waves(
        self, batch: Batch, sender: Sender, items: list[Item], turn: _Turn | None, *, in_batches: bool
    ) -> bool:
        """Send wave after wave. True when every message was accepted."""
        all_accepted, path, results = True, items[0].home.path, batch.results
        left = waves(items, sender.max_message_size, in_batches=in_batches)
        while left:
            chunks, began = left.pop(0), self._shared.clock()
            facts = {telemetry.TYPE: "send", telemetry.DESTINATION: path, telemetry.QUEUE: self._queue}
            with telemetry.span("move", facts, (item.payload for chunk in chunks for item in chunk)) as span:
                answers, unsent = await self._transmit(batch, sender, chunks)
                if turn is not None and not left:
                    turn.end()  # the next shipment need not wait for the answers
                errors = [await outcome_of(self._shared, *each) for each in zip(chunks, answers, strict=False)]
                for error in errors:
                    if error is not None:
                        telemetry.failed(span, str(error), error)
            outcomes = list(zip(chunks, errors, strict=False))
            accepted = [item for chunk, error in outcomes if error is None for item in chunk]
            if accepted:
                await self.settling.complete_accepted(batch, path, accepted)
            for chunk, error in outcomes:
                if error is not None:
                    await self._chunk_failed(batch, sender, chunk, error, began, turn)
                    all_accepted = False
            if unsent is not None:
                rest = [item for chunk in chunks[len(outcomes) :] for item in chunk]
                await self._not_sent(batch, sender, rest, unsent, began)
                all_accepted = False
            if key_of(path) in results.skipped or results.over is not None:
                self.settling.hold(batch, [item for later in left for chunk in later for item in chunk])
                return False
        return all_accepted

    async def _transmit(
        self, batch: Batch, sender: Sender, chunks: list[Chunk]
    ) -> tuple[list[asyncio.Future[None] | TransportError], TransportError | str | None]:
        """Transmit chunks, none of which waits for the answer to another; return their answers to come, and the reason
        why the others were not sent. Together they wait for credit no longer than one send may take."""
        timeout_s, clock = self._shared.settings.send_timeout_s, self._shared.clock
        ready_by = min(clock() + timeout_s, batch.locks_end)
        answers: list[asyncio.Future[None] | TransportError] = []
        for chunk in chunks:
            try:
                if not sender.sendable:
                    await sender.ready(max(ready_by - clock(), 0.0))
            except TransportError as error:
                return answers, error
            if (late := batch.too_late(clock())) is not None:
                return answers, late
            try:
                answers.append(send_chunk(sender, chunk, timeout_s))
            except TransportError as error:  # too large for the link: the chunk was not sent and is not billed
                answers.append(error)
        return answers, None

    async def _not_sent(
        self, batch: Batch, sender: Sender, items: list[Item], error: TransportError | str, began: float
    ) -> None:
        path = items[0].home.path
        if isinstance(error, str):
            self.settling.stop(batch, error)
            self.settling.hold(batch, items)
            return
        await self.failures.answer(batch, path, items, error, began)
        if error.silence is not None and not sender.in_flight:
            self._shared.primary.forget(path)  # the next attach tells whether the peer is there at all

    async def _chunk_failed(
        self,
        batch: Batch,
        sender: Sender,
        chunk: Chunk,
        error: TransportError,
        began: float,
        turn: _Turn | None,
    ) -> None:
        """Answer the failure of a chunk. When one of several messages is to blame, they are sent one by one."""
        path, kind = chunk[0].home.path, failure_of(error).kind
        if error.outcome_unknown:
            self.settling.note_unanswered(batch, chunk, began)
        if len(chunk) == 1 or kind not in MESSAGE_FAULTS:
            await self.failures.answer(batch, path, chunk, error, began)
            return
        all_accepted = await self._send_waves(batch, sender, chunk, turn, in_batches=False)
        if all_accepted and kind is not Kind.TOO_LARGE:  # smaller batches may be accepted
            self._shared.destinations.refuses_batches(path)


def send_chunk(sender: Sender, chunk: Chunk, timeout_s: float) -> asyncio.Future[None]:
    if len(chunk) == 1:
        return sender.send_nowait(chunk[0].payload, timeout_s=timeout_s)
    payload = encode_batch([item.payload for item in chunk])
    return sender.send_nowait(payload, message_format=BATCH_FORMAT, timeout_s=timeout_s)


async def outcome_of(
    shared: SyphonState, chunk: Chunk, answer: asyncio.Future[None] | TransportError
) -> TransportError | None:
    """Wait for the answer to a chunk; None when the destination has accepted it."""
    if isinstance(answer, TransportError):
        return answer
    try:
        await answer
    except TransportError as error:
        meter_send(shared, chunk[0].home.path, chunk, failure_of(error).kind.value)
        return error
    return None
