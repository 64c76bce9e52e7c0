"""The broker is killed in the middle of everything that a namespace has: topics that detect duplicates, rules that
change, actions, sessions and their states, forwarding over several hops, dead letters that go on.

`PAIRBUS_KILL_ROUNDS` makes it longer, `PAIRBUS_SEED` repeats the choices of a run (see `test_kill`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.transport import connect
from tests.brokers import BrokerProcess
from tests.crash.test_kill import kill_while_it_starts
from tests.crash.whole_load import WholeLoad
from tests.crash.whole_oracle import Oracle
from tests.crash.whole_world import make_entities

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "6"))
SEED = os.environ.get("PAIRBUS_SEED") or str(time.time_ns())
MOVING = {"news: scheduled", "news/relay", "news/brief", "arrivals/end", "hop", "graves", "counter"}
STILL_S = 30.0  # scheduled, expiring and forwarded messages are where they belong in two seconds


async def test_killed_namespace_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Every message that the topic accepted is once in every subscription that selects it, with the changes of its
    rule; a forwarded one is in its source or in its destination; acknowledged states and rules are there."""
    print(f"PAIRBUS_SEED={SEED}")
    source = random.Random(SEED)
    load = WholeLoad(Oracle(), source)
    broker = BrokerProcess(tmp_path / "data", namespaces=["contoso"])
    broker.start()
    try:
        with broker.admin() as admin:
            make_entities(admin)
        for _ in range(ROUNDS):
            work = asyncio.create_task(load.round(await load.connect(broker.connection_string())))
            await asyncio.wait([work], timeout=source.uniform(0.4, 1.2))
            assert not work.done(), f"the clients ended before the broker: {work}"
            await asyncio.to_thread(broker.kill)
            async with asyncio.timeout(20):
                await work
            if source.random() < 0.2:
                await asyncio.to_thread(kill_while_it_starts, broker, source.uniform(0.1, 0.6))
            await asyncio.to_thread(broker.start)
        with broker.admin() as admin:
            await asyncio.to_thread(until_still, admin)
        async with await connect(broker.connection_string()) as connection:
            await load.drain(connection)
        told = load.oracle.messages.values()
        accepted, copies = sum(each.is_accepted for each in told), sum(sum(each.seen.values()) for each in told)
        print(f"{ROUNDS} kills, {len(told)} messages sent, {accepted} accepted, {copies} deliveries of copies,")
        print(f"{load.passed_on} dead letters passed on, {load.states_set} states, {load.rule_changes} rule changes")
        assert load.oracle.faults() == []
        assert min(accepted, load.passed_on, load.states_set, load.rule_changes) > ROUNDS, "hardly anything happened"
        with broker.admin() as admin:
            assert left_in(admin) == {}, "something was left behind, a payload perhaps"
        assert broker.stderr == "", "no damage and no error was reported"
        assert broker.terminate() == 0
    finally:
        broker.kill()


def until_still(admin: ServiceBusAdministrationClient) -> None:
    """Wait until nothing is scheduled, about to expire, or on its way from one entity to the next.

    Entities are looked at one after another, so a message that moves can be missed: not in every look of three.
    """
    deadline, looks = time.monotonic() + STILL_S, 0
    while looks < 3:
        moving = MOVING & left_in(admin).keys()
        looks = 0 if moving else looks + 1
        assert time.monotonic() < deadline, f"still moving: {moving}"
        time.sleep(0.1)


def left_in(admin: ServiceBusAdministrationClient) -> dict[str, int]:
    """Return the number of messages of each entity, and the sizes of topics; without those that have nothing."""
    left = {each.name: each.total_message_count or 0 for each in admin.list_queues_runtime_properties()}
    for topic in admin.list_topics_runtime_properties():
        left[f"{topic.name}: size"] = topic.size_in_bytes or 0
        left[f"{topic.name}: scheduled"] = topic.scheduled_message_count or 0
        for each in admin.list_subscriptions_runtime_properties(topic.name):
            left[f"{topic.name}/{each.name}"] = each.total_message_count or 0
    return {name: count for name, count in left.items() if count}
