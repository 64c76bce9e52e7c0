"""The way to one namespace: connections and links are opened when they are needed, and again after a loss.

    carrier = Carrier("Endpoint=sb://…")
    await carrier.send("orders", payload, timeout_s=60)     # connects, attaches, sends; the next call only sends
    sender = await carrier.sender("orders")                 # the link itself, for callers with many sends in flight

Laws of this file.
 1. One connect at a time, and one attach at a time for each link: later callers share it.
 2. A call is repeated only when the peer had ended an idle link or connection: one that was over before any byte of
    the call was transmitted is opened again, once. Any other failure is raised, and the next call begins anew.
 3. A caller that gives up, by deadline or cancellation, does not end the attempt for the others.
 4. The caller's time-out limits a call; in each step of an opening the peer may be silent for `connect_timeout_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from functools import partial
from types import TracebackType
from typing import Literal, Self

from pairbus.amqp.settings import Trace
from pairbus.transport.carrier.pool import Pool
from pairbus.transport.carrier.senders import Senders
from pairbus.transport.connection.client_connection import CREDIT, ClientConnection, Mode, connect
from pairbus.transport.connection.dial import Ssl
from pairbus.transport.connection.endpoint import Endpoint
from pairbus.transport.errors import TransportError
from pairbus.transport.links.management import Management
from pairbus.transport.links.receiver import Receiver
from pairbus.transport.links.sender import LARGE, Sender
from pairbus.transport.links.session_filter import Wanted
from pairbus.transport.times import CLOSE_TIMEOUT_S, IDLE_TIME_OUT_S, OPENING_TIMEOUT_S, SILENCE_S, TIMEOUT_S

HIDES_PINGS = "com.pairbus:hides-pings"
SENDERS_MAX = 2048  # links kept open; the least recently used one is closed for a new one


class Carrier:
    """The way to one namespace. Belongs to one event loop; safe to share between its tasks.

    `user_agent` stands in front of ours in the open. `trace` is told of every frame, without tokens and bodies:
    `pairbus.transport.connection.trace.log_frames` writes them to the log.
    """

    def __init__(  # noqa: PLR0913 - the options of each connection that it opens
        self,
        endpoint: Endpoint | str,
        *,
        credential: object | None = None,
        ssl: Ssl = None,
        connect_timeout_s: float = SILENCE_S,
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
        "Default time-out of a call, and of the links."
        self.connect_timeout_s = connect_timeout_s
        "Longest silence of the peer in each step of opening a connection or a link."
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        open_connection = partial(
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
        )
        self._pool = Pool(where, lambda hearing: open_connection(hearing=hearing))
        self._senders = Senders(self._pool, where, senders_max, timeout_s)

    def __repr__(self) -> str:
        state = "connected" if self.is_connected else "not connected"
        return f"<Carrier {self.endpoint.host}:{self.endpoint.port} {state} senders={len(self._senders.links)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """True when a connection is open that takes new links."""
        return bool(self._pool.good)

    async def send(  # noqa: PLR0913 - the limits of one call, which differ from send to send
        self,
        path: str,
        payload: bytes,
        *,
        message_format: int = 0,
        timeout_s: float | None = None,
        silence_s: float | None = None,
        opening_s: float = math.inf,
        name: str | None = None,
        fresh: bool = False,
        by: object = None,
    ) -> None:
        """Send one encoded message to the entity and return when the peer has accepted it.

        The link is found or opened; one that the service ended before any byte of this send was transmitted is opened
        again, once. `name` is that of the AMQP link: the same path under two names has two links. `silence_s` is passed
        to `Sender.send`; `opening_s` is the longest silence in each step of an opening, as far as it is shorter than
        `connect_timeout_s`. `by` is the caller: its sends reach the wire in their order, and pass large messages of
        other callers, on a spare link.

        `fresh` is for the retry of a send that failed quickly. The link must be on a connection that was opened within
        the last two seconds: all such callers share one, which is opened if needed. The connection on which the link
        was until now is retired, unless it is lost: it takes no new links, sends in flight and links of other entities
        go on there undisturbed, and it is closed when its last link is gone. When three retired connections are still
        in use, the link is opened on any connection.
        """
        if timeout_s is None:
            timeout_s = self.timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        start = partial(_start, payload, message_format, silence_s, deadline, by)
        key, senders = (path.lower(), name, 0), self._senders
        known = None if fresh else senders.known(key)
        if not fresh and (senders.on_spares or (known is not None and known.large)):
            spare = senders.key_for(key, by)
            if spare != key:
                await senders.send_on_spare(path, spare, start, deadline, self._shorter(opening_s), by)
                return
        if known is not None:
            if by is not None and len(payload) > LARGE:
                senders.open_spare(path, key)
            try:
                await start(known)
                return
            except TransportError as error:
                if not _was_over_before(known, error):
                    raise
        await senders.send(path, key, start, deadline, self._shorter(opening_s), fresh=fresh, by=by)

    async def sender(
        self,
        path: str,
        timeout_s: float | None = None,
        *,
        opening_s: float = math.inf,
        name: str | None = None,
        fresh: bool = False,
    ) -> Sender:
        """Return the link that sends to the entity: all callers share one link while it is good.

        `opening_s`, `name` and `fresh` as in `send`.
        """
        key = (path.lower(), name, 0)
        known = None if fresh else self._senders.known(key)
        if known is not None:
            return known
        deadline = self._deadline(timeout_s)
        return await self._senders.opened(path, key, deadline, fresh=fresh, silence_s=self._shorter(opening_s))

    async def receiver(
        self,
        path: str,
        *,
        mode: Mode = "peek-lock",
        credit: int = CREDIT,
        sub_queue: Literal["dead-letter"] | None = None,
        timeout_s: float | None = None,
        session: Wanted | None = None,
        identifier: str | None = None,
    ) -> Receiver:
        """Open a receiving link, which the caller closes; `session` and `identifier` as in `ClientConnection`."""

        def attach(connection: ClientConnection, left_s: float) -> Awaitable[Receiver]:
            return connection.receiver(
                path,
                mode=mode,
                credit=credit,
                sub_queue=sub_queue,
                timeout_s=left_s,
                session=session,
                identifier=identifier,
            )

        return await self._pool.attach(path, attach, self._deadline(timeout_s))

    async def management(self, path: str, timeout_s: float | None = None, *, opening_s: float = math.inf) -> Management:
        """Return the `$management` node of the entity: the same object for every call while its links are good.

        `opening_s` as in `send`.
        """

        def attach(connection: ClientConnection, left_s: float) -> Awaitable[Management]:
            return connection.management(path, timeout_s=left_s, silence_s=self._shorter(opening_s))

        return await self._pool.attach(path, attach, self._deadline(timeout_s), silence_s=self._shorter(opening_s))

    async def connection(self, timeout_s: float | None = None) -> ClientConnection:
        """Return a connection, opened if needed."""
        return await self._pool.any(self._deadline(timeout_s))

    async def hides_pings(self, timeout_s: float | None = None) -> bool:
        """Return True when the broker announces that no receiver ever sees a ping."""
        connection = await self.connection(timeout_s)
        return bool(connection.peer_properties.get(HIDES_PINGS))

    def batch_limit(self, path: str) -> int:
        """Return the largest batch of the entity, as its last link told; 0 when no link was open yet."""
        return self._senders.limits.get(path.lower(), (0, 0))[0]

    def message_limit(self, path: str) -> int:
        """Return the largest message of the entity; 0 when no link was open yet, or the peer did not tell."""
        return self._senders.limits.get(path.lower(), (0, 0))[1]

    def forget(self, path: str, name: str | None = None) -> None:
        """Make the next `sender(path)` a new link. Sends in flight on the old one, or in its line, end there."""
        self._senders.forget(path.lower(), name)

    async def drop(self) -> None:
        """Abandon every connection: the next call opens a fresh one. Sends in flight have an unknown outcome."""
        self._senders.clear()
        await self._pool.drop()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close for good, waiting at most `timeout_s` for the peer; every later call raises ConnectionLost."""
        self._senders.clear()
        await self._pool.close(timeout_s)

    def _shorter(self, opening_s: float) -> float:
        """Return the limit of a caller if the opening itself, which other callers may share, has a longer one."""
        return opening_s if opening_s < self.connect_timeout_s else math.inf

    def _deadline(self, timeout_s: float | None) -> float:
        return asyncio.get_running_loop().time() + (self.timeout_s if timeout_s is None else timeout_s)


def _start(
    payload: bytes, message_format: int, silence_s: float | None, deadline: float, by: object, sender: Sender
) -> asyncio.Future[None]:
    left_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
    return sender.send_soon(payload, message_format=message_format, timeout_s=left_s, silence_s=silence_s, by=by)


def _was_over_before(sender: Sender, error: TransportError) -> bool:
    """Return True when the send failed because its link had ended before any byte was transmitted."""
    over = sender.over
    return over is not None and not error.outcome_unknown and type(error) is type(over) and str(error) == str(over)
