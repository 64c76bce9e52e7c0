"""One AMQP client of a namespace, joined to our own core by a wire in memory."""

from __future__ import annotations

import asyncio
import time

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import Delivery
from pairbus.amqp.frames import EMPTY_FRAME
from pairbus.amqp.sasl import SaslClient
from pairbus.auth.sas import KeyRing, SharedAccessKey
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.strict import LENIENT
from pairbus.broker.wire.peer import Peer
from pairbus.faults.play.cable import Cable, CableFaults
from tests.broker.strict_world import Client, message


class Wire:
    """Keeps the broker's output until a listener is there."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()

    is_frozen = False

    def write(self, data: bytes) -> None:
        self.said.put_nowait(data)

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0


async def test_client_gets_empty_frames_as_often_as_it_asked() -> None:
    """The client's idle time-out may be shorter than the broker's own tick; without empty frames it would hang up."""
    loop = asyncio.get_running_loop()
    keys = KeyRing([SharedAccessKey("app", "secret")])
    namespace = Namespace("contoso", MemoryStore(), keys, loop=loop, now_ms=lambda: time.time_ns() // 1_000_000)
    wire = Wire()
    peer = Peer(namespace, wire, loop)
    client = Connection(ConnectionSettings("client", idle_time_out_ms=100), SaslClient("PLAIN", b"\0app\0secret"))
    client.open()
    while not client.is_open:
        peer.data_received(client.data_to_send())
        client.receive_data(await wire.said.get(), 0.0)
    async with asyncio.timeout(3):
        for _ in range(3):
            assert await wire.said.get() == EMPTY_FRAME
    peer.connection_lost()


async def test_thawed_client_that_does_not_read_gets_no_messages() -> None:
    """The transport tells once that its buffer is full: a black hole in between must not make the broker forget it, and
    put all messages of a queue into memory."""
    client = await Client(LENIENT).open()
    await client.queue("orders")
    session = await client.session()
    receiver = await client.receiver(session, "orders", credit=5)
    sender = await client.sender(session, "orders")
    cable = client.peer._wire = Cable(CableFaults(lambda: 0.5), late_bytes_max=1 << 20)
    cable.protocol = client.peer
    cable.open_on(client)
    cable.pause_writing()
    cable.freeze(1)
    cable.thaw(1)
    sender.send(message("waits"), b"1")
    await client.turn()
    assert client.all_events(Delivery) == []
    cable.freeze(1)
    cable.resume_writing()
    await client.turn()
    assert client.all_events(Delivery) == []
    cable.thaw(1)
    await client.turn()
    assert [event.link for event in client.all_events(Delivery)] == [receiver]
