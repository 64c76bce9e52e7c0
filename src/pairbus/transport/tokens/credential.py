"""Credentials: tokens for `$cbs`, or SASL for brokers that know no tokens."""

from __future__ import annotations

import inspect
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pairbus.amqp.errors import UNAUTHORIZED_ACCESS
from pairbus.amqp.sasl import SaslClient
from pairbus.auth import sas
from pairbus.errors import ConfigError
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.errors import ConnectionLost, Refused, TransportError
from pairbus.transport.threads import in_thread

SAS_LIFETIME_S = 3600
SCOPE = "https://servicebus.azure.net//.default"  # spelled as in the SDK, because a credential may check it
SAS_KIND, JWT_KIND = "servicebus.windows.net:sastoken", "jwt"


@dataclass(frozen=True, slots=True)
class Token:
    """Token that put-token carries."""

    text: str = field(repr=False)
    kind: str
    expires_s: float
    "Expiry in seconds since 1970; infinite when the token has none."
    renewable: bool = True


@runtime_checkable
class Credential(Protocol):
    """A proof of our identity."""

    per_audience: bool
    "True: each audience has a token of its own; False: one token serves all, and callers that wait share it."

    def sasl(self, hostname: str) -> SaslClient: ...

    async def token(self, audience: str) -> Token | None:
        """Return a fresh token for the audience; None when the broker wants none, and then `$cbs` is never used."""
        ...


class _TokenCredential:
    __slots__ = ()
    per_audience = True

    def sasl(self, hostname: str) -> SaslClient:
        return SaslClient("ANONYMOUS", b"", hostname)


@dataclass(frozen=True, slots=True)
class SasKey(_TokenCredential):
    """A shared access key: signs a token for every audience."""

    name: str
    key: str = field(repr=False)
    lifetime_s: float = SAS_LIFETIME_S

    async def token(self, audience: str) -> Token:
        expires_s = int(time.time() + self.lifetime_s)
        return Token(sas.sign(audience, self.name, self.key, expires_s), SAS_KIND, expires_s)


@dataclass(frozen=True, slots=True)
class SasSignature(_TokenCredential):
    """A token that was signed elsewhere, used as it is for every audience. It cannot be renewed."""

    text: str = field(repr=False)

    async def token(self, audience: str) -> Token:
        expiry = re.search(r"(?:^|[&\s])se=(\d+)", self.text)
        return Token(self.text, SAS_KIND, float(expiry[1]) if expiry else math.inf, renewable=False)


@dataclass(frozen=True, slots=True)
class AzureToken(_TokenCredential):
    """Any credential of azure-identity, sync or async: an object with `get_token(scope)`."""

    credential: Any = field(repr=False)
    per_audience = False

    async def token(self, audience: str) -> Token:
        get_token = self.credential.get_token
        # A sync credential may use the network, so it must not run on the event loop.
        is_async = inspect.iscoroutinefunction(get_token)
        try:
            answer = await (get_token(SCOPE) if is_async else in_thread("get_token", get_token, SCOPE))
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:  # any error of a foreign credential means that there is no token
            raise _no_token(error) from error
        return Token(str(answer.token), JWT_KIND, float(answer.expires_on))


_FAILED_AT = frozenset({408, 429, *range(500, 600)})


def _no_token(error: BaseException) -> TransportError:
    """Convert the failure of a credential: no answer of its token service is an outage, a refusal a wrong credential.

    azure-identity wraps some network errors in ClientAuthenticationError, so the causes are checked first.
    """
    from azure.core.exceptions import ServiceRequestError, ServiceResponseError  # a slow import, only needed here

    text = f"the credential gave no token: {type(error).__name__}: {error}"
    no_answer = (OSError, ServiceRequestError, ServiceResponseError)  # TimeoutError is an OSError
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, no_answer) or getattr(cause, "status_code", None) in _FAILED_AT:
            return ConnectionLost(text)
        cause = cause.__cause__
    return Refused(UNAUTHORIZED_ACCESS, text)


@dataclass(frozen=True, slots=True)
class Plain:
    """User and password by SASL PLAIN, for brokers without `$cbs`."""

    user: str
    password: str = field(repr=False)
    per_audience = True

    def sasl(self, hostname: str) -> SaslClient:
        return SaslClient("PLAIN", f"\0{self.user}\0{self.password}".encode(), hostname)

    async def token(self, audience: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Anonymous:
    """No identity (SASL ANONYMOUS), for brokers without `$cbs`."""

    per_audience = True

    def sasl(self, hostname: str) -> SaslClient:
        return SaslClient("ANONYMOUS", b"", hostname)

    async def token(self, audience: str) -> None:
        return None


def credential_for(endpoint: Endpoint, token_source: object | None = None) -> Credential:
    """Return the credential that was given, or else the endpoint's."""
    if isinstance(token_source, Credential):
        return token_source
    if token_source is not None:
        if not hasattr(token_source, "get_token"):
            raise ConfigError(f"credential must have get_token or be one of ours, not {type(token_source).__name__}")
        return AzureToken(token_source)
    if endpoint.signature:
        return SasSignature(endpoint.signature)
    if endpoint.key and endpoint.key_name:
        return SasKey(endpoint.key_name, endpoint.key)
    return Anonymous()
