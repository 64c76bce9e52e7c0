"""The face over both flavours of the SDK keeps its promise to the tests: a call ends, with any peer."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from azure.servicebus.exceptions import ServiceBusConnectionError

from tests.sdk import flavours
from tests.sdk.flavours import Flavour, Sdk

pytestmark = pytest.mark.asyncio(loop_scope="session")


def _connection_string(port: int) -> str:
    key = "SharedAccessKeyName=any;SharedAccessKey=any"
    return f"Endpoint=sb://127.0.0.1:{port};{key};UseDevelopmentEmulator=true"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A peer that lets one connect and never says a word: the sync SDK waits for it without end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_an_error_of_the_sdk_reaches_the_test(flavour: Flavour) -> None:
    """The port is closed: the SDK's own exception is raised, from a thread as from a coroutine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    sdk = Sdk(flavour, _connection_string(port))
    with pytest.raises(ServiceBusConnectionError):
        await sdk.sender("orders")
    await sdk.close()


async def test_a_call_that_would_never_return_ends_at_its_deadline(
    flavour: Flavour, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that hangs must fail one test and not stop the run."""
    monkeypatch.setattr(flavours, "CALL_S", 0.3)
    sdk = Sdk(flavour, _connection_string(silent_port))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await sdk.sender("orders")
    assert time.monotonic() - began < 3
