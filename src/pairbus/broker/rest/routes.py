"""Requests about messages, from the check of their token to the answer.

    POST   ENTITY/messages                  Send; a message, or a batch in JSON: 201 after the commit
    POST   ENTITY/messages/head             Listen; lock the next message: 201, or 204 when none comes in time
    DELETE ENTITY/messages/head             Listen; receive and delete it: 200 after the commit, or 204
    PUT    ENTITY/messages/MESSAGE/LOCK     Listen; unlock it, which counts as a delivery: 200 after the commit
    POST   ENTITY/messages/MESSAGE/LOCK     Listen; renew the lock: 200
    DELETE ENTITY/messages/MESSAGE/LOCK     Listen; complete it: 200 after the commit

A lock has no link here: like a lock of `$management` it is settled by its token, by anybody with the right.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from uuid import UUID

from aiohttp import web
from multidict import CIMultiDict

from pairbus.amqp.errors import ProtocolError
from pairbus.auth.sas import LISTEN, SEND, TokenNotValid
from pairbus.broker.boxes.box import Box, Lock
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft, check_session_ids
from pairbus.broker.entities.receivable import Outcome, Receivable
from pairbus.broker.management import RequestTarget
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    MESSAGE_NOT_FOUND,
    Refusal,
    lock_lost,
    refusal_of,
)
from pairbus.broker.rest.answers import done, has_left, refused, write
from pairbus.broker.rest.body_reading import body_of
from pairbus.broker.rest.incoming import batch, is_batch, single
from pairbus.broker.rest.outgoing import HttpMessage, http_message
from pairbus.broker.rest.paths import MessagePath, PathKind, message_path
from pairbus.broker.rest.waiting import Taken
from pairbus.broker.strict import track
from pairbus.broker.wire.address import parse_address
from pairbus.broker.wire.targets import box_of, destination_of, find_target, source_of
from pairbus.faults import Place
from pairbus.ledger import MeterKind

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

logger = logging.getLogger("pairbus.broker")

TIMEOUT_S = 60  # to wait for a message, when the client names no time
TIMEOUT_MAX_S = 240
BATCH_SIZE_MAX = 1 << 20  # of a batch in JSON, which is read on the event loop


class MessageRoutes:
    """Messages of one namespace over HTTP."""

    def __init__(self, namespace: Namespace, *, skew_s: float) -> None:
        """Make the routes. `skew_s`: seconds after its end for which a token is taken."""
        self._namespace = namespace
        self._skew_s = skew_s

    async def __call__(self, request: web.Request) -> web.Response | None:
        """Answer a request about messages; None: it is about something else.

        An entity whose path ends like such a request is meant itself, but for sends and receives.
        """
        segments = [unquote(segment) for segment in request.rel_url.raw_path.split("/") if segment]
        path = message_path(request.method, segments)
        if path is None or (request.method != "POST" and self._namespace.catalog.find(path.text) is not None):
            return None
        try:
            return await self._answer(request, path)
        except Refusal as refusal:
            logger.info("%s: %s /%s refused: %s", self._namespace.name, request.method, path.text, refusal)
            return refused(refusal, self._text_of(refusal))

    def _text_of(self, refusal: Refusal) -> str:
        namespace = self._namespace
        if not namespace.strictness.tracks_errors:
            return refusal.description
        return track(refusal.description, f"{namespace.name}:broker", namespace.real_ms())

    async def _answer(self, request: web.Request, path: MessagePath) -> web.Response:
        right = SEND if path.kind is PathKind.MESSAGES else LISTEN
        self._authorize(request, path, right)
        if path.kind is PathKind.MESSAGES:
            return await self._send(request, path)
        if path.kind is PathKind.HEAD:
            return await self._receive(request, path, deletes=request.method == "DELETE")
        return await self._settle(request, path)

    def _target(self, request: web.Request, path: MessagePath) -> RequestTarget:
        return find_target(self._namespace.catalog, parse_address(path.entity), request.url.host or "")

    def _authorize(self, request: web.Request, path: MessagePath, right: str) -> None:
        token = request.headers.get("Authorization")
        if token is None:
            raise TokenNotValid("the Authorization header is missing")
        namespace = self._namespace
        grant = namespace.keys.check(
            token, path.entity, namespace.real_ms() / 1000, skew_s=self._skew_s, resource=path.text
        )
        if right not in grant.rights:
            raise TokenNotValid(
                f"{right} claim is required for '/{path.entity}'; the key has {', '.join(grant.rights)}"
            )

    async def _met(self, request: web.Request, place: Place, direction: str, target: RequestTarget) -> bool:
        """Let the operation meet its fault; return whether its answer is lost."""
        faults = self._namespace.faults
        if not faults.acts:
            return False
        description = target.entity.description
        return await faults.http.operation(
            place,
            direction,
            target.entity.path,
            is_partitioned=bool(getattr(description, "enable_partitioning", False)),
            client_left=lambda: has_left(request),
        )

    # ── sending ──

    async def _send(self, request: web.Request, path: MessagePath) -> web.Response:
        target = self._target(request, path)
        destination = destination_of(target)
        arriving = self._namespace.waiting_requests.arriving
        is_lost, sizes = False, [0]
        kind: MeterKind = "send"
        refusal: Refusal | None = None
        is_json = is_batch(request.headers.get("Content-Type", ""))
        size_max = destination.message_size_max
        if is_json:
            size_max = min(size_max, BATCH_SIZE_MAX, self._namespace.strictness.batch_size_max or BATCH_SIZE_MAX)
        try:
            async with body_of(request, size_max, self._namespace.budget, arriving) as body:
                sizes = [len(body)]
                is_lost = await self._met(request, Place.MESSAGE, "send", target)
                incoming = batch(body, size_max) if is_json else single(request.raw_headers, body, size_max)
                kind = "ping" if incoming.drafts[0].is_ping else "send"
                sizes = incoming.sizes
                destination = destination_of(self._target(request, path))  # a reset may have replaced it meanwhile
                refusal = await self._sent(destination, incoming.drafts)
        except Refusal as error:
            refusal = error
        except ProtocolError as error:
            refusal = Refusal(ARGUMENT_ERROR, error.description)
        if self._namespace.meter is not None:
            self._namespace.meter.messages(destination.path, kind, sizes, refusal)
        if refusal is not None:
            raise refusal
        return _answered(request, done(201), is_lost)

    async def _sent(self, destination: Destination, drafts: list[Draft]) -> Refusal | None:
        """Give messages to their entity and wait for the commit; return the Refusal."""
        now_ms, faults = self._namespace.now_ms(), self._namespace.faults
        try:
            if destination.requires_session:
                check_session_ids(drafts, destination.path)
            if faults.acts:
                faults.operations.postpone(destination.path, drafts, now_ms)
            answer = _Answer()
            if drafts[0].is_ping:  # accepted when a send would be, and not stored
                destination.check_room()
                destination.check_memory()
                self._namespace.store.probe(lambda error: answer(None if error is None else refusal_of(error)))
            else:
                destination.send(drafts, now_ms, answer)
        except Refusal as refusal:
            return refusal
        return await answer.future

    # ── receiving ──

    async def _receive(self, request: web.Request, path: MessagePath, *, deletes: bool) -> web.Response:
        target = self._target(request, path)
        entity, box = source_of(target)
        namespace = self._namespace
        timeout_s = _timeout(request.query.get("timeout"))
        await self._met(request, Place.ATTACH, "receive", target)
        entity.touch(namespace.now_ms())
        taken = await namespace.waiting_requests.lock_next(entity, box, timeout_s, lambda: has_left(request))
        if taken is None:
            if namespace.meter is not None:
                namespace.meter.count(entity.path, "empty receive")
            return done(204)
        size = taken.lock.message.size
        namespace.waiting_requests.locked.take(size)  # the body, until it has left
        try:
            return await self._deliver(request, path, taken, deletes=deletes)
        finally:
            namespace.waiting_requests.locked.give(size)

    async def _deliver(self, request: web.Request, path: MessagePath, taken: Taken, *, deletes: bool) -> web.Response:
        """Answer with a message that is locked. Without an answer the message is locked no more."""
        entity, box, lock = taken
        requests = self._namespace.waiting_requests
        outcome: Outcome | None = Outcome.ABANDON  # a delivery that fails by the message itself counts
        try:
            shown = http_message(lock.message, *(() if deletes else (lock.until_ms, lock.token)))
            outcome = Outcome.RELEASE
            lock.message.drop_body()
            if deletes and not has_left(request):
                refusal = await self._completed(entity, box, lock.token)
                if refusal is not None:
                    raise refusal
                outcome = None
            if self._namespace.meter is not None:
                self._namespace.meter.messages(entity.path, "receive", [lock.message.size])
            answer = _message_answer(shown, None if deletes else _location(request, path, lock))
            await write(request, answer, self._namespace.faults)
            outcome = None
        except ConnectionResetError:
            if outcome is None:
                logger.info("%s: message %d was taken by a client that is gone", entity.path, lock.message.seq)
            raise
        finally:
            if outcome is not None:
                requests.end(taken, outcome)
            self._namespace.changed(entity)
        return answer

    # ── settling ──

    async def _settle(self, request: web.Request, path: MessagePath) -> web.Response:
        target = self._target(request, path)
        entity, box = box_of(target)
        renews = request.method == "POST"
        namespace = self._namespace
        is_lost = False
        refusal: Refusal | None = None
        try:
            is_lost = await self._met(request, Place.REQUEST if renews else Place.SETTLEMENT, "receive", target)
            now_ms = namespace.now_ms()
            token = _held_token(box, path, now_ms)
            if renews:
                entity.renew(box, [token], now_ms)
            elif request.method == "PUT":
                answer = _Answer()
                entity.settle(box, token, Outcome.ABANDON, now_ms, answer)
                refusal = await answer.future
            else:
                refusal = await self._completed(entity, box, token)
        except Refusal as error:
            refusal = error
        namespace.changed(entity)
        if namespace.meter is not None:
            namespace.meter.count(entity.path, "renew" if renews else "complete", 1, 0, refusal)
        if refusal is not None:
            raise refusal
        return _answered(request, done(200), is_lost)

    async def _completed(self, entity: Receivable, box: Box, token: bytes) -> Refusal | None:
        """Complete a message and wait for the commit; return the Refusal."""
        answer = _Answer()

        def told(lost: list[bytes], error: Refusal | None) -> None:
            answer(error or lock_lost() if lost else None)

        entity.complete_many(box, [token], self._namespace.now_ms(), told)
        return await answer.future


class _Answer:
    """The answer of an entity, None or a refusal, awaited by one request."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def __call__(self, answer: Refusal | None) -> None:
        if not self.future.done():  # the request may have been cancelled
            self.future.set_result(answer)


