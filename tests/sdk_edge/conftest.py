"""Peers that the SDK meets: the real broker, one that accepts connections and stays silent, and nobody at all."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.brokers import BrokerProcess


@pytest.fixture(params=[False, True], ids=["sync", "aio"])
def is_aio(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The kernel accepts, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    """Port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Strings:
    """Connection strings that lead elsewhere, with the key of the broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.here = broker.connection_string()
        self._port = broker.ports["contoso"]

    def at(self, port: int) -> str:
        return self.here.replace(f":{self._port}", f":{port}")

    @property
    def as_azure(self) -> str:
        """A namespace as it is named in Azure: the SDK then insists on TLS."""
        keys = [part for part in self.here.split(";") if part.startswith("SharedAccessKey")]
        return ";".join(["Endpoint=sb://contoso.servicebus.windows.net", *keys])


@pytest.fixture(scope="session")
def strings(broker: BrokerProcess) -> Strings:
    return Strings(broker)
