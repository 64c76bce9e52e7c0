"""Two namespaces for tests of a paired client."""

from __future__ import annotations

from typing import Any

from pairbus.client.client import PairedServiceBusClient as AioPairedServiceBusClient
from pairbus.client.sync import PairedServiceBusClient
from pairbus.testing.broker_thread import PairClock, ServiceBusNamespace


class ServiceBusPair:
    """A primary and a secondary, and clients that pair them."""

    def __init__(self, primary: ServiceBusNamespace, secondary: ServiceBusNamespace) -> None:
        self.primary = primary
        self.secondary = secondary
        self.clock = PairClock(primary.clock, secondary.clock)
        "The clocks of both namespaces; the intervals of clients follow the machine's clock."
        self._clients: list[PairedServiceBusClient] = []

    def __repr__(self) -> str:
        return f"<ServiceBusPair {self.primary.name} {self.secondary.name}>"

    def client(self, **options: Any) -> PairedServiceBusClient:
        """Make a paired client; `options` are those of `from_connection_strings`. It is closed with the pair."""
        client = PairedServiceBusClient.from_connection_strings(*self._strings(), **options)
        self._clients.append(client)
        return client

    def aio_client(self, **options: Any) -> AioPairedServiceBusClient:
        """Make a paired client for asyncio, which the caller closes: `async with pair.aio_client() as client`."""
        return AioPairedServiceBusClient.from_connection_strings(*self._strings(), **options)

    def _strings(self) -> tuple[str, str]:
        return self.primary.connection_string, self.secondary.connection_string

    def close(self) -> None:
        """Close the clients that `client` made."""
        clients, self._clients = self._clients, []
        for client in clients:
            client.close()
