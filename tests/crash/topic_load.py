"""Clients of a topic whose subscriptions filter, change, forward and dead-letter, until the broker dies.

Every message must reach a fixed set of *sinks*, entities from which it is received in the end. What the clients were
told is kept here by message id.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from pairbus.amqp.message import Message
from pairbus.transport import Connection, ConnectionLost, TransportError, connect
from tests.crash.messages import found, make

TOPIC, OUTBOX, GRAVEYARD = "news", "outbox", "graveyard"
ALL, EVEN, CHANGED = (f"{TOPIC}/Subscriptions/{name}" for name in ("all", "even", "changed"))
INBOX, RELAYED = "inbox", "relayed"
SINKS = (ALL, EVEN, CHANGED, INBOX, RELAYED)
BACKLOG_MAX = 600


def make_entities(admin: ServiceBusAdministrationClient) -> None:
    """`changed` dead-letters into the graveyard, `forwarding` and `outbox` pass everything on."""
    for queue in (INBOX, RELAYED, GRAVEYARD):
        admin.create_queue(queue, lock_duration="PT5M", max_delivery_count=2000)
    admin.create_queue(OUTBOX, forward_to=RELAYED)
    admin.create_topic(TOPIC)
    for name in ("all", "even"):
        admin.create_subscription(TOPIC, name, lock_duration="PT5M", max_delivery_count=2000)
    often: dict[str, Any] = {"lock_duration": "PT5M", "max_delivery_count": 2000}
    admin.create_subscription(TOPIC, "changed", forward_dead_lettered_messages_to=GRAVEYARD, **often)
    admin.create_subscription(TOPIC, "forwarding", forward_to=INBOX)
    for name, rule_filter, action in (
        ("even", "number % 2 = 0", None),
        ("changed", "EXISTS(number)", SqlRuleAction("SET seen = number + 1")),
    ):
        admin.delete_rule(TOPIC, name, "$Default")
        admin.create_rule(TOPIC, name, "only", filter=SqlRuleFilter(rule_filter), action=action)


@dataclass
class Told:
    """What is known of one message."""

    sinks: frozenset[str]
    "Where it must come."
    is_accepted: bool = False
    seen: Counter[str] = field(default_factory=Counter)
    "How often it was received in each sink, over all lives."
    completed: set[str] = field(default_factory=set)
    "Sinks in which its completion was acknowledged."
    maybe_completed: set[str] = field(default_factory=set)
    drained: Counter[str] = field(default_factory=Counter)


class TopicLoad:
    """All clients of one test."""

    def __init__(self, source: random.Random) -> None:
        self.messages: dict[str, Told] = {}
        self.strangers: list[str] = []
        self._source = source
        self._last_id = 0
        self._open = 0

    async def round(self, connection_string: str) -> None:
        """Use the broker until every connection is lost."""
        actors: list[Callable[[Connection], Awaitable[None]]] = [
            lambda connection: self._send(connection, TOPIC),
            lambda connection: self._send(connection, TOPIC),
            lambda connection: self._send(connection, OUTBOX),
            *[lambda connection, sink=sink: self._complete(connection, sink) for sink in SINKS],
            self._dead_letter,
        ]
        connections = [await connect(connection_string) for _ in range(3)]
        tasks = [asyncio.create_task(self._act(actor, connections[n % 3])) for n, actor in enumerate(actors)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for connection in connections:
                await connection.close()

    @staticmethod
    async def _act(actor: Callable[[Connection], Awaitable[None]], connection: Connection) -> None:
        with suppress(ConnectionLost):
            await actor(connection)

    def _new(self, entity: str, size: int | None) -> tuple[Told, bytes]:
        self._last_id += 1
        message_id = f"{entity}-{self._last_id}"
        due_ms = time.time_ns() // 1_000_000 + self._source.randint(1, 900) if self._source.random() < 0.1 else 0
        payload = make(message_id, self._source, size=size, due_ms=due_ms)
        number = (Message.decode(payload).application_properties or {})["number"]
        sinks = {RELAYED} if entity == OUTBOX else {ALL, CHANGED, INBOX} | ({EVEN} if number % 2 == 0 else set())
        told = self.messages[message_id] = Told(frozenset(sinks))
        return told, payload

    async def _send(self, connection: Connection, entity: str) -> None:
        """Singles and batches; a batch is published whole or not at all."""
        sender = await connection.sender(entity)
        while True:
            if self._open > BACKLOG_MAX:
                await asyncio.sleep(0.05)
            count = self._source.choice((1, 1, 1, 8))
            made = [self._new(entity, None if count == 1 else self._source.randint(0, 3000)) for _ in range(count)]
            self._open += len(made)
            if len(made) == 1:
                await sender.send(made[0][1])
            else:
                await sender.send_batch([payload for _, payload in made])
            for told, _ in made:
                told.is_accepted = True

    async def _complete(self, connection: Connection, sink: str) -> None:
        receiver = await connection.receiver(sink, credit=20)
        while True:
            for received in await receiver.receive(20, timeout_s=5):
                told = self._see(sink, received.payload)
                if self._source.random() < 0.3:
                    await receiver.abandon([received])
                    continue
                told.maybe_completed.add(sink)
                await receiver.complete([received])
                told.completed.add(sink)
                self._open -= sink in (ALL, RELAYED)
                await asyncio.sleep(0.002)

    async def _dead_letter(self, connection: Connection) -> None:
        """From the subscription into the graveyard, which counts as the same sink."""
        receiver = await connection.receiver(CHANGED, credit=3)
        while True:
            for received in await receiver.receive(3, timeout_s=5):
                self._see(CHANGED, received.payload)
                with suppress(TransportError):
                    await receiver.dead_letter([received], "test", "because")
                await asyncio.sleep(0.01)

    def _see(self, sink: str, payload: bytes) -> Told:
        message = found(payload)
        told = self.messages.get(message.id)
        if told is None:
            self.strangers.append(f"{message.id} in {sink}")
            told = self.messages[message.id] = Told(frozenset())
        told.seen[sink] += 1
        return told

    def drained(self, sink: str, payload: bytes) -> None:
        self._see(sink, payload).drained[sink] += 1

    # ── judging ──

    def faults(self) -> list[str]:
        """One sentence for each thing that must not be, when everything is drained."""
        wrong = [f"nobody sent {stranger}" for stranger in self.strangers]
        for message_id, told in self.messages.items():
            there = set(told.seen)
            wrong += [f"{message_id} came to {sink}, where it does not belong" for sink in there - told.sinks]
            if told.is_accepted or there:  # what one subscription has, all have
                wrong += [f"{message_id} never came to {sink}" for sink in told.sinks - there]
            for sink in told.sinks & there:
                wrong += _faults_at(message_id, told, sink)
        return wrong


def _faults_at(message_id: str, told: Told, sink: str) -> list[str]:
    count = told.drained[sink]
    if count > 1:
        return [f"{message_id} was in {sink} {count} times"]
    if count and sink in told.completed:
        return [f"{message_id} was in {sink} again after it was completed"]
    if not count and sink not in told.maybe_completed:
        return [f"{message_id} is lost in {sink}"]
    return []
