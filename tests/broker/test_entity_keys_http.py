"""Keys of an entity over HTTP: what the JavaScript SDK signs, a token for the whole URL of the request."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Iterator

import pytest

from pairbus.auth.sas import LISTEN, MANAGE, SEND, sign
from pairbus.broker.admin.xml import ATOM, SERVICE
from pairbus.broker.description import AuthorizationRule, QueueDescription, TopicDescription
from tests.broker.admin_world import ROOT_KEY, AdminServer, serve

FAR_S = 4_000_000_000
ENTRY = f'<entry xmlns="{ATOM}"><content><SubscriptionDescription xmlns="{SERVICE}"/></content></entry>'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    rules = (
        AuthorizationRule("owner", (MANAGE, SEND, LISTEN), "owner-key", "second"),
        AuthorizationRule("reader", (LISTEN,), "reader-key", "second"),
    )
    with serve(tmp_path_factory.mktemp("keys")) as running:

        async def create() -> None:
            await running.namespace.create(QueueDescription("orders", authorization=rules))
            await running.namespace.create(QueueDescription("orders/0"))
            await running.namespace.create(TopicDescription("events", authorization=rules))

        asyncio.run_coroutine_threadsafe(create(), running.loop).result(10)
        yield running


def status(server: AdminServer, method: str, path: str, name: str, key: str, body: str | None = None) -> int:
    token = sign(f"https://localhost:{server.port}/{path}?api-version=2021-05", name, key, FAR_S)
    connection = http.client.HTTPConnection("localhost", server.port, timeout=10)
    try:
        connection.request(method, f"/{path}?api-version=2021-05", body, {"Authorization": token})
        return connection.getresponse().status
    finally:
        connection.close()


def test_key_with_manage_administers_its_entity(server: AdminServer) -> None:
    """A topic's key its subscriptions and rules too."""
    assert status(server, "GET", "orders", "owner", "owner-key") == 200
    assert status(server, "PUT", "events/Subscriptions/s", "owner", "second", ENTRY) == 201
    assert status(server, "GET", "events/Subscriptions/s/Rules", "owner", "owner-key") == 200
    assert status(server, "DELETE", "events/Subscriptions/s", "owner", "owner-key") == 200


@pytest.mark.parametrize(
    ("path", "name", "key"),
    [
        ("orders", "reader", "reader-key"),
        ("orders", "owner", "wrong"),
        ("orders/0", "owner", "owner-key"),
        ("$Resources/queues", "owner", "owner-key"),
        ("$namespaceinfo", "owner", "owner-key"),
        ("absent", "owner", "owner-key"),
    ],
)
def test_key_opens_nothing_else(server: AdminServer, path: str, name: str, key: str) -> None:
    """Without Manage a key administers nothing, and it never opens another entity or the namespace."""
    assert status(server, "GET", path, name, key) == 401
    expected = 404 if path == "absent" else 200
    assert status(server, "GET", path, ROOT_KEY.name, ROOT_KEY.key) == expected
