"""Two namespaces, trouble before each of them, and the paired client in both flavours behind one face.

Without further notice the namespaces are two broker processes. With PAIRBUS_AZURE_PRIMARY and
PAIRBUS_AZURE_SECONDARY, which are connection strings with the Manage claim here, they are those; tests that need a
fault then skip themselves.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.client.sides import Side
from pairbus.pairing.events import Diverted, Event
from pairbus.pairing.failover import State
from pairbus.syphon import Syphon, SyphonProgress
from pairbus.syphon.decide.pace import LOCK_S
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.testing import NemesisThread
from pairbus.transport import Carrier, connect
from tests.azure import NAMES as LIVE
from tests.brokers import BrokerProcess
from tests.history.check import Verdict, check
from tests.history.events import Place
from tests.history.record import Recorder
from tests.limits import slowness
from tests.scripted import ScriptedEndpoint
from tests.sdk.flavours import Flavour, in_thread

CALL_S = 30.0  # deadline of every call in these tests: a call that hangs fails its own test only
SEND_ONLY = {"Name": "send-only", "Key": "c2VuZA==", "Rights": ["Send"]}
"A key of either namespace without the Manage claim."
LISTEN_ONLY = {"Name": "listen-only", "Key": "bGlzdGVu", "Rights": ["Listen"]}
"A key of the secondary that may only receive."
SideName = Literal["primary", "secondary"]


class Namespaces:
    """A primary and a secondary; processes of ours, or live ones."""

    def __init__(self, processes: tuple[BrokerProcess, BrokerProcess] | None) -> None:
        self._processes = processes
        self._admins: dict[SideName, tuple[Side, ServiceBusAdministrationClient]] = {}
        self._made: list[tuple[SideName, str]] = []

    @property
    def live(self) -> bool:
        return self._processes is None

    def process(self, side: SideName) -> BrokerProcess:
        """The broker process; a test that asks for it is skipped on live namespaces."""
        if self._processes is None:
            pytest.skip("needs broker processes of our own")
        return self._processes[side == "secondary"]

    def connection_string(self, side: SideName, key: dict[str, Any] | None = None) -> str:
        """Connection string with the Manage claim, or with another key of the processes."""
        if key is not None:
            return self.process(side).connection_string(side, key_name=key["Name"], key=key["Key"])
        if self._processes is None:
            return os.environ[LIVE[side == "secondary"]]
        return self._processes[side == "secondary"].connection_string(side)

    def admin(self, side: SideName) -> ServiceBusAdministrationClient:
        if side not in self._admins:
            namespace = Side.from_connection_string(self.connection_string(side))  # owns the certificate file
            self._admins[side] = namespace, cast(ServiceBusAdministrationClient, namespace.new_admin())
        return self._admins[side][1]

    def make_queue(self, side: SideName = "primary", path: str | None = None, **settings: Any) -> str:
        path = path or f"q-{uuid.uuid4().hex[:10]}"
        self.admin(side).create_queue(path, **settings)
        self._made.append((side, path))
        return path

    def backlog_made(self, queues: list[str]) -> None:
        self._made += [("secondary", queue) for queue in queues]

    def close(self) -> None:
        """A folder of ours goes with the run; live namespaces are left as they were found."""
        if self.live:
            for side, path in dict.fromkeys(self._made):
                self.admin(side).delete_queue(path)
        for _, admin in self._admins.values():
            admin.close()


class Client:
    """A client of either flavour. Every call is awaited and has a deadline."""

    def __init__(self, flavour: Flavour, client: Any, events: list[Event]) -> None:
        self.flavour = flavour
        self.client = client
        self.events = events

    async def call(self, method: Callable[..., Any], *args: Any, within_s: float = CALL_S, **kwargs: Any) -> Any:
        async with asyncio.timeout(within_s):
            if self.flavour == "aio":
                return await method(*args, **kwargs)
            try:
                return await in_thread(method, *args, **kwargs)
            finally:
                await in_thread(self._hear)

    def _hear(self) -> None:
        """Wait until the listener of a sync client, which has a thread of its own, has heard all events."""
        if self.client._life.listener is not None:
            self.client._life.listener.flush(10.0)

    async def pair(self) -> None:
        await self.call(self.client.pair)

    async def clear_pairing(self) -> None:
        await self.call(self.client.clear_pairing)

    async def close(self) -> None:
        await self.call(self.client.close)

    def sender(self, path: str, **options: Any) -> Sender:
        return Sender(self, self.client.get_queue_sender(path, **options))

    def topic_sender(self, path: str) -> Sender:
        return Sender(self, self.client.get_topic_sender(path))

    def state(self, path: str) -> State:
        return self.client.states()[path]  # type: ignore[no-any-return]

    async def until_state(self, path: str, state: State, within_s: float) -> float:
        """Wait for the state, and for the events that tell of it; return the seconds until the state was reached.

        `within_s`: on a machine that is not overloaded.
        """
        within_s *= slowness()
        began = time.monotonic()
        while self.state(path) is not state:
            assert time.monotonic() - began < within_s, f"{path} is {self.state(path)} and not {state} in {within_s} s"
            await asyncio.sleep(0.02)
        took_s = time.monotonic() - began
        if self.flavour == "sync":
            await in_thread(self._hear)
        return took_s

    async def until_event(self, kind: type[Event], within_s: float) -> Any:
        """Wait for an event of this kind, `within_s` on a machine that is not overloaded; return the first one."""
        within_s *= slowness()
        began = time.monotonic()
        while not (found := self.told(kind)):
            assert time.monotonic() - began < within_s, f"no {kind.__name__} in {within_s} s, but {self.events}"
            await asyncio.sleep(0.02)
        return found[0]

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in list(self.events) if type(event) is kind]

    @property
    def diverted_ids(self) -> list[str]:
        return [one for event in self.told(Diverted) for one in event.message_ids]

    @property
    def doubtful_ids(self) -> set[str]:
        """Ids of messages whose outcome at the primary was unknown when they were stored in the backlog."""
        return {one for event in self.told(Diverted) if event.outcome_unknown for one in event.message_ids}


class Sender:
    def __init__(self, client: Client, sender: Any) -> None:
        self.client = client
        self.sender = sender

    async def send(self, what: Any, *, timeout: float | None = None, within_s: float = CALL_S) -> float:
        """Send; return the seconds that it took."""
        began = time.monotonic()
        await self.client.call(self.sender.send_messages, what, timeout=timeout, within_s=within_s)
        return time.monotonic() - began

    async def error(self, what: Any, *, timeout: float | None = None, within_s: float = CALL_S) -> BaseException:
        """Return the error of a send that must fail."""
        try:
            await self.send(what, timeout=timeout, within_s=within_s)
        except Exception as error:
            return error
        raise AssertionError("the send was expected to fail")

    async def batch(self, max_size_in_bytes: int | None = None) -> Any:
        return await self.client.call(self.sender.create_message_batch, max_size_in_bytes)

    async def schedule(self, messages: Any, due: Any, timeout: float | None = None) -> Any:
        return await self.client.call(self.sender.schedule_messages, messages, due, timeout=timeout)

    async def cancel(self, numbers: Any, timeout: float | None = None) -> None:
        await self.client.call(self.sender.cancel_scheduled_messages, numbers, timeout=timeout)

    async def close(self) -> None:
        await self.client.call(self.sender.close)


def new_client(flavour: Flavour, primary: str, secondary: str, **options: Any) -> Client:
    """A client that is not paired yet, with two backlog queues, a ping every second, and failover at once."""
    events: list[Event] = []
    given = {
        "backlog_queue_count": 2,
        "failover_interval": 0,
        "ping_primary_interval": 1,
        "on_event": events.append,
        **options,
    }
    kind: Any = pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient
    return Client(flavour, kind.from_connection_strings(primary, secondary, **given), events)


def new_single(flavour: Flavour, connection_string: str, **keywords: Any) -> Client:
    """Make a client of one namespace."""
    events: list[Event] = []
    kind: Any = pairbus.aio.ServiceBusClient if flavour == "aio" else pairbus.ServiceBusClient
    return Client(flavour, kind.from_connection_string(connection_string, on_event=events.append, **keywords), events)


class Stage:
    """Two scripted endpoints instead of namespaces, for answers that a real broker cannot be made to give."""

    BACKLOG = ("stage/x-servicebus-transfer/0", "stage/x-servicebus-transfer/1")

    def __init__(self, primary: ScriptedEndpoint, secondary: ScriptedEndpoint) -> None:
        self.primary = primary
        self.secondary = secondary
        self._clients: list[Client] = []

    def client(self, flavour: Flavour, **options: Any) -> Client:
        """Paired at its first send: the queues are taken for granted."""
        given = {"primary_name": "stage", "create_backlog_queues": False, **options}
        client = new_client(flavour, self.primary.connection_string, self.secondary.connection_string, **given)
        self._clients.append(client)
        return client

    def single(self, flavour: Flavour, **keywords: Any) -> Client:
        """Make a client of the primary alone."""
        client = new_single(flavour, self.primary.connection_string, **keywords)
        self._clients.append(client)
        return client

    def in_backlog(self) -> list[bytes]:
        return [payload for queue in self.BACKLOG for payload in self.secondary.stored(queue)]

    async def close(self) -> None:
        self.primary.heal()
        self.secondary.heal()
        await asyncio.gather(*(client.close() for client in self._clients))


class World:
    """One test's view: its own names, its own proxies, its own clients; everything is closed at the end."""

    def __init__(self, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self.primary_name = f"p-{uuid.uuid4().hex[:8]}"
        "Name of the primary in this world alone, so that its backlog queues are its own too."
        self.recorder = Recorder()
        self._nemeses: dict[SideName, NemesisThread] = {}
        self._clients: list[Client] = []
        self._stopping: list[Callable[[], object]] = []

    def nemesis(self, side: SideName = "primary") -> NemesisThread:
        """The proxy before one side, which clients made from now on go through."""
        if side not in self._nemeses:
            port = self.namespaces.process(side).ports[side]
            nemesis = NemesisThread("127.0.0.1", port)
            nemesis.__enter__()
            self._nemeses[side] = nemesis
            self._stopping.append(lambda: nemesis.__exit__(None, None, None))
        return self._nemeses[side]

    def connection_string(self, side: SideName) -> str:
        direct = self.namespaces.connection_string(side)
        return self._nemeses[side].connection_string(direct) if side in self._nemeses else direct

    @property
    def backlog(self) -> list[str]:
        return [f"{self.primary_name}/x-servicebus-transfer/{index}" for index in range(2)]

    def new_client(
        self, flavour: Flavour, *, primary: str | None = None, secondary: str | None = None, **options: Any
    ) -> Client:
        """Not paired yet. Its pings are messages, because a strict broker does not say that it hides them: left to
        itself the client would only probe, and an entity would stay away until somebody sends."""
        ends = primary or self.connection_string("primary"), secondary or self.connection_string("secondary")
        if not self.namespaces.live:
            options = {"ping": "message", **options}
        client = new_client(flavour, *ends, primary_name=self.primary_name, **options)
        self._clients.append(client)
        return client

    async def client(self, flavour: Flavour, **options: Any) -> Client:
        client = self.new_client(flavour, **options)
        await client.pair()
        self.namespaces.backlog_made(self.backlog)
        return client

    # ── what is where ──

    def count(self, path: str, side: SideName = "primary") -> int:
        return int(self.namespaces.admin(side).get_queue_runtime_properties(path).total_message_count or 0)

    def in_backlog(self) -> int:
        return sum(self.count(queue, "secondary") for queue in self.backlog)

    async def take(self, path: str, count: int, side: SideName = "primary", within_s: float = 30.0) -> list[bytes]:
        """Exactly so many messages, removed from the queue, byte for byte."""
        async with self.taking(path, count, side, within_s) as take:
            return await take()

    @asynccontextmanager
    async def taking(
        self, path: str, count: int, side: SideName = "primary", within_s: float = 30.0
    ) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
        """Open a receiver that gets each message when it arrives, and yield `take`: a message that lives for a second
        is not missed on a busy machine."""
        async with await connect(self.namespaces.connection_string(side)) as connection:
            receiver = await connection.receiver(path, credit=min(count + 1, 200))

            async def take() -> list[bytes]:
                found: list[bytes] = []
                deadline = time.monotonic() + within_s
                while len(found) < count and time.monotonic() < deadline:
                    batch = await receiver.receive(count - len(found), timeout_s=max(deadline - time.monotonic(), 0.01))
                    found += [message.payload for message in batch]
                    await receiver.complete(batch)
                assert len(found) == count, f"{len(found)} of {count} messages were in {path}"
                return found

            yield take
            await receiver.close()

    async def bring_home(self, **settings: Any) -> SyphonProgress:
        """Run a syphon once, past every proxy. Its start lies longer ago than locks last, as lanes need it."""
        ago_s = LOCK_S
        ends = [self.namespaces.connection_string(side) for side in ("primary", "secondary")]
        async with Carrier(ends[0]) as primary, Carrier(ends[1]) as secondary:
            syphon = Syphon(
                primary,
                secondary,
                self.backlog,
                settings=SyphonSettings(**settings),
                publish=lambda event: None,
                clock=lambda: time.monotonic() - ago_s,
            )
            ago_s = 0.0
            return await syphon.run_once(0.5)

    # ── the history ──

    async def send(self, sender: Sender, message: ServiceBusMessage, **how: Any) -> float:
        """Send and record it in the history; return how long it took. Errors are recorded and raised."""
        failed: list[BaseException] = []
        began = time.monotonic()
        with self.recorder.sending(sender.sender.entity_name, message):
            try:
                await sender.send(message, **how)
            except Exception as error:
                failed.append(error)
                raise
        if failed:
            raise failed[0]
        return time.monotonic() - began

    async def judge(self, *paths: str) -> Verdict:
        """Close the clients, bring everything home, empty the queues, and ask the checker."""
        await self.close_clients()
        await self.bring_home()
        assert self.in_backlog() == 0, "the syphon left something behind"
        await asyncio.gather(*(self._empty(path) for path in paths))
        return check(self.recorder.history(), drain_ended_ms=time.time_ns() // 1_000_000)

    async def _empty(self, path: str) -> None:
        """Receive all messages of the queue into the history."""
        counts = self.namespaces.admin("primary").get_queue_runtime_properties(path)
        waiting = counts.active_message_count or 0
        assert waiting == counts.total_message_count, f"{path} holds messages that are not active"
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with (
            ServiceBusClient.from_connection_string(self.namespaces.connection_string("primary")) as client,
            client.get_queue_receiver(path, receive_mode=mode) as receiver,
        ):
            while waiting > 0:
                found = await receiver.receive_messages(max_message_count=waiting, max_wait_time=CALL_S)
                assert found, f"{path} said that it holds {waiting} more"
                waiting -= len(found)
                for one in found:
                    self.recorder.drained(path, one, Place.QUEUE)
        assert self.count(path) == 0

    async def close_clients(self) -> None:
        clients, self._clients = self._clients, []
        await asyncio.gather(*(client.close() for client in clients))

    async def close(self) -> None:
        for nemesis in self._nemeses.values():
            nemesis.heal()
        await self.close_clients()
        for stop in self._stopping:
            await asyncio.to_thread(stop)


def message(body: str = "hello", **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **{"message_id": uuid.uuid4().hex, **fields})


async def until(holds: Callable[[], object], what: str, within_s: float = 30.0) -> float:
    """Poll until it holds; how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began
