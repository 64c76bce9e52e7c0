"""A broker in this process with its page, and a caller who speaks to the page as a browser does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from pairbus.broker import Broker, NamespaceOptions, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dashboard.api import BASE
from pairbus.dashboard.guard import CHANGE_HEADER
from pairbus.explorer import Address, encoded, send
from pairbus.transport import Carrier, ReceivedMessage

API = f"{BASE}api/"
QUEUES = (
    QueueDescription("orders"),
    QueueDescription("other"),
    QueueDescription("meetings", requires_session=True),
    QueueDescription("large", max_message_size_kb=102_400),
)
CHANGING = {CHANGE_HEADER: "1"}
PATIENCE_S = 20.0


class World:
    """The namespace `contoso` with its page, and a carrier for messages."""

    def __init__(self, broker: Broker, session: aiohttp.ClientSession, carrier: Carrier) -> None:
        self.broker = broker
        self.session = session
        self.carrier = carrier
        self.url = broker.connection_string("contoso").partition(";")[0].replace("Endpoint=sb://", "http://")

    async def ask(
        self, method: str, route: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Call a route of the API; return status and JSON, or the text of the broker's own refusal."""
        given = CHANGING if headers is None else headers
        async with self.session.request(method, f"{self.url}{API}{route}", json=body, headers=given) as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def get(self, route: str) -> Any:
        status, said = await self.ask("GET", route)
        assert status == 200, said
        return said

    async def post(self, route: str, body: Any) -> Any:
        status, said = await self.ask("POST", route, body)
        assert status == 200, said
        return said

    async def job(self, route: str, body: Any) -> dict[str, Any]:
        """Begin a job, and wait for its end."""
        began = await self.post(route, body)
        return await self.end_of(began)

    async def end_of(self, began: dict[str, Any]) -> dict[str, Any]:
        job = began
        async with asyncio.timeout(PATIENCE_S):
            while job["state"] == "running":
                await asyncio.sleep(0.02)
                job = await self.get(f"jobs/{began['number']}")
        return job

    async def put(self, *bodies: str, path: str = "orders", **fields: Any) -> None:
        """Send messages with these bodies."""
        await send(
            self.carrier,
            path,
            [encoded({"body": body, "message_id": f"m{at}", **fields}) for at, body in enumerate(bodies)],
        )

    async def dead_letter(self, count: int, reason: str, path: str = "orders") -> None:
        receiver = await self.carrier.receiver(Address(path).path, credit=count)
        got: list[ReceivedMessage] = []
        while len(got) < count:
            got += await receiver.receive(count - len(got), 5.0)
        await receiver.dead_letter(got, reason, f"because of {reason}")
        await receiver.close()

    def counts(self, path: str = "orders") -> tuple[int, int]:
        """Active and dead messages, as the broker itself has them."""
        info = self.broker.namespace("contoso").queue_info(path)
        return info.active, info.dead_lettered


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    """Serve the namespace in memory, with its page."""
    from pairbus.dashboard.lazy import lazy_page

    namespace = NamespaceOptions("contoso", queues=QUEUES, topics=(TopicDescription("news"),))
    async with Broker([namespace], data=None, page=lazy_page, **options) as broker:
        await broker.namespace("contoso").create(SubscriptionDescription("news", "all"))
        async with aiohttp.ClientSession() as session, Carrier(broker.connection_string("contoso")) as carrier:
            yield World(broker, session, carrier)
