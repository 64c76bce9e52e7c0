"""Pairing on two broker processes: what is made, how it is named, what is found and left as it is, whose keys do."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.core.credentials import AzureNamedKeyCredential

import pairbus
import pairbus.aio
from pairbus.client.errors import SendAvailabilityBacklogError
from pairbus.client.sides import Side
from pairbus.pairing.events import Moved, Paired
from pairbus.pairing.failover import State
from tests.client.messages import id_of
from tests.client.world import LISTEN_ONLY, SEND_ONLY, Client, World, message, until
from tests.sdk.flavours import Flavour, in_thread

pytestmark = pytest.mark.slow
NEVER = timedelta(days=3650)  # the SDK returns a longer time for "never"


def paired_kind(flavour: Flavour) -> Any:
    return pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient


def queues_of(world: World, name: str | None = None) -> list[str]:
    """List the backlog queues that the secondary has for one primary."""
    prefix = f"{name or world.primary_name}/".lower()
    found = world.namespaces.admin("secondary").list_queues()
    return sorted(queue.name for queue in found if queue.name.lower().startswith(prefix))


# ── options ──


async def test_the_five_positional_options_of_the_original_pair_two_namespaces(world: World, flavour: Flavour) -> None:
    """Namespace manager, messaging factory, count, interval, syphon: a program of old needs no keyword."""
    module: Any = azure.servicebus.aio if flavour == "aio" else azure.servicebus
    queue = world.namespaces.make_queue()
    primary, secondary = (
        module.ServiceBusClient.from_connection_string(world.connection_string(side), retry_total=0)
        for side in ("primary", "secondary")
    )
    side = Side.from_connection_string(world.connection_string("secondary"))
    manager: Any = await in_thread(side.new_admin, aio=flavour == "aio")
    options = pairbus.SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, timedelta(minutes=1), True)
    assert isinstance(options, pairbus.PairedNamespaceOptions) and options.failover_interval == 60
    options.primary_name = world.primary_name
    client = Client(flavour, paired_kind(flavour)(primary, options), [])
    await client.pair()
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    await until(lambda: world.count(queue) == 1, "the syphon brings it home")
    await client.close()
    await client.call(manager.close)
    assert queues_of(world) == world.backlog[:1]


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("failover_interval", 3601, "0 … 3600 s"), ("backlog_queue_count", 0, "1 … 10000 queues")],
)
async def test_an_option_out_of_range_is_refused_before_anything_is_made(
    world: World, flavour: Flavour, option: str, value: int, told: str
) -> None:
    """The error has its name, the value and the range."""
    given: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=f"{option} is {value}; it must be {told}"):
        world.new_client(flavour, **given)
    assert queues_of(world) == []


# ── names ──


async def test_without_a_name_the_address_of_the_primary_names_its_backlog_queues(
    world: World, flavour: Flavour
) -> None:
    """Two namespaces on one machine differ in their ports; `{primary name}/x-servicebus-transfer/{index}`."""
    world.nemesis()  # the proxy has a port of its own, so the primary has another name
    kind, strings = paired_kind(flavour), [world.connection_string(side) for side in ("primary", "secondary")]
    client = Client(flavour, kind.from_connection_strings(*strings, backlog_queue_count=3), [])
    await client.pair()
    await client.close()
    name = f"127-0-0-1-{world.nemesis().port}"
    made = [f"{name}/x-servicebus-transfer/{index}" for index in range(3)]
    world.namespaces.backlog_made(made)
    assert queues_of(world, name) == made


async def test_a_backlog_queue_in_another_case_is_the_same_queue(world: World, flavour: Flavour) -> None:
    """Paths compare without case: nothing is created beside it, and it takes messages."""
    queue = world.namespaces.make_queue()
    shouted = world.namespaces.make_queue("secondary", world.backlog[0].upper())
    client = await world.client(flavour, backlog_queue_count=1)
    assert queues_of(world) == [shouted]
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    assert world.count(shouted, "secondary") == 1


# ── queues ──


async def test_backlog_queues_have_the_settings_of_the_specification(world: World, flavour: Flavour) -> None:
    """The queues lose no message by age, by idleness, or by being received too often."""
    await world.client(flavour)
    for path in world.backlog:
        queue = world.namespaces.admin("secondary").get_queue(path)
        assert (queue.max_size_in_megabytes, queue.max_delivery_count) == (5120, 2147483647)
        assert queue.lock_duration == timedelta(minutes=1)
        assert queue.dead_lettering_on_message_expiration and queue.enable_batched_operations
        for limit in (queue.default_message_time_to_live, queue.auto_delete_on_idle):
            assert isinstance(limit, timedelta) and limit > NEVER
        assert not (queue.requires_session or queue.requires_duplicate_detection)


async def test_a_queue_that_exists_is_used_as_it_is(world: World, flavour: Flavour) -> None:
    """A user may have had a reason for another description; it is neither changed nor refused."""
    queue, admin = world.namespaces.make_queue(), world.namespaces.admin("secondary")
    there = world.namespaces.make_queue(
        "secondary",
        world.backlog[0],
        lock_duration=timedelta(seconds=20),
        max_delivery_count=7,
        max_size_in_megabytes=1024,
        dead_lettering_on_message_expiration=False,
    )
    before = described(admin.get_queue(there))
    client = await world.client(flavour, backlog_queue_count=1)
    assert client.client.options.backlog_queue_count == 1
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    assert world.count(there, "secondary") == 1
    assert described(admin.get_queue(there)) == before


def described(queue: Any) -> dict[str, Any]:
    """Return the properties of a queue that can be chosen."""
    return {name: value for name, value in queue.items() if not name.endswith("_utc")}


async def test_extra_queue_with_messages_is_reported_and_left_alone(
    world: World, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages in an extra queue would wait there for a syphon that is not running."""
    queue = world.namespaces.make_queue()
    extra = [f"{world.primary_name}/x-servicebus-transfer/{index}" for index in (5, 7)]
    for path in extra:
        world.namespaces.make_queue("secondary", path)
    with azure.servicebus.ServiceBusClient.from_connection_string(world.connection_string("secondary")) as plain:
        plain.get_queue_sender(extra[1]).send_messages(message())
    with caplog.at_level(logging.WARNING, logger="pairbus"):
        client = await world.client(flavour)
    warnings = [record.getMessage() for record in caplog.records if "x-servicebus-transfer" in record.getMessage()]
    assert len(warnings) == 1 and extra[1] in warnings[0] and extra[0] not in warnings[0]
    client.client.force_failover(queue)
    for _ in range(4):
        await client.sender(queue).send(message())
    assert [world.count(path, "secondary") for path in extra] == [0, 1]
    assert world.in_backlog() == 4


