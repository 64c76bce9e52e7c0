"""Tokens on `$cbs`: one for each audience in use, put before its first link and renewed while links are open."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import NOT_FOUND, UNAUTHORIZED_ACCESS
from pairbus.amqp.types import Timestamp
from pairbus.transport.credential import Credential, Token
from pairbus.transport.errors import Refused, Timeout, TransportError
from pairbus.transport.requests import Requests, open_requests

if TYPE_CHECKING:
    from pairbus.transport.wire import Wire

logger = logging.getLogger("pairbus.transport")

NODE = "$cbs"
RENEW_AT = 0.9  # of the lifetime, as the SDKs do: minute 54 of an hour
RENEW_TIMEOUT_S = 30.0
RENEW_RETRY_S = 15.0  # after a failed renewal; a tenth of an hour leaves room for many
_CONDITIONS = {401: UNAUTHORIZED_ACCESS, 403: UNAUTHORIZED_ACCESS, 404: NOT_FOUND}


class Tokens:
    """The tokens of one connection."""

    def __init__(self, wire: Wire, credential: Credential) -> None:
        self._wire = wire
        self._credential = credential
        self._requests: Requests | None = None
        self._lock = asyncio.Lock()
        self._users: dict[str, int] = {}
        self._tokens: dict[str, Token] = {}
        self._renewals: dict[str, asyncio.Task[None]] = {}

    @property
    def in_use(self) -> bool:
        """The peer knows `$cbs`."""
        return self._requests is not None

    async def acquire(self, audience: str, timeout_s: float) -> None:
        """See to it that the peer has a valid token; every call is paired with one `release`, unless it raises."""
        deadline = self._wire.loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                known = self._tokens.get(audience)
                if known is None or known.expires_s <= time.time():
                    await self._put(audience, deadline)
        except TimeoutError:
            raise Timeout(f"{audience}: no token was accepted in time") from None
        self._users[audience] = self._users.get(audience, 0) + 1

    def release(self, audience: str) -> None:
        self._users[audience] -= 1
        if self._users[audience] == 0:
            del self._users[audience]
            self._tokens.pop(audience, None)
            renewal = self._renewals.pop(audience, None)
            if renewal is not None:
                renewal.cancel()

    def close(self) -> None:
        renewals, self._renewals = self._renewals, {}
        for renewal in renewals.values():
            renewal.cancel()

    async def _put(self, audience: str, deadline: float) -> None:
        token = await self._credential.token(audience)
        if token is None:
            return
        if self._requests is None or self._requests.over is not None:
            timeout_s = deadline - self._wire.loop.time()
            self._requests = await open_requests(self._wire, NODE, deadline, timeout_s)
        properties: dict[str, Any] = {"operation": "put-token", "type": token.kind, "name": audience}
        if token.expires_s < math.inf:
            properties["expiration"] = Timestamp(token.expires_s * 1000)
        answer = await self._requests.request(properties, token.text, deadline)
        status = answer.property("status-code")
        if not isinstance(status, int) or not 200 <= status <= 299:
            condition = answer.property("error-condition") or _CONDITIONS.get(status, f"status:{status}")
            raise Refused(str(condition), f"{audience}: {answer.property('status-description')}")
        self._tokens[audience] = token
        if token.renewable and token.expires_s < math.inf and audience not in self._renewals:
            self._renewals[audience] = asyncio.create_task(self._renew(audience))

    async def _renew(self, audience: str) -> None:
        """Renew at 90 % of each token's life. When the peer says no to the end, it drops the links, and says why."""
        while audience in self._tokens and self._wire.loss is None:
            left_s = self._tokens[audience].expires_s - time.time()
            await asyncio.sleep(max(left_s * RENEW_AT, 1.0))
            while self._wire.loss is None:
                try:
                    async with asyncio.timeout(RENEW_TIMEOUT_S), self._lock:
                        await self._put(audience, self._wire.loop.time() + RENEW_TIMEOUT_S)
                    break
                except (TransportError, TimeoutError) as error:
                    logger.warning("%s: the token could not be renewed: %s", audience, error or "time is over")
                await asyncio.sleep(RENEW_RETRY_S)
