"""The return of an entity: pings, probes and trials; and which queue of the backlog is used meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.amqp.message import Message, Properties
from pairbus.client.errors import SendAvailabilityBacklogError
from pairbus.ledger import read
from pairbus.pairing.events import BacklogQueueBack, BacklogQueueFailed, FailedOver, PingRefused, PingSent, Recovered
from pairbus.pairing.failover import State
from pairbus.pairing.policy import REACTIONS, FailurePolicy, Kind, Reaction
from tests.client.world import Client, Stage, message, until
from tests.limits import slowness
from tests.scripted import Accept, Reject
from tests.sdk.flavours import Flavour, in_thread

pytestmark = pytest.mark.slow
PING = "application/vnd.ms-servicebus-ping"


async def lost(stage: Stage, flavour: Flavour, **options: Any) -> Client:
    """A client whose entity `orders` is failed over, and a primary that still refuses it."""
    client = stage.client(flavour, **options)
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    await client.sender("orders").send(message("first"))
    assert client.state("orders") is State.FAILED_OVER
    return client


# ── pings ──


async def test_a_ping_is_an_empty_message_that_nobody_misses(stage: Stage, flavour: Flavour) -> None:
    """Content type, a second to live, a session for entities that need one; refused until the primary is back."""
    client = await lost(stage, flavour)
    await until(lambda: len([each for each in stage.primary.received if each.is_ping]) >= 1, "the first ping")
    stage.primary.heal()
    await client.until_state("orders", State.HEALTHY, 4.0)
    ping = Message.decode(next(each for each in stage.primary.received if each.is_ping).payload)
    assert ping.properties is not None and ping.header is not None
    assert (ping.properties.content_type, ping.header.ttl, ping.body) == (PING, 1000, b"")
    assert ping.properties.group_id
    pings = client.told(PingSent)
    assert [event.accepted for event in pings][-1:] == [True]
    assert [event.by for event in client.told(Recovered)] == ["a ping"]
    await asyncio.sleep(1.2)
    assert client.told(PingSent) == pings, "pings stop"


async def test_several_pings_in_a_row_can_be_required(stage: Stage, flavour: Flavour) -> None:
    """Against an entity that flaps."""
    client = await lost(stage, flavour, healthy_pings_required=2)
    stage.primary.heal()
    await client.until_state("orders", State.HEALTHY, 6.0)
    assert [event.accepted for event in client.told(PingSent)] == [True, True]


@pytest.mark.parametrize("ping", ["auto", "attach"])
async def test_probe_earns_one_trial_send_where_pings_are_visible(stage: Stage, flavour: Flavour, ping: str) -> None:
    """A waiting receiver would get a ping message; opening a link proves too little by itself."""
    stage.primary.hides_pings = False
    client = await lost(stage, flavour, ping=ping)
    sender = client.sender("orders")
    await until(lambda: any(event.accepted for event in client.told(PingSent)), "the link opens")
    assert client.state("orders") is State.FAILED_OVER
    await sender.send(message("trial that fails"))
    assert client.state("orders") is State.FAILED_OVER
    assert len(stage.in_backlog()) == 2, "the same call stored the message in the backlog"
    stage.primary.heal()
    seen = len(client.told(PingSent))
    await until(lambda: len(client.told(PingSent)) > seen, "another probe")
    await sender.send(message("trial"))
    assert client.state("orders") is State.HEALTHY
    assert [event.by for event in client.told(Recovered)] == ["a trial send"]
    assert not any(each.is_ping for each in stage.primary.received)
    assert len(stage.primary.stored("orders")) == 1


async def test_ping_messages_can_be_forced(stage: Stage, flavour: Flavour) -> None:
    stage.primary.hides_pings = False
    client = await lost(stage, flavour, ping="message")
    stage.primary.heal()
    await client.until_state("orders", State.HEALTHY, 4.0)
    assert any(each.is_ping for each in stage.primary.received)


@pytest.mark.parametrize(
    ("ping", "hides", "is_metered"),
    [("attach", True, False), ("auto", False, False), ("auto", True, True), ("message", False, True)],
)
async def test_failed_ping_is_metered_only_when_it_is_a_message(
    stage: Stage, flavour: Flavour, tmp_path: Path, ping: str, hides: bool, is_metered: bool
) -> None:
    """Opening a link is no operation, with any result; only a ping that is a message is paid for."""
    stage.primary.hides_pings = hides
    client = await lost(stage, flavour, ping=ping, ledger=tmp_path)
    stage.primary.on("attach", Reject("amqp:internal-error"), path="orders")
    await until(lambda: client.told(PingSent), "the first ping")
    await client.close()
    assert not client.told(PingSent)[0].accepted
    metered = [row.outcome for row in read(tmp_path) if row.kind == "ping"]
    assert metered[:1] == (["internal"] if is_metered else [])


@pytest.mark.parametrize("condition", ["amqp:not-found", "amqp:unauthorized-access"])
async def test_a_refused_ping_is_told_once_and_the_entity_stays_away(
    stage: Stage, flavour: Flavour, condition: str
) -> None:
    """A user deleted the queue or changed a key in the outage: waiting does not heal it, but a person can."""
    client = await lost(stage, flavour)
    stage.primary.on("attach", Reject(condition), path="orders")
    await until(lambda: len(client.told(PingSent)) >= 3, "three pings")
    assert not any(event.accepted for event in client.told(PingSent))
    assert len(client.told(PingRefused)) == 1
    assert client.state("orders") is State.FAILED_OVER
    await client.sender("orders").send(message())
    assert len(stage.in_backlog()) == 2
    stage.primary.heal()
    await client.until_state("orders", State.HEALTHY, 4.0)


async def test_receivers_never_hand_out_a_ping(stage: Stage, flavour: Flavour) -> None:
    """Pings of other clients arrive on a namespace that does not hide them."""
    stage.primary.hides_pings = False
    ping = Message(properties=Properties(message_id="p", content_type=PING), data=[b""]).encode()
    real = Message(properties=Properties(message_id="real"), data=[b"x"]).encode()
    stage.primary.put("orders", ping, real, ping)
    client = stage.client(flavour)
    receiver = client.client.get_queue_receiver("orders")
    if flavour == "aio":
        async with receiver:
            found = await receiver.receive_messages(5, max_wait_time=2)
    else:

        def use() -> Any:
            with receiver:
                return receiver.receive_messages(5, max_wait_time=2)

        found = await in_thread(use)
    assert [one.message_id for one in found] == ["real"]


async def test_topics_are_entities_like_queues(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour)
    sender = client.topic_sender("news")
    await sender.send(message("home"))
    stage.primary.on("transfer", Reject("amqp:internal-error"), path="news")
    await sender.send(message("away"))
    assert len(stage.primary.stored("news")) == len(stage.in_backlog()) == 1
    assert b"news" in stage.in_backlog()[0]
    stage.primary.heal()
    await client.until_state("news", State.HEALTHY, 4.0)
    await sender.send(message("home again"))
    assert len(stage.primary.stored("news")) == 2


# ── the policy ──


async def test_endless_throttling_counts_when_an_operator_says_so(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`busy_counts_after`, with a short wait instead of the ten seconds."""
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.3)
    client = stage.client(flavour, busy_counts_after=10)
    client.client.options.busy_counts_after = 1.0
    stage.primary.on("transfer", Reject("com.microsoft:server-busy"))
    took_s = await client.sender("orders").send(message())
    assert 1.0 <= took_s < 3.0 * slowness()
    assert len(stage.in_backlog()) == 1
    assert client.state("orders") is State.FAILED_OVER