def _timeout(text: str | None) -> float:
    if text is None:
        return TIMEOUT_S
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise Refusal(ARGUMENT_ERROR, f"The timeout is {text!r:.40}; it must be a whole number of seconds from 0.")
    return min(int(text), TIMEOUT_MAX_S)


def _held_token(box: Box, path: MessagePath, now_ms: int) -> bytes:
    """Return the lock token of the path; Refusal: there is no such lock, or it is on another message."""
    token = b"" if path.lock is None else path.lock.bytes_le
    lock = box.locks.held(token, now_ms)
    if path.lock is not None and lock is None:
        raise lock_lost()
    if lock is None or path.message not in (str(lock.message.seq), lock.message.message_id):
        raise Refusal(
            MESSAGE_NOT_FOUND,
            f"No message was found with the specified MessageId or LockToken: '{path.message:.200}'.",
        )
    return token


def _location(request: web.Request, path: MessagePath, lock: Lock) -> str:
    entity = quote(path.entity, safe="/$")
    return f"{request.scheme}://{request.host}/{entity}/messages/{lock.message.seq}/{UUID(bytes_le=lock.token)}"


def _message_answer(shown: HttpMessage, location: str | None) -> web.Response:
    headers = CIMultiDict(shown.headers)
    if location is not None:
        headers["Location"] = location
    return web.Response(status=200 if location is None else 201, body=shown.body, headers=headers)


def _answered(request: web.Request, answer: web.Response, is_lost: bool) -> web.Response:
    if is_lost and request.transport is not None:
        request.transport.abort()
    return answer
