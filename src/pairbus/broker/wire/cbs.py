"""`$cbs`: tokens put on a connection, the rights they grant, and when these end (wire: put-token)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pairbus.amqp.errors import NOT_FOUND, UNAUTHORIZED_ACCESS
from pairbus.amqp.message import Message
from pairbus.amqp.types import Int
from pairbus.auth.sas import MANAGE, Grant, KeyRing, TokenNotValid, resource_path
from pairbus.broker.refusal import SERVER_BUSY, TIMEOUT, Refusal
from pairbus.broker.wire.requests import OwnTransaction, SendReply

logger = logging.getLogger("pairbus.broker")

GRANTS_MAX = 4096  # audiences per connection; the SDKs put one per link
_STATUS_OF = {UNAUTHORIZED_ACCESS: 401, NOT_FOUND: 404, TIMEOUT: 408, SERVER_BUSY: 503}
AUDIENCE_LENGTH_MAX = 2048  # a host and an encoded path of 260 characters; all audiences are kept in memory


class TooManyTokens(TokenNotValid):
    """The connection has as many tokens as it may have; the token itself may be good."""


class Grants:
    """Rights that the tokens of one connection give. A newer token for an audience replaces the older one."""

    def __init__(self, count_max: int = GRANTS_MAX) -> None:
        self._count_max = count_max
        self._by_audience: dict[str, Grant] = {}

    def __len__(self) -> int:
        return len(self._by_audience)

    def put(self, audience: str, grant: Grant) -> None:
        if audience not in self._by_audience and len(self._by_audience) >= self._count_max:
            raise TooManyTokens(f"the maximum number of '{self._count_max}' tokens per connection has been reached")
        self._by_audience[audience] = grant

    def allows(self, path: str, right: str | None, now_s: float) -> bool:
        """Return whether some unexpired token covers the path with this right (None: with any right)."""
        return any(
            grant.expires_s > now_s and grant.covers(path) and (right is None or right in grant.rights)
            for grant in self._by_audience.values()
        )

    def next_expiry_s(self) -> float | None:
        return min((grant.expires_s for grant in self._by_audience.values()), default=None)

    def drop_expired(self, now_s: float) -> bool:
        """Forget the tokens that have ended; True when there were any."""
        ended = [audience for audience, grant in self._by_audience.items() if grant.expires_s <= now_s]
        for audience in ended:
            del self._by_audience[audience]
        return bool(ended)


class CbsNode:
    """Node that answers put-token. The type of the token is ignored: the Python SDK calls every token `jwt`."""

    address = entity = "$cbs"

    def __init__(
        self,
        keys: KeyRing,
        grants: Grants,
        on_token: Callable[[], None],
        real_ms: Callable[[], int],
        check_entity: Callable[[str], None],
    ) -> None:
        """Make the node. `real_ms` is the machine's clock, by which tokens expire even when a test moves the other.

        `check_entity` raises a Refusal when the entity of an audience does not exist.
        """
        self._keys = keys
        self._grants = grants
        self._on_token = on_token
        self._real_ms = real_ms
        self._check_entity = check_entity

    def right_of(self, request: Message) -> str:
        return MANAGE

    def refuse(self, reply: SendReply, refusal: Refusal) -> None:
        reply(_status(_STATUS_OF.get(refusal.condition, 500), refusal.description), None)

    def on_request(
        self, request: Message, reply: SendReply, now_ms: int, transaction: OwnTransaction | None = None
    ) -> None:
        operation, audience, token = request.property("operation"), request.property("name"), request.body
        if operation != "put-token":
            reply(_status(400, f"The operation {operation!r} is not known; put-token is."), None)
        elif not isinstance(audience, str) or not isinstance(token, str):
            reply(_status(400, "put-token needs the audience in 'name' and the token as text."), None)
        elif len(audience) > AUDIENCE_LENGTH_MAX:
            reply(_status(400, f"The audience has {len(audience)} characters; {AUDIENCE_LENGTH_MAX} max."), None)
        else:
            try:
                grant = self._keys.check(token, resource_path(audience), self._real_ms() / 1000)
                self._check_entity(audience)  # behind the token: without a key nobody learns which entities exist
                self._grants.put(audience, grant)
            except TokenNotValid as error:
                logger.info("token for %r refused: %s", audience, error)
                if isinstance(error, TooManyTokens):
                    reply(_status(403, f"The token was not taken: {error}."), None)
                else:
                    reply(_status(401, f"InvalidToken: {error}"), None)
            except Refusal as refusal:
                logger.info("token for %r refused: %s", audience, refusal)
                self.refuse(reply, refusal)
            else:
                self._on_token()
                reply(_status(202, "Accepted"), None)


def _status(code: int, description: str) -> dict[str, Any]:
    return {"status-code": Int(code), "status-description": description}
