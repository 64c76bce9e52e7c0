"""The way to one namespace: connections and links are opened when they are needed, and again after a loss.

    carrier = Carrier("Endpoint=sb://…")
    await carrier.send("orders", payload, timeout_s=60)     # connects, attaches, sends; the next call only sends
    sender = await carrier.sender("orders")                 # the link itself, for whoever keeps many sends in flight

Laws of this file.
 1. One connect at a time, and one attach at a time for each link: callers who come meanwhile share it.
 2. Nothing is repeated here except what a peer ended while it was idle: a link or connection that was over before
    anything of a call was transmitted is opened anew, once. Any other failure says why, and the next call begins anew.
 3. A caller that gives up, by deadline or cancellation, does not take the attempt away from the others.
 4. The caller's time-out bounds a call; in each step of an opening the peer may be silent for `connect_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar

from pairbus.amqp.settings import Trace
from pairbus.transport.client import CREDIT, IDLE_TIME_OUT_S, Connection, connect
from pairbus.transport.dial import Ssl
from pairbus.transport.endpoint import Endpoint
from pairbus.transport.errors import TransportError
from pairbus.transport.management import Management
from pairbus.transport.pool import Pool
from pairbus.transport.receiver import Receiver
from pairbus.transport.sender import Sender
from pairbus.transport.shared import Shared

HIDES_PINGS = "com.pairbus:hides-pings"
CONNECT_TIMEOUT_S = 3.0
TIMEOUT_S = 30.0
OPENING_TIMEOUT_S = 60.0  # of an opening that goes on for others, and for the next caller when all have left
SENDERS_MAX = 2048  # links kept open; the one that was not used for longest makes room

T = TypeVar("T")
Key = tuple[str, str | None]
"The path in lower case and the name of the link, None when the carrier names it."
Start = Callable[[Sender], asyncio.Future[None]]
"Begins one send on a link."


class Carrier:
    """Reaches one namespace. Belongs to one event loop; safe to share between its tasks.

    `user_agent` stands in front of ours in the open. `trace` is told of every frame, without tokens and bodies:
    `pairbus.transport.trace.log_frames` writes them to the log.
    """

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
        user_agent: str | None = None,
        trace: Trace | None = None,
        senders_max: int = SENDERS_MAX,
    ) -> None:
        self.endpoint = Endpoint.parse(endpoint) if isinstance(endpoint, str) else endpoint
        self.timeout_s = timeout_s
        "How long a call may take unless it says otherwise; also the default of the links."
        self.connect_timeout_s = connect_timeout_s
        "How long the peer may be silent in each step of opening a connection or a link."
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        self._pool = Pool(
            where,
            partial(
                connect,
                self.endpoint,
                timeout_s=OPENING_TIMEOUT_S,
                silence_s=connect_timeout_s,
                ssl=ssl,
                credential=credential,
                idle_time_out_s=idle_time_out_s,
                container_id=container_id,
                proxy=proxy,
                user_agent=user_agent,
                trace=trace,
            ),
        )
        self._senders: OrderedDict[Key, tuple[Sender, Connection]] = OrderedDict()
        self._senders_max = senders_max
        self._order_from = senders_max // 2
        "With fewer links the order of their use does not matter yet, and is not kept."
        self._opening = Shared[tuple[Key, bool]](where)
        "By key, and whether the link is to be on a fresh connection."
        self._waiting: dict[tuple[Key, bool], list[tuple[asyncio.Future[asyncio.Future[None]], Start]]] = {}
        "Sends that wait for a link, in the order in which they are to be begun."

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Carrier {self.endpoint.host}:{self.endpoint.port} {state} senders={len(self._senders)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """A connection is open that takes new links."""
        return bool(self._pool.good)

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
        """Send one encoded message to the entity and return when the peer has accepted it.

        The link is found or opened; one that the service ended before anything of this send was transmitted is opened
        anew, once. `name` is that of the AMQP link: the same path under two names has two links. `silence_s` is passed
        to `Sender.send`.

        `fresh` is for the retry of a send that failed quickly. The link must be on a connection that was opened within
        the last two seconds: one that is there already serves all who ask for it, otherwise one is opened. The
        connection on which the link was until now is retired, unless it is lost anyway: it takes no new links, sends
        in flight and links of other entities go on there undisturbed, and it is closed when its last link is gone.
        When three retired connections are still in use, the link is opened on what there is.
        """
        if timeout_s is None:
            timeout_s = self.timeout_s
        began = _now()
        key = (path.lower(), name)
        known = self._senders.get(key)
        if known is not None and known[0].over is None and not fresh:
            if len(self._senders) > self._order_from:
                self._senders.move_to_end(key)
            try:
                await known[0].send_soon(
                    payload, message_format=message_format, timeout_s=timeout_s, silence_s=silence_s
                )
                return
            except TransportError as error:
                if not _was_over_before(known[0], error):
                    raise
        deadline = began + timeout_s
        start = partial(_start, payload, message_format, silence_s, deadline)
        await self._send_when_open(path, key, start, deadline, fresh)

    async def sender(
        self, path: str, timeout_s: float | None = None, *, name: str | None = None, fresh: bool = False
    ) -> Sender:
        """Return the link that sends to the entity: the same one for every caller while it is good.

        `name` and `fresh` as in `send`.
        """
        key = (path.lower(), name)
        known = None if fresh else self._known(key)
        return known or await self._sender(path, key, _now() + self._limit(timeout_s), fresh)

    async def receiver(
        self,
        path: str,
        *,
        credit: int = CREDIT,
        sub_queue: Literal["dead-letter"] | None = None,
        timeout_s: float | None = None,
    ) -> Receiver:
        """Open a link of the caller's own, which the caller closes."""

        def attach(connection: Connection, left_s: float) -> Awaitable[Receiver]:
            return connection.receiver(path, credit=credit, sub_queue=sub_queue, timeout_s=left_s)

        return await self._open(path, attach, self._limit(timeout_s))

    async def management(self, path: str, timeout_s: float | None = None) -> Management:
        """Return the `$management` node of the entity; asked again, the same object while its links are good."""

        def attach(connection: Connection, left_s: float) -> Awaitable[Management]:
            return connection.management(path, timeout_s=left_s)

        return await self._open(path, attach, self._limit(timeout_s))

    async def connection(self, timeout_s: float | None = None) -> Connection:
        """Return a connection, opened if need be."""
        return await self._pool.any(_now() + self._limit(timeout_s))

    async def hides_pings(self, timeout_s: float | None = None) -> bool:
        """The broker announces that no receiver ever sees a ping."""
        connection = await self.connection(timeout_s)
        return bool(connection.peer_properties.get(HIDES_PINGS))

    def batch_limit(self, path: str, name: str | None = None) -> int:
        """Return what the open link takes as one batch; 0 when none is open."""
        known = self._senders.get((path.lower(), name))
        return 0 if known is None else known[0].batch_limit

    def forget(self, path: str, name: str | None = None) -> None:
        """Make the next `sender(path)` a new link. Sends in flight on the old one end with an unknown outcome."""
        key = (path.lower(), name)
        for fresh in (False, True):
            self._opening.cancel((key, fresh))
        if key in self._senders:
            self._close(self._senders.pop(key)[0])

    async def drop(self) -> None:
        """Abandon every connection: the next call opens a fresh one. Sends in flight have an unknown outcome."""
        self._senders.clear()
        self._opening.cancel_all()
        await self._pool.drop()

    async def close(self) -> None:
        """Close for good; every later call raises ConnectionLost."""
        self._senders.clear()
        self._opening.cancel_all()
        await self._pool.close()

    # ── links ──

    def _known(self, key: Key) -> Sender | None:
        known = self._senders.get(key)
        if known is None or known[0].over is not None:
            return None
        if len(self._senders) > self._order_from:
            self._senders.move_to_end(key)
        return known[0]

    def _young(self, key: Key) -> Sender | None:
        """Return the link if it is good and need not be replaced by one on a fresh connection."""
        known = self._senders.get(key)
        if known is None or known[0].over is not None:
            return None
        return None if self._pool.is_stale(known[1], _now()) else known[0]

    async def _sender(self, path: str, key: Key, deadline: float, fresh: bool) -> Sender:
        self._pool.check()
        young = self._young(key) if fresh else None
        if young is not None:
            return young
        return await self._opening.run(
            (key, fresh), lambda: self._open_sender(path, key, fresh), f"sender {path}", deadline
        )

    async def _send_when_open(self, path: str, key: Key, start: Start, deadline: float, fresh: bool) -> None:
        """Wait for the link and send. Sends that wait for one link are begun in their order when it is there."""
        young = self._young(key) if fresh else None
        if young is not None:
            await start(young)
            return
        begun: asyncio.Future[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((key, fresh), []).append((begun, start))
        try:
            sender = await self._sender(path, key, deadline, fresh)
            await (begun.result() if begun.done() else start(sender))
        finally:
            _leave(begun)

    async def _open_sender(self, path: str, key: Key, fresh: bool) -> Sender:
        async def attach(connection: Connection, left_s: float) -> tuple[Sender, Connection]:
            return await connection.sender(path, timeout_s=left_s, name=key[1]), connection

        before = self._senders.get(key)
        if fresh:
            self._retire_for(path, before)
        try:
            link = await self._open(path, attach, OPENING_TIMEOUT_S, fresh=fresh)
        finally:
            waiting = self._waiting.pop((key, fresh), [])
        link[0].timeout_s = self.timeout_s
        if before is not None and before is self._senders.get(key):
            self._pool.leave(before[0])
        self._make_room()
        self._senders[key] = link
        self._senders.move_to_end(key)
        for begun, start in waiting:
            _begin(begun, start, link[0])
        return link[0]

    def _retire_for(self, path: str, before: tuple[Sender, Connection] | None) -> None:
        """Retire the connection on which the entity's link is, or on which its next one would be."""
        if before is not None:
            suspects = [before[1]]
        else:
            suspects = [connection for connection in self._pool.good if connection.has_room(path)][:1]
        now = _now()
        for suspect in suspects:
            if suspect.loss is None and self._pool.is_stale(suspect, now):
                self._pool.retire(suspect)

    async def _open(
        self, path: str, attach: Callable[[Connection, float], Awaitable[T]], limit_s: float, *, fresh: bool = False
    ) -> T:
        """Attach on a connection with room; once more when an old one turns out to be over, or full."""
        began = _now()
        deadline = began + limit_s
        connection = await self._pool.place(path, deadline, fresh=fresh)
        try:
            return await attach(connection, max(deadline - _now(), 0.0))
        except TransportError:
            if not connection.is_full and (connection.loss is None or connection.opened_at >= began):
                raise
        connection = await self._pool.place(path, deadline, fresh=fresh)
        return await attach(connection, max(deadline - _now(), 0.0))

    def _make_room(self) -> None:
        while len(self._senders) >= self._senders_max:
            idle = next((key for key, link in self._senders.items() if not link[0].in_flight), None)
            if idle is None:
                return
            self._close(self._senders.pop(idle)[0])

    def _close(self, sender: Sender) -> None:
        if sender.over is None:
            self._pool.end(sender.close())

    def _limit(self, timeout_s: float | None) -> float:
        return self.timeout_s if timeout_s is None else timeout_s


def _now() -> float:
    return asyncio.get_running_loop().time()


def _start(
    payload: bytes, message_format: int, silence_s: float | None, deadline: float, sender: Sender
) -> asyncio.Future[None]:
    left_s = max(deadline - _now(), 0.0)
    return sender.send_soon(payload, message_format=message_format, timeout_s=left_s, silence_s=silence_s)


def _was_over_before(sender: Sender, error: TransportError) -> bool:
    """The send failed because its link had ended, with nothing of it transmitted."""
    over = sender.over
    return over is not None and not error.outcome_unknown and type(error) is type(over) and str(error) == str(over)


def _begin(begun: asyncio.Future[asyncio.Future[None]], start: Start, sender: Sender) -> None:
    if begun.done():
        return  # the caller has left
    try:
        begun.set_result(start(sender))
    except TransportError as error:
        begun.set_exception(error)


def _leave(begun: asyncio.Future[asyncio.Future[None]]) -> None:
    """Let go of a send: it is over, or its caller does not wait for it any more."""
    if begun.cancel() or begun.cancelled() or begun.exception() is not None:
        return
    send = begun.result()
    if not send.cancel() and not send.cancelled():
        send.exception()