async def test_the_failure_policy_can_be_replaced(stage: Stage, flavour: Flavour) -> None:
    """A user may change rows of the table: here a disabled entity is an outage."""
    policy = FailurePolicy({**REACTIONS, Kind.DISABLED: Reaction.COUNT, Kind.INTERNAL: Reaction.RAISE})
    client = stage.client(flavour, policy=policy)
    sender = client.sender("orders")
    rule = stage.primary.on("transfer", Reject("amqp:internal-error"))
    assert isinstance(await sender.error(message()), ServiceBusError)
    assert rule.hits == 1 and client.told(FailedOver) == []
    stage.primary.heal()
    stage.primary.on("transfer", Reject("com.microsoft:entity-disabled"))
    await sender.send(message())
    assert len(stage.in_backlog()) == 1


# ── the rotation ──


async def test_a_failing_backlog_queue_is_out_for_all_senders_and_comes_back(stage: Stage, flavour: Flavour) -> None:
    """The original never tried it again."""
    client = stage.client(flavour, backlog_retry_interval=6)
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    sender = client.sender("orders")
    await sender.send(message())
    [kept] = [queue for queue in stage.BACKLOG if stage.secondary.stored(queue)]
    [other] = [queue for queue in stage.BACKLOG if queue != kept]
    stage.secondary.on("transfer", Reject("amqp:internal-error"), path=kept)
    began = time.monotonic()
    await sender.send(message())
    for _ in range(3):
        await client.sender("orders").send(message())
    assert len(stage.secondary.stored(other)) == 4 and len(stage.secondary.stored(kept)) == 1
    assert [event.queue for event in client.told(BacklogQueueFailed)] == [kept]
    stage.secondary.heal()
    while not client.told(BacklogQueueBack):
        await sender.send(message())
        assert time.monotonic() - began < 10.0
        await asyncio.sleep(0.05)
    assert time.monotonic() - began >= 6.0


