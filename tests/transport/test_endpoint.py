"""Connection strings and credentials: their meaning, and that no secret leaves them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError, ServiceResponseError

from pairbus.auth import sas
from pairbus.errors import ConfigError
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.errors import ConnectionLost, Refused
from pairbus.transport.tokens.credential import (
    SCOPE,
    Anonymous,
    AzureToken,
    Plain,
    SasKey,
    SasSignature,
    credential_for,
)

KEY = "SharedAccessKeyName=k;SharedAccessKey=s3cr3t="


@pytest.mark.parametrize(
    ("text", "transport", "goes_to"),
    [
        (f"Endpoint=sb://h;{KEY}", "tcp", ("h", 5671, True, "sb://h/q")),
        (f"Endpoint=sb://h:7;{KEY}", "tcp", ("h", 7, True, "sb://h/q")),
        (f"Endpoint=sb://h/;{KEY};UseDevelopmentEmulator=true", "tcp", ("h", 5672, False, "sb://h/q")),
        (f"Endpoint=sb://h:7/;{KEY};UseDevelopmentEmulator=true", "tcp", ("h", 7, False, "sb://h:7/q")),
        (f"endpoint=sb://h;{KEY.lower()};usedevelopmentemulator=false;", "tcp", ("h", 5671, True, "sb://h/q")),
        (f"HostName=h;{KEY}", "tcp", ("h", 5671, True, "sb://h/q")),
        (f"Endpoint=sb://h;{KEY}", "websocket", ("h", 443, True, "sb://h/q")),
        (f"Endpoint=sb://h;{KEY};UseDevelopmentEmulator=true", "websocket", ("h", 80, False, "sb://h/q")),
        (f"Endpoint=sb://[::1]:7;{KEY};UseDevelopmentEmulator=true", "tcp", ("::1", 7, False, "sb://[::1]:7/q")),
    ],
)
def test_a_connection_string_says_where_to_go_and_what_the_audience_is(
    text: str, transport: Any, goes_to: tuple[str, int, bool, str]
) -> None:
    """The same string must lead both SDKs and this client to the same place, or tokens are for somewhere else."""
    endpoint = Endpoint.parse(text, transport=transport)
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.audience("q")) == goes_to
    assert (endpoint.key_name, endpoint.key) == ("k", "s3cr3t=")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "Endpoint"),
        (KEY, "Endpoint"),
        (f"Endpoint=sb://;{KEY}", "Endpoint"),
        (f"Endpoint=sb://h/q;{KEY}", "Endpoint"),
        (f"Endpoint=sb://h:x;{KEY}", "Endpoint"),
        ("Endpoint=sb://h", "SharedAccessKey"),
        ("Endpoint=sb://h;SharedAccessKey=s3cr3t", "SharedAccessKeyName"),
        ("Endpoint=sb://h;SharedAccessKeyName=k", "SharedAccessKey"),
        (f"Endpoint=sb://h;{KEY};SharedAccessSignature=s3cr3t", "SharedAccessSignature"),
        (f"Endpoint=sb://h;{KEY};UseDevelopmentEmulator=True", "UseDevelopmentEmulator"),
        (f"Endpoint=sb://h;{KEY};SharedAccessKey=s3cr3t", "SharedAccessKey"),
        (f"Endpoint=sb://h;{KEY};s3cr3t", "'='"),
    ],
)
def test_a_wrong_connection_string_names_the_key_and_never_the_secret(text: str, named: str) -> None:
    """Error texts end in logs and on screens."""
    with pytest.raises(ConfigError, match=named) as caught:
        Endpoint.parse(text)
    assert "s3cr3t" not in str(caught.value)


def test_neither_repr_nor_credentials_show_secrets() -> None:
    """Tracebacks and debuggers print a repr."""
    shown = [
        Endpoint.parse(f"Endpoint=sb://h;{KEY}"),
        Endpoint.parse("Endpoint=sb://h;SharedAccessSignature=s3cr3t"),
        SasKey("k", "s3cr3t"),
        SasSignature("s3cr3t"),
        Plain("u", "s3cr3t"),
        AzureToken("s3cr3t"),
        asyncio.run(SasSignature("s3cr3t").token("a")),
    ]
    assert "s3cr3t" not in repr(shown)


def test_a_custom_endpoint_moves_the_socket_and_nothing_else() -> None:
    """One broker on this machine can then stand in for a namespace in the cloud."""
    endpoint = Endpoint.parse(f"Endpoint=sb://ns.example;{KEY}", via="localhost:7")
    assert (endpoint.host, endpoint.port, endpoint.hostname) == ("localhost", 7, "ns.example")
    assert endpoint.audience("/q") == "sb://ns.example/q"


def test_entity_path_is_the_default_and_forbids_other_entities() -> None:
    """A key for one entity opens no other, so the mistake is told here and not by a refused link."""
    endpoint = Endpoint.parse(f"Endpoint=sb://h;{KEY};EntityPath=Orders")
    assert endpoint.path(None) == "Orders"
    assert endpoint.path("orders/$DeadLetterQueue") == "orders/$DeadLetterQueue"
    with pytest.raises(ConfigError, match="Orders"):
        endpoint.path("orders2")
    with pytest.raises(ConfigError, match="EntityPath"):
        Endpoint.parse(f"Endpoint=sb://h;{KEY}").path(None)


async def test_key_signs_an_hourly_token_for_each_audience() -> None:
    """The peer checks the signature against the audience, and drops the link at the expiry."""
    token = await SasKey("k", "secret").token("sb://h/q")
    parsed = sas.parse(token.text)
    assert parsed.resource == "sb://h/q"
    assert sas.verify(parsed, [sas.SharedAccessKey("k", "secret")], time.time()).name == "k"
    assert 3590 < token.expires_s - time.time() <= 3600


async def test_a_signature_is_used_verbatim_and_its_expiry_is_read() -> None:
    """A user who holds only a signature cannot make another one."""
    text = "SharedAccessSignature sr=x&sig=y&se=1700000000&skn=k"
    token = await SasSignature(text).token("anything")
    assert (token.text, token.expires_s, token.renewable) == (text, 1_700_000_000, False)
    assert (await SasSignature("SharedAccessSignature sr=x").token("a")).expires_s == float("inf")


@dataclass
class _Access:
    token: str
    expires_on: int


async def test_azure_credentials_may_be_sync_or_async() -> None:
    """azure.identity and azure.identity.aio have the same names and differ in nothing else."""

    class Sync:
        def get_token(self, *scopes: str) -> _Access:
            return _Access(f"sync {scopes[0]}", 5)

    class Aio:
        async def get_token(self, *scopes: str) -> _Access:
            return _Access(f"aio {scopes[0]}", 5)

    endpoint = Endpoint("h", 1)
    for credential, word in ((Sync(), "sync"), (Aio(), "aio")):
        token = await credential_for(endpoint, credential).token("a")
        assert token is not None
        assert (token.text, token.kind, token.expires_s) == (f"{word} {SCOPE}", "jwt", 5.0)


def wrapped(error: Exception) -> Exception:
    """Wrap an error as azure-identity wraps the errors of its pipeline."""
    outer = ClientAuthenticationError(message=f"Authentication failed: {error}")
    outer.__cause__ = error
    return outer


NO_ANSWER = [
    OSError("identity service unreachable"),
    TimeoutError("late"),
    ServiceRequestError("no route"),
    ServiceResponseError("it hung up"),
    wrapped(ServiceRequestError("no route")),
]


@pytest.mark.parametrize("error", NO_ANSWER, ids=lambda error: type(error).__name__)
async def test_a_credential_without_an_answer_is_a_lost_connection(error: Exception) -> None:
    """A token service that is down is an outage: a wrong password would be shown to the application instead."""
    with pytest.raises(ConnectionLost) as caught:
        await credential_for(Endpoint("h", 1), _failing(error)).token("a")
    assert caught.value.__cause__ is error
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize("error", [ClientAuthenticationError(message="bad secret"), ValueError("no tenant")])
async def test_a_credential_that_is_refused_is_a_refusal(error: Exception) -> None:
    """Exceptions of a credential are foreign; callers that open a link know ours, and the renewal of tokens goes
    on trying.
    """
    with pytest.raises(Refused) as caught:
        await credential_for(Endpoint("h", 1), _failing(error)).token("a")
    assert caught.value.condition == "amqp:unauthorized-access"


def _failing(error: Exception) -> object:
    class Failing:
        def get_token(self, *scopes: str) -> _Access:
            raise error

    return Failing()


def test_without_a_credential_the_endpoint_decides() -> None:
    """A plain endpoint is a broker that knows no tokens."""
    assert isinstance(credential_for(Endpoint("h", 1)), Anonymous)
    assert isinstance(credential_for(Endpoint.parse(f"Endpoint=sb://h;{KEY}")), SasKey)
    with pytest.raises(ConfigError, match="get_token"):
        credential_for(Endpoint("h", 1), "a password")
