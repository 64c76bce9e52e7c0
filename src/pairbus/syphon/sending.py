"""Sending chunks to one destination together: no chunk waits for the answer to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairbus.amqp.message import BATCH_FORMAT, encode_batch
from pairbus.ledger.rows import alike
from pairbus.syphon.decide.relay import Chunk, Item
from pairbus.syphon.shared import SyphonState
from pairbus.transport import Sender, TransportError
from pairbus.transport.failures import failure_of


async def send_at_once(
    shared: SyphonState,
    sender: Sender,
    chunks: list[Chunk],
    locks_end: float,
    too_late: Callable[[], str | None],
    all_sent: Callable[[], None] | None,
) -> tuple[list[TransportError | None], TransportError | str | None]:
    """Send chunks; return the outcome of each chunk that was sent, and the reason why the others were not.

    All of them together wait for credit no longer than one send may take. `all_sent` is called before the answers come.
    """
    timeout_s, clock = shared.settings.send_timeout_s, shared.clock
    ready_by = min(clock() + timeout_s, locks_end)
    answers: list[asyncio.Future[None] | TransportError] = []
    unsent: TransportError | str | None = None
    for chunk in chunks:
        try:
            if not sender.sendable:
                await sender.ready(max(ready_by - clock(), 0.0))
        except TransportError as error:
            unsent = error
            break
        if (unsent := too_late()) is not None:
            break
        try:
            answers.append(_send_chunk(sender, chunk, timeout_s))
        except TransportError as error:
            answers.append(error)
    if all_sent is not None:
        all_sent()
    return [await _outcome(shared, *each) for each in zip(chunks, answers, strict=False)], unsent


async def _outcome(
    shared: SyphonState, chunk: Chunk, answer: asyncio.Future[None] | TransportError
) -> TransportError | None:
    if isinstance(answer, TransportError):  # too large for the link: the chunk was not sent and is not billed
        return answer
    try:
        await answer
    except TransportError as error:
        meter_send(shared, chunk[0].home.path, chunk, failure_of(error).kind.value)
        return error
    return None


def meter_send(shared: SyphonState, path: str, items: list[Item], outcome: str) -> None:
    for count, size_bytes in alike([len(item.payload) for item in items]):
        shared.meter("primary", path, "send", count, size_bytes, outcome)


def _send_chunk(sender: Sender, chunk: Chunk, timeout_s: float) -> asyncio.Future[None]:
    if len(chunk) == 1:
        return sender.send_nowait(chunk[0].payload, timeout_s=timeout_s)
    payload = encode_batch([item.payload for item in chunk])
    return sender.send_nowait(payload, message_format=BATCH_FORMAT, timeout_s=timeout_s)