async def test_clients_that_pair_at_the_same_time_all_succeed(world: World) -> None:
    """A client that loses the race to create a queue has found that queue."""
    flavours: list[Flavour] = ["sync", "aio", "sync", "aio", "sync", "aio"]
    clients = [world.new_client(flavour) for flavour in flavours]
    await asyncio.gather(*(client.pair() for client in clients))
    world.namespaces.backlog_made(world.backlog)
    assert [client.client.options.backlog_queue_count for client in clients] == [2] * 6
    assert [len(client.told(Paired)) for client in clients] == [1] * 6
    assert queues_of(world) == world.backlog


@contextmanager
def full_disk(world: World) -> Iterator[None]:
    """Fill the secondary's disk: no file of its process may grow."""
    pid = world.namespaces.process("secondary").pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_pairing_fails_when_three_tries_create_no_queue(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secondary that cannot store anything, asked again after a moment instead of thirty seconds."""
    monkeypatch.setattr("pairbus.pairing.provision.PAUSE_S", 0.3)
    client = world.new_client(flavour, backlog_queue_count=1)
    with full_disk(world), pytest.raises(SendAvailabilityBacklogError, match="no backlog queue"):
        began = time.monotonic()
        await client.pair()
    assert time.monotonic() - began >= 0.6, "two pauses between three tries"
    assert client.client.options.backlog_queue_count == 0
    assert queues_of(world) == []
    await client.pair()
    assert client.client.options.backlog_queue_count == 1
    assert queues_of(world) == world.backlog[:1]
    world.namespaces.backlog_made(world.backlog[:1])


async def test_a_creation_that_fails_for_a_while_succeeds_later(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call of `pair` tries again; the disk has room again after the first attempt."""
    monkeypatch.setattr("pairbus.pairing.provision.PAUSE_S", 0.5)
    client = world.new_client(flavour, backlog_queue_count=1)  # with another one, it would not be waited for
    outcomes: list[str] = []
    client.client._state.meters.pairing = lambda entity, count, outcome: outcomes.append(outcome)
    with full_disk(world):
        pairing = asyncio.create_task(client.pair())
        await until(lambda: len(outcomes) >= 2, "the list, and the first creation")
    await pairing
    assert outcomes[0] == "ok" != outcomes[1] and outcomes[-1] == "ok"
    assert client.client.options.backlog_queue_count == 1
    assert queues_of(world) == world.backlog[:1]
    world.namespaces.backlog_made(world.backlog[:1])


# ── credentials and rights ──


async def test_a_credential_makes_everything(world: World, flavour: Flavour) -> None:
    """Hosts and a credential: queues are created, an outage is diverted, pings and the syphon find their way home."""
    queue = world.namespaces.make_queue()
    world.nemesis(), world.nemesis("secondary")
    client = by_credential(world, flavour)
    await client.pair()
    world.namespaces.backlog_made(world.backlog)
    assert queues_of(world) == world.backlog
    sender = client.sender(queue)
    await sender.send(message(message_id="home"))
    world.nemesis().refuse()
    await sender.send(message(message_id="away"))
    assert client.diverted_ids == ["away"]
    world.nemesis().heal()
    await client.until_state(queue, State.HEALTHY, 6.0)
    syphon = by_credential(world, flavour, enable_syphon=True)
    await syphon.pair()
    await until(lambda: world.count(queue) == 2, "the syphon brings it home")
    assert [id_of(payload) for payload in await world.take(queue, 2)] == ["home", "away"]
    await client.close()
    await syphon.close()


def by_credential(world: World, flavour: Flavour, **options: Any) -> Client:
    """Make a client as from connection strings, but from hosts and one credential for both."""
    parts = dict(part.split("=", 1) for part in world.connection_string("primary").rstrip(";").split(";"))
    credential = AzureNamedKeyCredential(parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    events: list[Any] = []
    client = paired_kind(flavour).from_credential(
        f"127.0.0.1:{world.nemesis().port}",
        f"127.0.0.1:{world.nemesis('secondary').port}",
        credential,
        primary_kwargs={"use_tls": False},
        secondary_kwargs={"use_tls": False},
        primary_name=world.primary_name,
        backlog_queue_count=2,
        failover_interval=0,
        ping_primary_interval=1,
        ping="message",  # the brokers are strict and do not say that they hide pings
        on_event=events.append,
        **options,
    )
    return Client(flavour, client, events)


async def test_keywords_of_the_sdks_client_are_passed_on_to_their_side(world: World, flavour: Flavour) -> None:
    """Each side has its own keywords: here the user agent of the primary and the retries of the secondary."""
    client = world.new_client(
        flavour, primary_kwargs={"user_agent": "orders/1.0"}, secondary_kwargs={"retry_total": 5}
    ).client
    assert client._primary._config.user_agent == "orders/1.0"
    primary, secondary = (side.client for side in client._state.sides.values())
    assert (primary._config.retry_total, secondary._config.retry_total) == (3, 5)
    assert secondary._config.user_agent is None


async def test_send_at_home_and_listen_away_are_enough_for_the_syphon(world: World, flavour: Flavour) -> None:
    """Least rights: one key may only send to the primary, the other only receive from the secondary."""
    queue = world.namespaces.make_queue()
    sender_side = await world.client(flavour)
    sender_side.client.force_failover(queue)
    await sender_side.sender(queue).send(message(message_id="travels"))
    ends = [world.namespaces.connection_string(side, key) for side, key in RIGHTS]
    syphon = world.new_client(
        flavour, primary=ends[0], secondary=ends[1], create_backlog_queues=False, enable_syphon=True
    )
    await syphon.pair()
    await until(lambda: world.count(queue) == 1, "the syphon brings it home")
    assert (await syphon.until_event(Moved, 5.0)).message_ids == ("travels",)
    assert world.in_backlog() == 0


RIGHTS: Any = [("primary", SEND_ONLY), ("secondary", LISTEN_ONLY)]
