"""A broker in this process with clients of both kinds: HTTP requests that a test writes itself, and the genuine SDK."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from pairbus.auth.sas import sign
from pairbus.broker import (
    ROOT_KEY_NAME,
    WELL_KNOWN_KEY,
    Broker,
    NamespaceOptions,
    QueueDescription,
    SubscriptionConfig,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.description import AuthorizationRule
from tests.faults.conftest import World
from tests.limits import slowness

FAR_S = 4_000_000_000
JSON_BATCH = "application/vnd.microsoft.servicebus.json"
OPTIONS = NamespaceOptions(
    "contoso",
    queues=(
        QueueDescription(
            "orders",
            authorization=(
                AuthorizationRule("writer", ("Send",), "write", "second"),
                AuthorizationRule("reader", ("Listen",), "read", "second"),
            ),
        ),
        QueueDescription("other"),
        QueueDescription("small", max_message_size_kb=1024),
        QueueDescription("brief", lock_duration_ms=1000, max_delivery_count=2),
        QueueDescription("talks", requires_session=True),
    ),
    topics=(TopicDescription("events"),),
    subscriptions=(SubscriptionConfig(SubscriptionDescription("events", "audit")),),
)


class HttpWorld(World):
    """The world of one broker, with an HTTP client that has the root key."""

    session: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.connection_string.partition("127.0.0.1:")[2].partition(";")[0])

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def token(self, path: str = "", name: str = ROOT_KEY_NAME, key: str = WELL_KNOWN_KEY) -> str:
        return sign(self.url(path), name, key, FAR_S)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> HttpAnswer:
        """Make a request; `path` may be a whole URL, such as that of a `Location`."""
        url = path if path.startswith("http") else self.url(path)
        sent = {"Authorization": token or self.token(), **(headers or {})}
        skips = () if "Content-Type" in sent else ("Content-Type",)
        async with self.session.request(method, url, data=body, headers=sent, skip_auto_headers=skips) as answer:
            return HttpAnswer(answer.status, dict(answer.headers), await answer.read())

    async def send(self, path: str, body: bytes = b"one", **headers: str) -> None:
        answer = await self.ask("POST", f"{path}/messages", body, headers=headers)
        assert answer.status == 201, answer

    async def lock(self, path: str, timeout: int = 5) -> HttpAnswer:
        """Lock the next message."""
        answer = await self.ask("POST", f"{path}/messages/head?timeout={timeout}")
        assert answer.status == 201, answer
        return answer

    def locks(self, queue: str = "orders") -> int:
        entity = self.namespace.queue(queue)
        assert entity is not None
        return len(entity.main.locks)


class HttpAnswer:
    """Status, headers and body of an answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<HttpAnswer {self.status} {self.headers} {self.body[:300]!r}>"

    @property
    def broker(self) -> dict[str, Any]:
        """The broker properties."""
        values: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return values


def plain_request(
    world: HttpWorld, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Make a request with the client of the standard library, in the calling thread."""
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=20 * slowness())
    try:
        connection.request(method, f"/{path}", body, {"Authorization": world.token(), **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@asynccontextmanager
async def http_world(options: NamespaceOptions = OPTIONS, **settings: Any) -> AsyncIterator[HttpWorld]:
    async with Broker([options], **{"data": None, **settings}) as broker, AsyncExitStack() as stack:
        world = HttpWorld(broker, stack)
        world.session = await stack.enter_async_context(aiohttp.ClientSession())
        yield world
        world.faults.clear()