async def test_a_sender_keeps_its_backlog_queue(stage: Stage, flavour: Flavour) -> None:
    """Picked at random, once: clients that do not know each other spread over the queues."""
    client = await lost(stage, flavour)
    sender = client.sender("orders")
    for _ in range(10):
        await sender.send(message())
    assert sorted(len(stage.secondary.stored(queue)) for queue in stage.BACKLOG) in ([1, 10], [0, 11])


async def test_a_busy_backlog_queue_is_waited_for_and_stays_in_rotation(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting rule holds everywhere."""
    monkeypatch.setattr("pairbus.pairing.plan.BUSY_WAIT_S", 0.3)
    client = await lost(stage, flavour)
    stage.secondary.on("transfer", Reject("com.microsoft:server-busy"), times=2)
    await client.sender("orders").send(message())
    assert client.told(BacklogQueueFailed) == []
    assert len(stage.in_backlog()) == 2


async def test_with_no_queue_left_the_error_says_where_the_message_is(stage: Stage, flavour: Flavour) -> None:
    """The error also says when an attempt may have stored the message in the primary."""
    client = await lost(stage, flavour)
    stage.secondary.on("transfer", Reject("amqp:resource-limit-exceeded"))
    error = await client.sender("orders").error(message())
    assert isinstance(error, SendAvailabilityBacklogError) and isinstance(error, ServiceBusError)
    assert "stored in neither namespace. The caller still owns it" in str(error)
    assert {event.queue for event in client.told(BacklogQueueFailed)} == set(stage.BACKLOG)
    before = len(stage.secondary.received)
    assert isinstance(await client.sender("orders").error(message()), SendAvailabilityBacklogError)
    assert len(stage.secondary.received) == before, "with no backlog queue in rotation none is tried"


async def test_a_message_refused_by_a_backlog_queue_takes_no_queue_out(stage: Stage, flavour: Flavour) -> None:
    """Every queue would refuse such a message, until none is left for the good ones."""
    client = await lost(stage, flavour)
    stage.secondary.on("transfer", Reject("com.microsoft:argument-error"), times=1)
    stage.secondary.on("transfer", Accept())
    assert isinstance(await client.sender("orders").error(message()), ServiceBusError)
    assert client.told(BacklogQueueFailed) == []
    await client.sender("orders").send(message())


async def test_entities_that_are_away_share_the_connection_of_a_round(stage: Stage, flavour: Flavour) -> None:
    """A connection for each entity and round would be a flood at the moment at which the primary comes back."""
    client = stage.client(flavour)
    names = [f"q-{number}" for number in range(50)]
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    await asyncio.gather(*(client.sender(name).send(message()) for name in names))
    assert set(client.client.states().values()) == {State.FAILED_OVER}
    began = max(occasion.connection for occasion in stage.primary.steps)
    await until(lambda: len(client.told(PingSent)) >= 2 * len(names), "two rounds of pings")
    stage.primary.heal()
    await until(lambda: set(client.client.states().values()) == {State.HEALTHY}, "the pings are accepted")
    rounds = len(client.told(PingSent)) / len(names)
    connections = max(occasion.connection for occasion in stage.primary.steps) - began
    print(f"{flavour}: {rounds:.1f} rounds of {len(names)} pings on {connections} connections")
    assert connections <= 2 * rounds + 2
