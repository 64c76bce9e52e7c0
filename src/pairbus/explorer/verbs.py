"""Sends, receives, moves and deletes messages. Each verb takes a carrier and an address, and tells its progress.

Moving is at least once: a message is completed only after its copy was accepted, so that an interruption can leave a
message in both places and never in none. Interrupted verbs leave no message locked; called again, they go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from pairbus.amqp.types import Int, Timestamp
from pairbus.errors import ConfigError, EntityError, EntityNotFound
from pairbus.explorer.address import Address
from pairbus.explorer.calls import RetryPatience, explained, persevere, uninterrupted
from pairbus.explorer.choice import Choice, state_of
from pairbus.explorer.encoding import edited
from pairbus.explorer.message import (
    ENQUEUED_TIME,
    annotations_of,
    sendable,
    sequence_number_of,
    with_other_id,
    without_dead_letter_properties,
)
from pairbus.explorer.pages import PAGE, extent, peek
from pairbus.explorer.progress import Progress
from pairbus.explorer.sending import SEND_TIMEOUT_S, sending
from pairbus.explorer.taking import Acted, Taking
from pairbus.transport import Carrier, ReceivedMessage, Refused, TransportError

DELETE_COUNT = 4000  # messages that the service deletes at once
ASKED_AT_ONCE = 100  # messages that are deleted as they are delivered

_TWICE = "the copy was accepted by {path}, but the original in {address} could not be completed"

PayloadSource = Iterable[bytes] | AsyncIterable[bytes]


async def send(carrier: Carrier, path: str, payloads: PayloadSource, progress: Progress | None = None) -> Progress:
    """Send encoded messages to a queue or topic, in their order; return when all are accepted.

    After an error or a cancellation `progress.done` messages from the first on are certainly stored; some of the later
    ones may be stored as well.
    """
    progress = progress or Progress()
    async with sending(carrier, path, progress) as put:
        async for payload in _each(payloads):
            await put(payload)
    return progress


async def receive(
    carrier: Carrier,
    address: Address,
    take: Callable[[list[bytes]], Awaitable[None]],
    *,
    choice: Choice | None = None,
    limit: int | None = None,
    wait_s: float = 1.0,
    progress: Progress | None = None,
) -> Progress:
    """Receive messages and complete them after `take` has returned; when `take` raises, they are released.

    Ends after `limit` messages, or when none comes for `wait_s`.
    """

    async def act(messages: list[ReceivedMessage]) -> Acted:
        await take([message.payload for message in messages])
        return Acted(messages)

    choice = choice or Choice()
    only_present = not choice.is_all
    taking = Taking(carrier, address, choice, act, progress or Progress(), limit, wait_s, only_present)
    return await taking.run()


async def receive_and_delete(
    carrier: Carrier,
    address: Address,
    take: Callable[[list[bytes]], Awaitable[None]],
    *,
    limit: int,
    session: str | None = None,
    wait_s: float = 1.0,
    progress: Progress | None = None,
) -> Progress:
    """Receive messages that the service deletes as it delivers them: at most once, a broken connection loses some.

    At most `limit` messages are asked for; all that arrived are given to `take`, also when the caller is cancelled.
    """
    progress = progress or Progress()
    try:
        connection = await carrier.connection()
        receiver = await connection.receiver(address.path, mode="receive-and-delete", credit=0, session=session)
    except TransportError as error:
        raise explained(error, carrier, address.path) from error

    async def take_all(messages: list[ReceivedMessage]) -> None:
        await take([message.payload for message in messages])
        progress.step(done=len(messages))

    async def ask_for_all() -> None:
        while progress.done < limit:
            credit, before = min(limit - progress.done, ASKED_AT_ONCE), progress.done
            receiver.credit = credit
            await receiver.receive(0, wait_s)  # asks for messages and takes none: taking would ask for more
            receiver.credit = 0
            while progress.done < before + credit:
                messages = await receiver.receive(before + credit - progress.done, wait_s)
                if not messages:
                    return
                await uninterrupted(take_all(messages))

    async def rest() -> TransportError | None:
        """Take the messages that have arrived; return the error of a link that could not be paused."""
        receiver.credit = 0
        problem: TransportError | None = None
        try:
            if receiver.over is None:
                await receiver.pause()
        except TransportError as error:
            problem = error
        try:
            while receiver.buffered:  # also after an error: these messages are gone from the entity
                await take_all(await receiver.receive(receiver.buffered, 0.0))
        finally:
            with suppress(TransportError):  # no message is left that the link could lose
                await receiver.close()
        return problem

    try:
        await ask_for_all()
    except TransportError as error:
        raise explained(error, carrier, address.path) from error
    finally:
        problem = await uninterrupted(rest())
    if problem is not None:
        raise explained(problem, carrier, address.path) from problem
    return progress


async def move(
    source: Carrier,
    address: Address,
    destination: Carrier,
    path: str,
    *,
    choice: Choice | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
    change: Callable[[bytes], bytes] = sendable,
) -> Progress:
    """Move messages to a queue or topic, of this namespace or another; messages that arrive meanwhile stay.

    Only the annotations of the service are removed. ConfigError when source and destination are one, or when the
    destination is the entity through which the messages came.
    """
    if source.endpoint.authority.lower() == destination.endpoint.authority.lower():
        _check_destination(address, path)

    async def act(messages: list[ReceivedMessage]) -> Acted:
        return await _forward(destination, path, messages, change)

    choice, last = (choice or Choice()).without_end()
    taking = Taking(source, address, choice, act, progress or Progress(), limit, last=last)
    try:
        return await taking.run()
    except EntityError as error:
        raise type(error)(f"{error}; {taking.progress.done} messages were moved") from error


def _check_destination(address: Address, path: str) -> None:
    """Raise ConfigError for a destination of the same namespace to which these messages cannot be moved.

    The entity through which a message came may detect duplicates and remember its id. It would accept the copy and drop
    it, and the message, completed at its source, would be lost.
    """
    to = path.strip("/").lower()
    if to == address.path.lower():
        raise ConfigError(f"{path} is both source and destination: messages are moved to another entity or namespace")
    if to != address.destination.lower():
        return
    if address.is_dead_letter:
        raise ConfigError(
            f"{path} is where these dead letters came from: if it detects duplicates, it drops messages whose ids it"
            " remembers. `pairbus redrive` sends dead letters back, and minds duplicates"
        )
    raise ConfigError(f"{path} is the topic of {address}: the messages would come back, or be dropped as duplicates")


async def _forward(
    destination: Carrier, path: str, messages: list[ReceivedMessage], change: Callable[[bytes], bytes]
) -> Acted:
    """Send the messages in their order; the accepted ones are done."""
    acted = Acted(failed_at=(destination, path))
    answers: list[asyncio.Future[None]] = []
    try:
        sender = await destination.sender(path)
        for message in messages:
            payload = change(message.payload)
            answers.append(sender.send_soon(payload, timeout_s=SEND_TIMEOUT_S))
    except TransportError as error:  # the link failed, or a message is too large: earlier messages are on their way
        acted.error = error
    for message, outcome in zip(messages, await asyncio.gather(*answers, return_exceptions=True), strict=False):
        if outcome is None:
            acted.done.append(message)
        elif isinstance(outcome, TransportError):
            acted.error = acted.error or outcome
        else:
            raise outcome
    return acted


async def resend(
    carrier: Carrier,
    address: Address,
    number: int,
    changes: Mapping[str, Any],
    *,
    path: str | None = None,
    keep_original: bool = False,
) -> None:
    """Send a message again with some fields changed; the original is completed after the copy was accepted.

    `path`: another queue or topic than its own. The copy never has the message id of its original, which an entity that
    detects duplicates may remember: it gets a new id, unless `changes` set another one, and keeps the old id in the
    application property `x-pairbus-original-message-id`. EntityNotFound when the message is gone; EntityError when the
    original cannot be completed, so that both exist.
    """
    path = path or address.destination
    payloads = [one for one in await peek(carrier, address, number, 1) if sequence_number_of(one) == number]
    if not payloads:
        raise EntityNotFound(f"{address} has no message with the sequence number {number}")

    new_id = uuid4().hex  # one for all attempts, so that an entity that detects duplicates stores one copy

    def change(payload: bytes) -> bytes:
        original = payload
        if address.is_dead_letter and "application_properties" not in changes:
            payload = without_dead_letter_properties(payload)
        return with_other_id(edited(payload, changes), original, new_id)

    state, copy = state_of(payloads[0]), change(payloads[0])
    if keep_original:
        await _send_copy(carrier, path, copy)
    elif state == "scheduled":
        await _send_copy(carrier, path, copy)
        with _completing(address, path):
            await (await carrier.management(address.destination)).cancel([number])
    elif state == "deferred":
        await uninterrupted(_resend_deferred(carrier, address, number, path, change))
    else:
        await _resend_active(carrier, address, number, path, change)


async def _send_copy(carrier: Carrier, path: str, copy: bytes) -> None:
    try:
        await carrier.send(path, copy)
    except TransportError as error:
        raise explained(error, carrier, path) from error


@contextmanager
def _completing(address: Address, path: str) -> Iterator[None]:
    """Raise EntityError that tells where the message is when its original cannot be completed or cancelled."""
    try:
        yield
    except TransportError as error:
        raise EntityError(f"{_TWICE.format(path=path, address=address)}: {error}") from error


async def _resend_deferred(
    carrier: Carrier, address: Address, number: int, path: str, change: Callable[[bytes], bytes]
) -> None:
    """Lock the message and send its copy; then complete it, or give it back when the copy was not accepted."""
    try:
        management = await carrier.management(address.path)
        [deferred] = await management.receive_deferred([number])
    except TransportError as error:
        raise explained(error, carrier, address.path) from error
    assert deferred.lock_token is not None
    is_accepted = False
    try:
        await _send_copy(carrier, path, change(deferred.payload))
        is_accepted = True
    finally:
        if not is_accepted:
            with suppress(TransportError):  # if this fails, the lock runs out by itself
                await management.update_disposition("abandoned", [deferred.lock_token])
    with _completing(address, path):
        await management.update_disposition("completed", [deferred.lock_token])


async def _resend_active(
    carrier: Carrier, address: Address, number: int, path: str, change: Callable[[bytes], bytes]
) -> None:
    async def act(messages: list[ReceivedMessage]) -> Acted:
        return await _forward(carrier, path, messages, change)

    progress = await Taking(carrier, address, Choice(numbers=[number]), act, Progress(), 1).run()
    if progress.uncompleted:
        raise EntityError(_TWICE.format(path=path, address=address))
    if not progress.done:
        raise EntityError(f"message {number} of {address} did not come: another receiver may have it; nothing was sent")


async def purge(
    carrier: Carrier,
    address: Address,
    *,
    choice: Choice | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Progress:
    """Delete messages for good, but not those that arrive meanwhile. The service deletes them in large steps."""
    progress = progress or Progress()
    choice, last = (choice or Choice()).without_end()
    if choice.is_all and limit is None:
        ends = await extent(carrier, address)
        if ends is None:
            progress.left = 0
            progress.step()
            return progress
        last = ends[1] if last is None else min(ends[1], last)
        before = await _enqueued_time(carrier, address, ends[0], last)
        if before is not None:
            await _delete_together(carrier, address, before, progress)

    async def act(messages: list[ReceivedMessage]) -> Acted:
        return Acted(messages)

    return await Taking(carrier, address, choice, act, progress, limit, last=last).run()


async def _enqueued_time(carrier: Carrier, address: Address, lowest: int, highest: int) -> Timestamp | None:
    """Return when the youngest of these messages was enqueued, by the clock of the service; None: not known.

    Scheduled messages are passed over: their time may lie in the future. Partitioned entities, which have no highest
    number, do not delete messages together anyway.
    """
    for payload in reversed(await peek(carrier, address, max(lowest, highest - PAGE + 1), PAGE, bodies=False)):
        number, enqueued = sequence_number_of(payload), annotations_of(payload).get(ENQUEUED_TIME)
        is_one = number is not None and number <= highest and state_of(payload) != "scheduled"
        if is_one and isinstance(enqueued, int):
            return Timestamp(enqueued)
    return None


async def _delete_together(carrier: Carrier, address: Address, before: Timestamp, progress: Progress) -> None:
    """Ask the service to delete messages that were enqueued before a time.

    Messages that the service does not delete are received and completed afterwards, as is the youngest one.
    """
    patience = RetryPatience()
    patience.succeeded()  # the namespace was reached: it has told that time

    async def delete() -> int:
        management = await carrier.management(address.path)
        body = {"message-count": Int(DELETE_COUNT), "enqueued-time-utc": before}
        answer = await management.request("batch-delete-messages", body)
        return int(answer.get("message-count", 0))

    try:
        while count := await persevere(delete, patience):
            progress.step(done=count)
    except Refused:
        return  # an entity with sessions, or a service that has no such request
    except TransportError as error:
        raise explained(error, carrier, address.path) from error


async def _each(payloads: PayloadSource) -> AsyncIterable[bytes]:
    if isinstance(payloads, AsyncIterable):
        async for payload in payloads:
            yield payload
    else:
        for payload in payloads:
            yield payload
