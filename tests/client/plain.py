"""The plain SDK and our two clients behind one face: the same call through each, to the same scripted endpoint."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from azure.servicebus import ServiceBusClient, aio

from tests.client.world import CALL_S, Client, Stage
from tests.sdk.flavours import Flavour, in_thread

Who = Literal["plain", "paired", "single"]


class Caller:
    """One client in one flavour. The stage closes ours."""

    def __init__(
        self, stage: Stage, who: Who, flavour: Flavour, *, failover_interval: float = 0, **keywords: Any
    ) -> None:
        self.who = who
        self.flavour = flavour
        self._stage = stage
        self._client: Any = None
        self._keywords = keywords
        self._failover_interval = failover_interval

    def _made(self) -> Any:
        if self.who == "paired":
            made: Client = self._stage.client(
                self.flavour,
                on_event=None,
                failover_interval=self._failover_interval,
                primary_kwargs=self._keywords,
            )
            return made.client
        if self.who == "single":
            return self._stage.single(self.flavour, **self._keywords).client
        kind = aio.ServiceBusClient if self.flavour == "aio" else ServiceBusClient
        return kind.from_connection_string(
            self._stage.primary.connection_string, **{"retry_total": 0, **self._keywords}
        )

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = self._made()
        return self._client

    async def call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        async with asyncio.timeout(CALL_S):
            if self.flavour == "aio":
                return await method(*args, **kwargs)
            return await in_thread(method, *args, **kwargs)

    async def close(self) -> None:
        if self._client is not None:
            await self.call(self._client.close)
