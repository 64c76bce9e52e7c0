"""Pairing time with the genuine administration client: on the real broker, and on one whose answers a test plans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusAuthorizationError, ServiceBusConnectionError, ServiceBusError

from pairbus.client.errors import PairingUnauthorized, SecondaryUnreachable, SendAvailabilityBacklogError
from pairbus.client.provisioning import find_or_create, provision
from pairbus.client.sides import Side
from pairbus.errors import EntityExists, StoreFull
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions as Options
from pairbus.pairing.provision import Provisioned
from tests.broker.admin_world import SEND_KEY, AdminServer, serve
from tests.brokers import BrokerProcess
from tests.sdk_edge.conftest import Strings


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("secondary")) as server:
        yield server


@pytest.fixture
def server(running: AdminServer) -> AdminServer:
    """Empty, and willing."""
    running.namespace.forget_tests()
    return running


class Waits:
    """Pauses that are only recorded; a function may be called in each of them."""

    def __init__(self, *then: Any) -> None:
        self.seconds: list[float] = []
        self._then = list(then)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if self._then:
            self._then.pop(0)()


@asynccontextmanager
async def administered(is_aio: bool, secondary: str) -> AsyncIterator[Side]:
    """Yield a side whose administration client is its own, or one of the sync SDK that a user gave."""
    side = Side.from_connection_string(secondary)
    if is_aio:
        yield side
        return
    admin: Any = await asyncio.to_thread(side.new_admin)
    side.given_admin = admin
    with admin:
        yield side


async def paired(is_aio: bool, secondary: str, count: int, waits: Waits | None = None) -> Provisioned:
    async with administered(is_aio, secondary) as side:
        return await find_or_create(side, "contoso", count, waits or Waits())


async def test_queues_are_created_as_the_specification_says(is_aio: bool, broker: BrokerProcess) -> None:
    """Read back from the real broker; the second time everything is found."""
    name = f"primary-{is_aio}".lower()
    for _ in range(2):
        async with administered(is_aio, broker.connection_string("fabrikam")) as side:
            paths = await provision(side, name, Options(backlog_queue_count=2))
        assert paths == [f"{name}/x-servicebus-transfer/{index}" for index in range(2)]
    with broker.admin("fabrikam") as admin:
        queue = admin.get_queue(paths[1])
    assert queue.max_size_in_megabytes == 5120 and queue.max_delivery_count == 2147483647
    assert queue.lock_duration == timedelta(minutes=1)
    assert queue.dead_lettering_on_message_expiration and queue.enable_batched_operations
    for never in (queue.default_message_time_to_live, queue.auto_delete_on_idle):
        assert isinstance(never, timedelta) and never >= timedelta(days=10_675_199)
    assert not queue.requires_session and not queue.requires_duplicate_detection


async def test_without_the_manage_claim_pairing_fails_and_names_it(is_aio: bool, server: AdminServer) -> None:
    """The error comes at once, and is an authorization error of the SDK."""
    waits = Waits()
    with pytest.raises(PairingUnauthorized, match="Manage claim") as caught:
        await paired(is_aio, server.connection_string(SEND_KEY, "127.0.0.1"), 2, waits)
    assert isinstance(caught.value, ServiceBusAuthorizationError) and waits.seconds == []


async def test_a_secondary_that_does_not_answer_is_unreachable(strings: Strings, free_port: int) -> None:
    """Quickly, and a client that may start without it does."""
    with pytest.raises(SecondaryUnreachable, match="require_secondary=False") as caught:
        await paired(True, strings.at(free_port), 2)
    assert isinstance(caught.value, ServiceBusConnectionError)


async def test_losing_a_creation_race_is_success(is_aio: bool, server: AdminServer) -> None:
    """Two clients that start together create the same queues."""
    server.namespace.planned_error = EntityExists("somebody was faster")
    result = await paired(is_aio, server.connection_string(host="127.0.0.1"), 2)
    assert len(result.paths) == 2 and result.left_out == ()


async def test_a_creation_that_fails_for_a_while_succeeds_later(is_aio: bool, server: AdminServer) -> None:
    """30 seconds later."""

    def heal() -> None:
        server.namespace.planned_error = None

    server.namespace.planned_error, waits = StoreFull("the disk is full"), Waits(heal)
    result = await paired(is_aio, server.connection_string(host="127.0.0.1"), 2, waits)
    assert len(result.created) == 2 and waits.seconds == [30]


async def test_with_no_backlog_queue_at_all_pairing_fails(is_aio: bool, server: AdminServer) -> None:
    """After three attempts; the text has the secondary's own words."""
    server.namespace.planned_error, waits = StoreFull("the disk is full"), Waits()
    with pytest.raises(SendAvailabilityBacklogError) as caught:
        await paired(is_aio, server.connection_string(host="127.0.0.1"), 1, waits)
    assert isinstance(caught.value, ServiceBusError) and waits.seconds == [30, 30]
    assert f"127.0.0.1:{server.port} has no backlog queue" in str(caught.value)


async def test_the_least_rights_ask_nobody(strings: Strings, free_port: int) -> None:
    """The port is closed, and the call does not try it."""
    side, options = Side.from_connection_string(strings.at(free_port)), Options(create_backlog_queues=False)
    paths = await provision(side, "contoso", options)
    assert len(paths) == 10 and paths[9] == "contoso/x-servicebus-transfer/9"


async def test_messages_in_a_queue_that_nobody_reads_are_warned_of(
    server: AdminServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one warning for each such queue."""
    for index in (0, 7):
        server.namespace.add(f"contoso/x-servicebus-transfer/{index}")
    key = "contoso/x-servicebus-transfer/7"
    server.namespace.counts[key] = {"active": 4}
    result = await paired(True, server.connection_string(host="127.0.0.1"), 1)
    assert result.paths == ("contoso/x-servicebus-transfer/0",)
    assert "contoso/x-servicebus-transfer/7 holds 4 messages" in caplog.text


async def test_an_administration_client_that_was_given_stays_open(broker: BrokerProcess) -> None:
    """The user who gave the client closes it."""
    with broker.admin("fabrikam") as admin:
        side = Side.from_connection_string(broker.connection_string("fabrikam"))
        side.given_admin = admin
        assert await provision(side, "given", Options(backlog_queue_count=1)) == ["given/x-servicebus-transfer/0"]
        assert side._ca_file is None and admin.get_queue("given/x-servicebus-transfer/0")
