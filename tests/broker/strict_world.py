"""A strict broker in this process and a client scripted frame by frame, joined by a wire in memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import AmqpEvent
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Composite, Source, Target
from pairbus.amqp.sasl import SaslClient
from pairbus.amqp.session import Session
from pairbus.auth.sas import KeyRing, SharedAccessKey
from pairbus.broker.description import QueueDescription
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.strict import Strictness
from pairbus.broker.wire.peer import Peer
from tests.amqp.pair import StrictReader

C = TypeVar("C", bound=Composite)
E = TypeVar("E", bound=AmqpEvent)
TURNS = 20  # turns of the event loop: more than a commit in memory and its answer need


class Client:
    """Connection to a namespace of its own. The broker's output is kept twice: as frames, and as events of our core."""

    def __init__(self, strictness: Strictness, *, login: bytes = b"\0root\0key", **settings: Any) -> None:
        self.loop = asyncio.get_running_loop()
        keys = KeyRing([SharedAccessKey("root", "key")])
        self.namespace = Namespace(
            "contoso",
            MemoryStore(self.loop.call_soon),
            keys,
            loop=self.loop,
            now_ms=lambda: time.time_ns() // 1_000_000,
            strictness=strictness,
        )
        self.said = StrictReader()
        self.events: list[AmqpEvent] = []
        self.core = Connection(ConnectionSettings("client", **settings), SaslClient("PLAIN", login))
        self.peer = Peer(self.namespace, self, self.loop)
        self._unread: list[bytes] = []

    # ── the wire, as the broker sees it ──

    is_frozen = False

    def write(self, data: bytes) -> None:
        self._unread.append(data)

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    # ── the script ──

    async def turn(self) -> None:
        """Send all output of the core in one read of the broker's, and hear the answers."""
        for _ in range(TURNS):
            if self.core.has_output:
                self.peer.data_received(self.core.data_to_send())
            await asyncio.sleep(0)
            self.hear()

    def hear(self) -> None:
        unread, self._unread = self._unread, []
        for data in unread:
            self.said.read(data)
            self.events += self.core.receive_data(data, self.loop.time())

    async def until(self, kind: type[C], count: int = 1) -> C:
        """Wait until the broker has said a performative so often, and give the last one."""
        async with asyncio.timeout(20):
            while len(self.all(kind)) < count:
                await asyncio.sleep(0.005)
                await self.turn()
        return self.all(kind)[-1]

    def all(self, kind: type[C]) -> list[C]:
        return [frame for _, frame, _ in self.said.frames if isinstance(frame, kind)]

    def all_events(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    async def open(self) -> Client:
        self.core.open()
        await self.turn()
        return self

    async def queue(self, path: str, **settings: Any) -> None:
        await self.namespace.create_queue(QueueDescription(path, **settings))

    async def session(self) -> Session:
        session = self.core.new_session()
        session.begin()
        await self.turn()
        return session

    async def sender(self, session: Session, address: str, name: str = "to") -> SenderLink:
        link = session.new_sender(name)
        link.attach(source=Source(address="client"), target=Target(address=address))
        await self.turn()
        return link

    async def receiver(self, session: Session, address: str, credit: int = 0, name: str = "from") -> ReceiverLink:
        link = session.new_receiver(name)
        link.attach(source=Source(address=address), target=Target(address="client"))
        if credit:
            link.grant(credit)
        await self.turn()
        return link


def message(text: str, **properties: Any) -> bytes:
    return Message(properties=Properties(message_id=text, **properties), data=[text.encode()]).encode()
