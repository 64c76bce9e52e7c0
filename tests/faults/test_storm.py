"""Every kind of fault at random, one over the other, while clients send and receive."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.broker import QueueDescription
from pairbus.faults import KINDS, FaultKind
from pairbus.transport import TransportError, connect
from tests.faults.conftest import World, until

STORM_S = 4.0
QUEUE = "stormy"


class Traffic:
    """Clients that go on whatever they meet, and what they know."""

    def __init__(self, connection_string: str) -> None:
        self.accepted: set[str] = set()
        self.received: set[str] = set()
        self.failures = 0
        self.is_over = False
        self.is_sent = False
        self._connection_string = connection_string
        self._sent = 0

    async def run(self, work: Any) -> None:
        while not (self.is_over or (self.is_sent and work == self.send)):
            try:
                async with asyncio.timeout(3), await connect(self._connection_string, timeout_s=1) as connection:
                    await work(connection)
            except (TransportError, TimeoutError):
                self.failures += 1
                await asyncio.sleep(0.02)

    async def send(self, connection: Any) -> None:
        sender = await connection.sender(QUEUE, timeout_s=1)
        while not self.is_sent:
            self._sent += 1
            name = str(self._sent)
            message = Message(properties=Properties(message_id=name), data=[b"x"]).encode()
            await sender.send(message, timeout_s=1)
            self.accepted.add(name)
            await asyncio.sleep(0.002)

    async def receive(self, connection: Any) -> None:
        receiver = await connection.receiver(QUEUE, timeout_s=1)
        while not self.is_over:
            messages = await receiver.receive(20, timeout_s=0.3)
            for each in messages:
                properties = Message.decode(each.payload).properties
                assert properties is not None
                self.received.add(str(properties.message_id))
            if messages:
                await receiver.complete(messages, timeout_s=1)


def fields_of(kind: FaultKind, chance: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"for_s": chance.uniform(0.05, 0.5)}
    if kind.takes_chance and chance.random() < 0.4:
        fields["probability"] = chance.uniform(0.1, 1)
    if kind.takes_chance and chance.random() < 0.3:
        fields["count"] = chance.randint(1, 5)
    if kind.directions and chance.random() < 0.6:
        fields["direction"] = chance.choice(kind.directions)
    for argument in kind.arguments:
        fields[argument.name] = 20_000 if argument.name == "bytes_per_s" else chance.uniform(0.05, 0.3)
    return fields


@pytest.mark.parametrize("seed", [1, 2])
async def test_storm_of_faults_loses_nothing_and_heals(world: World, seed: int) -> None:
    """Accepted messages are received, nothing is held when all is cleared, and traffic flows again at once."""
    # Short locks, because connections are cut; and many deliveries, so that no message is dead-lettered for that.
    await world.namespace.create(QueueDescription(QUEUE, lock_duration_ms=1000, max_delivery_count=1000))
    loop, bugs = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: bugs.append(context))
    chance, traffic = random.Random(seed), Traffic(world.connection_string)
    clients = [traffic.send, traffic.send, traffic.receive, traffic.receive]
    tasks = [loop.create_task(traffic.run(work)) for work in clients]
    ends = loop.time() + STORM_S
    while loop.time() < ends:
        kind = chance.choice([each for each in KINDS.values() if "broker" in each.at])
        world.faults.add(kind.name, **fields_of(kind, chance))
        await asyncio.sleep(chance.uniform(0.01, 0.2))
        if chance.random() < 0.2:
            world.faults.clear()
    world.faults.clear()
    assert not world.faults.acts and not world.faults.held.owns_any()
    before = len(traffic.accepted)
    await until(lambda: len(traffic.accepted) > before + 50)
    traffic.is_sent = True
    await until(lambda: traffic.accepted <= traffic.received)
    traffic.is_over = True
    await asyncio.gather(*tasks)
    assert traffic.failures > 0, "no request met a fault"
    assert bugs == []
    await world.check_whole()
