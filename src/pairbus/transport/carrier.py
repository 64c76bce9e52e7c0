"""A connection to one namespace that is opened when it is needed, and again after a loss.

    carrier = Carrier("Endpoint=sb://…")
    sender = await carrier.sender("orders")         # connects, attaches; the next call gives the same link
    await sender.send(payload)

Laws of this file.
 1. One connect at a time, and one attach at a time for each path: whoever comes meanwhile shares it.
 2. Nothing is repeated here. A call that fails says why, and the next one begins anew.
 3. A caller that gives up, by deadline or cancellation, does not take the attempt away from the others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from pairbus.transport.client import CREDIT, IDLE_TIME_OUT_S, Connection, Ssl, connect
from pairbus.transport.endpoint import Endpoint
from pairbus.transport.errors import ConnectionLost, Timeout, TransportError
from pairbus.transport.management import Management
from pairbus.transport.receiver import Receiver
from pairbus.transport.sender import Sender

HIDES_PINGS = "com.pairbus:hides-pings"
CONNECT_TIMEOUT_S = 3.0
TIMEOUT_S = 30.0
SENDERS_MAX = 1000  # links kept open; the one that was not used for longest makes room

T = TypeVar("T")
Key = tuple[str, str | None]
"The path in lower case and the name of the link, None when the carrier names it."
CONNECTION: Key = ("", None)


class Carrier:
    """Reaches one namespace. Belongs to one event loop; safe to share between its tasks."""

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        credential: object | None = None,
        ssl: Ssl = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        timeout_s: float = TIMEOUT_S,
        idle_time_out_s: float = IDLE_TIME_OUT_S,
        container_id: str | None = None,
        proxy: str | None = None,
        senders_max: int = SENDERS_MAX,
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        self.timeout_s = timeout_s
        "How long a call may take unless it says otherwise; also the default of the links."
        self.connect_timeout_s = connect_timeout_s
        self._connect = partial(
            connect,
            self.endpoint,
            timeout_s=connect_timeout_s,
            ssl=ssl,
            credential=credential,
            idle_time_out_s=idle_time_out_s,
            container_id=container_id,
            proxy=proxy,
        )
        self._connection: Connection | None = None
        self._senders: OrderedDict[Key, Sender] = OrderedDict()
        self._senders_max = senders_max
        self._opening: dict[Key, asyncio.Task[Any]] = {}
        "Under the key of a sender, or under CONNECTION."
        self._endings: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.is_connected else "not connected"
        return f"<Carrier {self.endpoint.host}:{self.endpoint.port} {state} senders={len(self._senders)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.loss is None

    async def connection(self, timeout_s: float | None = None) -> Connection:
        """The connection, opened if need be."""
        known = self._connection
        if known is not None and known.loss is None:
            return known
        return await self._shared(CONNECTION, self._open_connection, self._limit(timeout_s), "the connection")

    async def send(
        self,
        path: str,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        name: str | None = None,
        fresh: bool = False,
    ) -> None:
        """Send one encoded message to the entity and return when the peer has accepted it."""
        limit = self._limit(timeout_s)
        deadline = asyncio.get_running_loop().time() + limit
        sender = await self.sender(path, limit, name=name)
        left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
        await sender.send(payload, message_format=message_format, timeout_s=left_s)

    async def management(self, path: str, timeout_s: float | None = None) -> Management:
        """The `$management` node of the entity; asked again, the same object while its links are good."""
        limit = self._limit(timeout_s)
        deadline = asyncio.get_running_loop().time() + limit
        connection = await self.connection(limit)
        left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
        return await connection.management(path, timeout_s=left_s)

    async def sender(self, path: str, timeout_s: float | None = None, *, name: str | None = None) -> Sender:
        """The link that sends to the entity; the same one for every caller while it is good."""
        key = (path.lower(), name)
        known = self._senders.get(key)
        if known is not None and known.over is None:
            self._senders.move_to_end(key)
            return known
        return await self._shared(
            key, lambda: self._open_sender(path, name, key), self._limit(timeout_s), f"sender {path}"
        )

    async def receiver(
        self,
        path: str,
        *,
        credit: int = CREDIT,
        sub_queue: Literal["dead-letter"] | None = None,
        timeout_s: float | None = None,
    ) -> Receiver:
        """A link of the caller's own, which the caller closes."""
        limit = self._limit(timeout_s)
        deadline = asyncio.get_running_loop().time() + limit
        connection = await self.connection(limit)
        left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
        return await connection.receiver(path, credit=credit, sub_queue=sub_queue, timeout_s=left_s)

    async def hides_pings(self, timeout_s: float | None = None) -> bool:
        """The broker announces that no receiver ever sees a ping."""
        connection = await self.connection(timeout_s)
        return bool(connection.peer_properties.get(HIDES_PINGS))

    def limit(self, path: str, name: str | None = None) -> int:
        known = self._senders.get((path.lower(), name))
        return 0 if known is None else known.batch_limit

    def forget(self, path: str, name: str | None = None) -> None:
        """The next `sender(path)` is a new link. What is in flight on the old one ends with an unknown outcome."""
        path = path.lower()
        for key in [key for key in self._opening if key[0] == path]:
            self._cancel_opening(key)
        for key in [key for key in self._senders if key[0] == path]:
            self._end(self._senders.pop(key).close())

    async def drop(self) -> None:
        """Abandon the connection: the next call opens a fresh one. What is in flight has an unknown outcome."""
        connection, self._connection = self._connection, None
        self._senders.clear()
        for key in list(self._opening):
            self._cancel_opening(key)
        if connection is not None:
            # Without waiting for a peer that may be silent: whoever drops a connection does not trust it.
            await connection.close(timeout_s=0.0)

    async def close(self) -> None:
        """Close for good; every later call raises ConnectionLost."""
        self._closed = True
        connection, self._connection = self._connection, None
        self._senders.clear()
        for key in list(self._opening):
            self._cancel_opening(key)
        if connection is not None:
            await connection.close()
        if self._endings:
            await asyncio.wait(self._endings)

    # ── opening ──

    async def _open_connection(self) -> Connection:
        self._senders.clear()  # they went with the connection before
        self._connection = connection = await self._connect()
        return connection

    async def _open_sender(self, path: str, name: str | None, key: Key) -> Sender:
        connection = await self.connection(self.timeout_s)
        sender = await connection.sender(path, timeout_s=self.timeout_s, name=name)
        if connection is self._connection:
            self._make_room()
            self._senders[key] = sender
        return sender

    def _make_room(self) -> None:
        if len(self._senders) >= self._senders_max:
            idle = next((key for key, sender in self._senders.items() if not sender.in_flight), None)
            if idle is not None:
                self._end(self._senders.pop(idle).close())

    async def _shared(self, key: Key, start: Callable[[], Coroutine[Any, Any, T]], timeout_s: float, what: str) -> T:
        if self._closed:
            raise ConnectionLost(f"{self.endpoint.host}:{self.endpoint.port}: closed by this client")
        task: asyncio.Task[T] | None = self._opening.get(key)
        if task is None:
            task = self._opening[key] = asyncio.create_task(start())
            task.add_done_callback(lambda done: self._opened(key, done))
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise Timeout(f"{self.endpoint.host}:{self.endpoint.port}: {what} was not open within {timeout_s:.1f} s")
        if task.cancelled():
            raise ConnectionLost(f"{self.endpoint.host}:{self.endpoint.port}: {what} was abandoned")
        error = task.exception()
        if isinstance(error, TransportError):
            raise error.again(outcome_unknown=False)  # one instance raised to several callers would mix tracebacks
        return task.result()

    def _opened(self, key: Key, task: asyncio.Task[Any]) -> None:
        if self._opening.get(key) is task:
            del self._opening[key]
        if not task.cancelled():
            task.exception()  # when every caller has given up, nobody else asks

    def _cancel_opening(self, key: Key) -> None:
        task = self._opening.pop(key, None)
        if task is not None:
            task.cancel()

    def _end(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _limit(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s
