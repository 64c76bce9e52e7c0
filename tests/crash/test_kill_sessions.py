"""SIGKILL under a load of sessions: nothing acknowledged is lost, nothing completed comes again, states are kept."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.transport import Connection, NextSession, connect
from pairbus.transport.errors import Refused, Timeout, TransportError
from tests.brokers import BrokerProcess

QUEUE = "sessions"
SESSIONS = [f"session {n}" for n in range(8)]
ROUNDS = 3
CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "contoso",
                "Queues": [{"Name": QUEUE, "Properties": {"RequiresSession": True, "LockDuration": "PT5M"}}],
            }
        ]
    }
}


class SessionLoad:
    """Senders, receivers and keepers of state, and what they were told."""

    def __init__(self, source: random.Random) -> None:
        self.attempted: set[str] = set()
        self.accepted: set[str] = set()
        self.completed: set[str] = set()
        self.maybe_completed: set[str] = set()
        self.again: list[str] = []
        self.disorder: list[str] = []
        self.states: dict[str, set[bytes]] = {name: set() for name in SESSIONS}
        "What a session's state may be: the last one acknowledged, and those tried since."
        self._source = source
        self._last = 0

    async def round(self, connection_string: str, pause_s: float, kill: object) -> None:
        connections = [await connect(connection_string) for _ in range(3)]
        actors = (self._send, self._receive, self._receive)
        tasks = [asyncio.create_task(self._act(actor, each)) for actor, each in zip(actors, connections, strict=True)]
        await asyncio.sleep(pause_s)
        assert callable(kill)
        kill()
        await asyncio.gather(*tasks)
        for connection in connections:
            await connection.close()

    @staticmethod
    async def _act(actor: object, connection: Connection) -> None:
        assert callable(actor)
        with suppress(TransportError):
            await actor(connection)

    async def _send(self, connection: Connection) -> None:
        sender = await connection.sender(QUEUE)
        while True:
            ids = []
            for _ in range(self._source.randint(1, 10)):
                self._last += 1
                ids.append(f"{self._last:09}")
            payloads = [
                Message(properties=Properties(message_id=each, group_id=self._source.choice(SESSIONS)), data=[b"x"])
                for each in ids
            ]
            self.attempted.update(ids)
            await sender.send_batch([payload.encode() for payload in payloads])
            self.accepted.update(ids)

    async def _receive(self, connection: Connection, *, until_empty: bool = False) -> None:
        management = await connection.management(QUEUE)
        while True:
            try:
                receiver = await connection.receiver(QUEUE, credit=10, session=NextSession(2 if until_empty else 30))
            except (Timeout, Refused):
                if until_empty:
                    return
                raise
            name = receiver.session_id
            assert name is not None
            last = ""
            while batch := await receiver.receive(10, timeout_s=0.2):
                ids = [str(Message.decode(each.payload).properties.message_id) for each in batch]  # type: ignore[union-attr]
                self.again += [each for each in ids if each in self.completed]
                if [last, *ids] != sorted([last, *ids]):
                    self.disorder.append(f"{name}: {last} {ids}")
                last = ids[-1]
                self.maybe_completed.update(ids)
                await receiver.complete(batch)
                self.completed.update(ids)
                if not until_empty:
                    state = ids[-1].encode()
                    self.states[name].add(state)
                    body = {"session-id": name, "session-state": state}
                    await management.request("com.microsoft:set-session-state", body)
                    self.states[name] = {state}
            await receiver.close()

    async def drain(self, connection_string: str) -> dict[str, bytes | None]:
        """Receive what is left, and read every state."""
        connection = await connect(connection_string)
        await self._receive(connection, until_empty=True)
        found: dict[str, bytes | None] = {}
        management = await connection.management(QUEUE)
        for name in SESSIONS:
            receiver = await connection.receiver(QUEUE, session=name)
            answer = await management.request("com.microsoft:get-session-state", {"session-id": name})
            found[name] = answer["session-state"]
            await receiver.close()
        await connection.close()
        return found


@pytest.mark.slow
async def test_sessions_and_their_states_survive_being_killed(tmp_path: Path) -> None:
    """0 lost, 0 again after an acknowledged completion, order within a session, and the last acknowledged state."""
    source = random.Random(14)
    load = SessionLoad(source)
    process = BrokerProcess(tmp_path / "data", namespaces=["contoso"], config=CONFIG)
    with process:
        for _ in range(ROUNDS):
            await load.round(process.connection_string(), source.uniform(0.7, 1.5), process.kill)
            process.start()
        states = await load.drain(process.connection_string())
    assert load.completed, "nothing was received before the last kill"
    assert load.again == []
    assert load.disorder == []
    assert load.accepted - load.maybe_completed == set()
    assert load.maybe_completed <= load.attempted
    for name, state in states.items():
        known: set[bytes | None] = {*load.states[name]} or {None}
        assert state in known, f"{name}: {state!r} is none of {load.states[name]}"
