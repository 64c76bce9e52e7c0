"""Clients that use all parts of a namespace until the broker dies, and tell the oracle their answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from pairbus.amqp.types import Int
from pairbus.transport import ClientConnection, ConnectionLost, NextSession, Receiver, Refused, connect
from pairbus.transport.links.management import Management
from pairbus.transport.links.session_filter import SESSION_TIMEOUT
from tests.crash.whole_oracle import Oracle, State, Told
from tests.crash.whole_world import (
    ALL,
    CHANGED,
    COLOURS,
    COUNTER,
    DELIVERIES_OF_MORTALS,
    MORTAL,
    PASSED,
    RULED,
    SESSION_SINKS,
    SINKS,
    TOPIC,
    Copy,
    Made,
    make,
    seen,
)

BACKLOG_MAX = 300  # messages not completed yet, so that a long test does not become a test of size
SCHEDULED_MS_MAX = 900
SESSIONS_OF_SENDER = 4
DRAINED_MAX = 200
CONNECTIONS = 4
SENDERS = (TOPIC, TOPIC, COUNTER)
Actor = Callable[[ClientConnection], Awaitable[None]]


class WholeLoad:
    """All clients of one test. Every random choice comes from `source`, except the faults of the broker."""

    def __init__(self, oracle: Oracle, source: random.Random) -> None:
        self.oracle = oracle
        self.rule_changes = self.states_set = self.passed_on = 0
        self._source = source
        self._last_id = 0
        self._doubtful: list[Told] = []
        "Sends without an answer, to be repeated."
        self._open = 0
        "Messages that the topic accepted and that are not completed in the subscription `all`."

    @staticmethod
    async def connect(connection_string: str) -> list[ClientConnection]:
        """Make the connections of a round, before its time begins."""
        return [await connect(connection_string) for _ in range(CONNECTIONS)]

    async def round(self, connections: list[ClientConnection]) -> None:
        """Use the broker until every connection is lost."""
        actors: list[Actor] = [partial(self._send, entity=entity, sender=n) for n, entity in enumerate(SENDERS)]
        actors += [partial(self._complete, sink=sink, path=sink) for sink in SINKS]
        actors += [partial(self._complete, sink=sink, path=path) for sink, path in PASSED.items()]
        actors += [partial(self._work_in_sessions, sink=sink) for sink in (*SESSION_SINKS, *SESSION_SINKS)]
        actors += [self._dead_letter, self._abandon_to_death, self._change_rules]
        accepted = [told for told in self.oracle.messages.values() if told.is_accepted]
        self._open = sum((ALL, "") in told.made.copies.keys() - told.maybe_completed for told in accepted)
        tasks = [
            asyncio.create_task(_until_lost(actor, connections[n % CONNECTIONS])) for n, actor in enumerate(actors)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for connection in connections:
                await connection.close()

    # ── senders ──

    async def _send(self, connection: ClientConnection, entity: str, sender: int) -> None:
        """Singles and batches; to the topic also what was sent before: after a lost answer, or although it was
        accepted. A topic that detects duplicates takes neither twice."""
        link = await connection.sender(entity)
        while True:
            if self._open > BACKLOG_MAX:
                await asyncio.sleep(0.02)
            chance = self._source.random()
            if entity == TOPIC and chance < 0.2 and (again := self._again()) is not None:
                await self._sending([again], link.send(again.payload))
            elif chance < 0.8:
                made = self._make(entity, sender)
                await self._sending([made], link.send(made.payload))
            else:
                batch = [self._make(entity, sender) for _ in range(self._source.randint(2, 8))]
                await self._sending(batch, link.send_batch([made.payload for made in batch]))

    def _make(self, entity: str, sender: int) -> Made:
        self._last_id += 1
        due_ms = 0
        if entity == TOPIC and self._source.random() < 0.1:
            due_ms = time.time_ns() // 1_000_000 + self._source.randint(1, SCHEDULED_MS_MAX)
        session = f"session {self._source.randrange(SESSIONS_OF_SENDER)} of {sender}"
        return make(f"{self._last_id:08}", entity, session, self._source, due_ms=due_ms)

    def _again(self) -> Made | None:
        if self._doubtful:
            return self._doubtful.pop().made
        number = self._source.randint(max(self._last_id - 200, 0), self._last_id)
        told = self.oracle.messages.get(f"{number:08}")
        return told.made if told is not None and told.is_accepted and told.made.colour else None

    async def _sending(self, batch: list[Made], answer: Awaitable[object]) -> None:
        all_told = [self.oracle.trying(made) for made in batch]
        is_accepted = False
        try:
            await answer
            is_accepted = True
        finally:
            for told in all_told:
                self._open += is_accepted and not told.is_accepted and (ALL, "") in told.made.copies
                self.oracle.sent(told, is_accepted=is_accepted)
                # The other half stays in doubt: all subscriptions have such a message, or none has.
                if not told.is_accepted and told.made.colour and self._source.random() < 0.5:
                    self._doubtful.append(told)

    # ── receivers ──

    async def _complete(self, connection: ClientConnection, sink: str, path: str) -> None:
        receiver = await connection.receiver(path, credit=20)
        while True:
            for received in await receiver.receive(20, timeout_s=5):
                told, copy = self.oracle.saw(sink, path, seen(received.payload))
                if path != MORTAL and self._source.random() < 0.2:
                    await receiver.abandon([received])
                    continue
                told.maybe_completed.add(copy)
                await receiver.complete([received])
                self._completed(told, copy)
                await asyncio.sleep(0.001)

    def _completed(self, told: Told, copy: Copy) -> None:
        told.completed.add(copy)
        self._open -= copy[0] == ALL

    async def _dead_letter(self, connection: ClientConnection) -> None:
        """Dead-letter messages of the subscription; the broker forwards each to the graveyard in one commit."""
        receiver = await connection.receiver(CHANGED, credit=3)
        while True:
            for received in await receiver.receive(3, timeout_s=5):
                told, copy = self.oracle.saw(CHANGED, CHANGED, seen(received.payload))
                await receiver.dead_letter([received], "test", "because")
                told.passed.add(copy)
                self.passed_on += 1
                await asyncio.sleep(0.003)

    async def _abandon_to_death(self, connection: ClientConnection) -> None:
        """Delivered too often: the broker itself dead-letters, and the letter takes two hops."""
        receiver = await connection.receiver(MORTAL, credit=5)
        while True:
            for received in await receiver.receive(5, timeout_s=5):
                message = seen(received.payload)
                told, copy = self.oracle.saw(MORTAL, MORTAL, message)
                await receiver.abandon([received])
                if message.deliveries + 1 >= DELIVERIES_OF_MORTALS:
                    told.passed.add(copy)
                    self.passed_on += 1
                await asyncio.sleep(0.002)

    # ── sessions ──

    async def _work_in_sessions(self, connection: ClientConnection, sink: str) -> None:
        """Accept the next session, look whether its state is the last one, work a little, write a new state."""
        management = await connection.management(sink)
        while True:
            receiver = await connection.receiver(sink, credit=10, session=NextSession(30))
            session = receiver.session_id
            assert session is not None
            self.oracle.state_found(sink, session, await state_of(management, session))
            last = 0
            if batch := await receiver.receive(10, timeout_s=1):
                for received in batch:
                    message = seen(received.payload)
                    told, copy = self.oracle.saw(sink, sink, message)
                    told.maybe_completed.add(copy)
                    if message.number <= last:
                        self.oracle.wrong.append(f"{sink}: {message.number} of {session} came after {last}")
                    last = message.number
                await receiver.complete(batch)
                for received in batch:
                    copied = seen(received.payload)
                    self._completed(self.oracle.messages[copied.id], (sink, copied.variant))
                await self._set_state(management, sink, session, last)
            await receiver.close()

    async def _set_state(self, management: Management, sink: str, session: str, number: int) -> None:
        """Mostly small, sometimes large, sometimes none."""
        state = self._source.choice((None, b"%d" % number, b"%d" % number, b"%08d" % number * 3000))
        possible = self.oracle.states[sink, session]
        possible.add(state)
        await management.request("set-session-state", {"session-id": session, "session-state": state})
        self.oracle.states[sink, session] = {state}
        self.states_set += 1

    # ── rules ──

    async def _change_rules(self, connection: ClientConnection) -> None:
        """First see whether the rules are those that were acknowledged; then add and remove."""
        management, rules = await connection.management(RULED), self.oracle.rules
        answer = await management.request("enumerate-rules", {"skip": Int(0), "top": Int(100)})
        there = {each["rule-description"].value[2] for each in answer.get("rules", [])}
        for colour in COLOURS:
            self.oracle.wrong += rules.found(colour, colour in there)
        while True:
            colour = self._source.choice(COLOURS)
            exists = rules.state(colour)
            rules.change(colour)
            if exists:
                await management.request("remove-rule", {"rule-name": colour})
            else:
                await management.request("add-rule", {"rule-name": colour, "rule-description": self._rule(colour)})
            rules.changed(colour, not exists)
            self.rule_changes += 1
            await asyncio.sleep(self._source.uniform(0.0, 0.05))

    def _rule(self, colour: str) -> dict[str, object]:
        if self._source.random() < 0.5:
            return {"sql-filter": {"expression": f"colour = '{colour}'"}}
        return {"correlation-filter": {"properties": {"colour": colour}}}

    # ── the end ──

    async def drain(self, connection: ClientConnection) -> None:
        """Take everything out, read the state of every session, and clear it: it counts towards the size."""
        for sink in SINKS:
            await self._drain_from(await _taker(connection, sink), sink, sink)
        for sink, path in PASSED.items():
            await self._drain_from(await _taker(connection, path), sink, path)
        for sink in SESSION_SINKS:
            management = await connection.management(sink)
            with suppress(_NoSession):
                while True:
                    await self._drain_from(await _taker(connection, sink, NextSession(0.2)), sink, sink)
            for session in [session for at, session in list(self.oracle.states) if at == sink]:
                receiver = await connection.receiver(sink, session=session)
                self.oracle.state_found(sink, session, await state_of(management, session))
                await management.request("set-session-state", {"session-id": session, "session-state": None})
                await receiver.close()

    async def _drain_from(self, receiver: Receiver, sink: str, path: str) -> None:
        batch = await receiver.receive(DRAINED_MAX, timeout_s=0)
        await receiver.pause()  # when this returns, all messages of the queue have arrived
        while batch or receiver.buffered:
            for received in batch:
                self.oracle.drained(sink, path, seen(received.payload))
            batch = await receiver.receive(DRAINED_MAX, timeout_s=0)
            await receiver.pause()
        await receiver.close()


class _NoSession(Exception):
    """No session has messages."""


async def _taker(connection: ClientConnection, path: str, session: NextSession | None = None) -> Receiver:
    try:
        return await connection.receiver(path, mode="receive-and-delete", credit=DRAINED_MAX, session=session)
    except Refused as refused:
        if refused.condition != SESSION_TIMEOUT:
            raise
        raise _NoSession from None


async def _until_lost(actor: Actor, connection: ClientConnection) -> None:
    with suppress(ConnectionLost):
        await actor(connection)


async def state_of(management: Management, session: str) -> State:
    answer = await management.request("get-session-state", {"session-id": session})
    state: State = answer["session-state"]
    return state
