"""Tokens on `$cbs`: one for each audience in use, put before its first link and renewed while links are open.

Laws of this file.
 1. Puts of different audiences do not wait for each other, up to PUTS_MAX; callers with the same audience share one.
 2. A connection has one pair of `$cbs` links: Azure refuses a second. A pair that the peer ended is opened again.
 3. Time inside a credential is not the peer's silence: only the caller's deadline limits it, and CREDENTIAL_TIMEOUT_S
    when every caller has left.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pairbus.amqp.errors import DETACH_FORCED, NOT_FOUND, RESOURCE_LIMIT_EXCEEDED, UNAUTHORIZED_ACCESS
from pairbus.amqp.message import Message
from pairbus.amqp.types import Timestamp
from pairbus.pairing.policy import Silence
from pairbus.transport.connection.shared_work import SharedWork
from pairbus.transport.connection.steps import Hearing, Steps
from pairbus.transport.errors import Refused, Timeout, TransportError
from pairbus.transport.links.requests import Requests, open_requests
from pairbus.transport.times import CREDENTIAL_TIMEOUT_S, FAR_S, RENEW_RETRY_S
from pairbus.transport.tokens.credential import Credential, Token

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire

logger = logging.getLogger("pairbus.transport")

NODE = "$cbs"
TOKENS_MAX = 900  # of a connection; Azure refuses the 1001st
PUTS_MAX = 100  # under way at once; as many answers have credit
RENEW_FROM, RENEW_TO = 0.8, 0.9  # of the lifetime, at random, so that a thousand tokens are not renewed in one second

_CONDITIONS = {
    401: UNAUTHORIZED_ACCESS,
    403: UNAUTHORIZED_ACCESS,
    404: NOT_FOUND,
    408: "com.microsoft:timeout",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
}


class TokenRefused(Refused):
    """The peer refused a token. The SDK raises ServiceBusAuthenticationError here, whatever the status."""

    status: int | None = None
    fills_connection = False
    "True: the connection holds as many tokens as it may; another connection takes the token."

    @classmethod
    def of(cls, audience: str, answer: Message) -> Self:
        """Make the error of an answer by its status; a 403 about a quota is not a lack of rights."""
        status, text = answer.property("status-code"), str(answer.property("status-description"))
        condition = answer.property("error-condition") or _CONDITIONS.get(status, f"status:{status}")
        if status == 403 and ("quota" in text.lower() or "maximum number of" in text):
            condition = RESOURCE_LIMIT_EXCEEDED
        refused = cls(str(condition), f"{audience}: {text}")
        refused.status = status if isinstance(status, int) else None
        refused.fills_connection = "tokens per connection" in text
        return refused

    def again(self, *, outcome_unknown: bool) -> Self:
        copy = super().again(outcome_unknown=outcome_unknown)
        copy.status, copy.fills_connection = self.status, self.fills_connection
        return copy


class Tokens:
    """The tokens of one connection."""

    def __init__(self, wire: Wire, credential: Credential, silence_s: float) -> None:
        self._wire = wire
        self._loop = wire.loop
        self._credential = credential
        self._silence_s = silence_s
        self._requests: Requests | None = None
        self._slots = asyncio.Semaphore(PUTS_MAX)
        self._users: dict[str, int] = {}
        self._tokens: dict[str, Token] = {}
        self._puts = SharedWork[str]("$cbs")
        "Puts under way, by audience."
        self._once = SharedWork[str]("$cbs")
        "The opening of the links, and the call of a credential whose token serves all audiences."
        self._renewals: dict[str, asyncio.TimerHandle] = {}
        self._answered_at = -math.inf
        self._on_peer: dict[str, float] = {}
        "Audience → time until which the peer may hold its token, also after the last link is closed."

    @property
    def in_use(self) -> bool:
        """True when the peer knows `$cbs`."""
        return self._requests is not None

    @property
    def has_users(self) -> bool:
        """True when links are open or being opened."""
        return bool(self._users)

    def has_room(self, audience: str) -> bool:
        """Return True when one more token may be put, or the peer has one for this audience already."""
        if audience in self._on_peer or len(self._on_peer) < TOKENS_MAX:
            return True
        now = time.time()
        self._on_peer = {each: until for each, until in self._on_peer.items() if each in self._users or until > now}
        return len(self._on_peer) < TOKENS_MAX

    async def acquire(self, audience: str, deadline: float, hearing: Hearing) -> None:
        """Put a token if the peer has no valid one; every call is paired with one `release`, unless it raises.

        `hearing` is told of the peer's silence.
        """
        self._users[audience] = self._users.get(audience, 0) + 1
        self._on_peer.setdefault(audience, 0.0)
        try:
            known = self._tokens.get(audience)
            if known is None or known.expires_s <= time.time():
                what = f"a token for {audience}"
                await self._puts.run(audience, partial(self._put, audience), what, deadline, hearing=hearing)
        except BaseException:
            self.release(audience)
            raise

    def release(self, audience: str) -> None:
        self._users[audience] -= 1
        if self._users[audience] == 0:
            del self._users[audience]
            self.forget(audience)

    def forget(self, audience: str) -> None:
        """Put a fresh token before the next link, because the peer no longer accepts this one."""
        self._tokens.pop(audience, None)
        renewal = self._renewals.pop(audience, None)
        if renewal is not None:
            renewal.cancel()

    def close(self) -> None:
        renewals, self._renewals = self._renewals, {}
        for renewal in renewals.values():
            renewal.cancel()
        self._puts.cancel_all()
        self._once.cancel_all()

    # ── putting ──

    async def _put(self, audience: str, hearing: Hearing) -> None:
        token = await self._token(audience)
        if token is None:
            return
        properties: dict[str, Any] = {"operation": "put-token", "type": token.kind, "name": audience}
        if token.expires_s < math.inf:
            properties["expiration"] = Timestamp(token.expires_s * 1000)
        began = self._loop.time()
        # A put that waits for its turn waits for the peer's answers to those before it.
        with hearing.awaiting(lambda: max(began, self._answered_at)):
            async with self._slots:
                answer = await self._ask(audience, properties, token.text, hearing)
        status = answer.property("status-code")
        if not isinstance(status, int) or not 200 <= status <= 299:
            raise TokenRefused.of(audience, answer)
        self._on_peer[audience] = token.expires_s
        if audience in self._users:
            self._tokens[audience] = token
            if token.renewable and token.expires_s < math.inf:
                left_s = max(token.expires_s - time.time(), 0.0)
                self._renew_in(audience, max(left_s * random.uniform(RENEW_FROM, RENEW_TO), 1.0))

    async def _token(self, audience: str) -> Token | None:
        """Ask the credential; callers share the call when its token serves all audiences."""
        if self._credential.per_audience:
            return await self._fetched(audience)
        return await self._once.run("token", lambda _: self._fetched(audience), "the credential's token")

    async def _fetched(self, audience: str) -> Token | None:
        try:
            async with asyncio.timeout(CREDENTIAL_TIMEOUT_S):
                return await self._credential.token(audience)
        except TimeoutError:
            why = f"{audience}: the credential gave no token within {CREDENTIAL_TIMEOUT_S:g} s"
            raise Timeout(why, Silence(0.0, self._silence_s)) from None  # the peer owed nothing

    async def _ask(self, audience: str, properties: dict[str, Any], text: str, hearing: Hearing) -> Message:
        """Put once; a second time when the peer had ended the links as idle. A put may safely be repeated."""
        requests = await self._links(hearing)
        try:
            return await self._ask_on(requests, audience, properties, text, hearing)
        except TransportError as error:
            is_refused = isinstance(error, Refused) and error.condition != DETACH_FORCED
            if requests.over is None or self._wire.loss is not None or is_refused:
                raise
        return await self._ask_on(await self._links(hearing), audience, properties, text, hearing)

    async def _ask_on(
        self, requests: Requests, audience: str, properties: dict[str, Any], text: str, hearing: Hearing
    ) -> Message:
        asking = requests.request(properties, text, self._loop.time() + FAR_S)
        steps = Steps(audience, self._silence_s, hearing=hearing)
        answer = await steps.step("the answer to its token", asking, heard=lambda: self._answered_at)
        self._answered_at = self._loop.time()
        return answer

    async def _links(self, hearing: Hearing) -> Requests:
        """Return the pair of links, opened once for all callers."""
        if self._requests is None or self._requests.over is not None:
            return await self._once.run("links", self._open_links, "the links", hearing=hearing)
        return self._requests

    async def _open_links(self, hearing: Hearing) -> Requests:
        before = self._requests
        if before is not None and before.sender.over is None:
            await before.close(self._silence_s)  # the peer has ended one of the two; only one pair is allowed
        far = self._loop.time() + FAR_S
        opening = open_requests(self._wire, NODE, far, FAR_S)
        self._requests = await Steps(NODE, self._silence_s, hearing=hearing).step("the links", opening)
        return self._requests

    # ── renewing ──

    def _renew_in(self, audience: str, delay_s: float) -> None:
        timer = self._renewals.pop(audience, None)
        if timer is not None:
            timer.cancel()
        self._renewals[audience] = self._loop.call_later(delay_s, self._renew, audience)

    def _renew(self, audience: str) -> None:
        """Put a fresh token. When the peer refuses until the old one expires, it drops the links with a reason."""
        del self._renewals[audience]
        if self._wire.loss is None:
            task = self._puts.begin(audience, partial(self._put, audience))
            task.add_done_callback(lambda task: self._renewed(audience, task))

    def _renewed(self, audience: str, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or audience not in self._users or self._wire.loss is not None:
            return
        logger.warning("%s: the token could not be renewed: %s", audience, error)
        self._renew_in(audience, RENEW_RETRY_S * random.uniform(0.8, 1.2))
