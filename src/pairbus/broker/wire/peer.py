"""One AMQP client of a namespace: events of the core become calls on handlers of links (`LinkHandler`), and one flush
per turn of the event loop.

Order. An acceptance, the answer to a settlement and the answer to a request leave when their commit is done; commits
are done in the order in which they were asked for, so the frames of a connection keep the order of their causes. A
detach is answered behind the same barrier: when a client gets the answer, all its requests on that link are decided.

Memory. A client that sends faster than the disk takes it is not read from (`arrivals`); a client that does not
read the messages that it asked for gets no more (`is_choked`), and if it still sends requests, it is not read from
either. The sums over all clients are in budget.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pairbus.amqp.connection import Connection, Trace
from pairbus.amqp.errors import CONNECTION_FORCED, DETACH_FORCED, UNAUTHORIZED_ACCESS
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Delivery,
    DeliveryAborted,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    SessionFlow,
    TransactionalDelivery,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import Link
from pairbus.amqp.performatives import Error, Rejected
from pairbus.amqp.sasl import SaslServer
from pairbus.broker.entities.transactions import Transactions
from pairbus.broker.refusal import Refusal
from pairbus.broker.strict import Idle, IdleWatch, settings_of, track, tracked
from pairbus.broker.wire.cbs import GRANTS_MAX, CbsNode, Grants
from pairbus.broker.wire.inlet import Inlet
from pairbus.broker.wire.link_handler import EntityLink, end_of
from pairbus.broker.wire.outlet import Outlet
from pairbus.broker.wire.peer_memory import Arrivals, PeerWire, Unfinished
from pairbus.broker.wire.requests import RequestLink, ResponseLink
from pairbus.broker.wire.router import attach_link, check_audience, right_of
from pairbus.broker.wire.session_links import Applicant

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker")

UNFLUSHED_BYTES_MAX = 256 << 10  # written in one turn before the socket is asked whether it takes more
UNREAD_BYTES_MAX = 4 << 20  # written to a client that does not read: after that it is not read from
TOKEN_DEADLINE_S = 20.0  # the real service drops a connection that shows no token for 20 s
TICK_S = 5.0
TICK_MIN_S = 0.01
LINGER_S = 2.0  # after our close, time for the client to read it and close too


class Peer:
    """One connection."""

    def __init__(
        self, namespace: Namespace, wire: PeerWire, loop: asyncio.AbstractEventLoop, trace: Trace | None = None
    ) -> None:
        self.namespace = namespace
        self.strictness = strictness = namespace.strictness
        self.grants = Grants(strictness.token_max or GRANTS_MAX)
        self.is_choked = False
        "True while the client does not read the messages that it asked for."
        self.is_over = False
        "True when the connection is over: no more reads or writes."
        self._wire = wire
        self._loop = loop
        self._cbs = CbsNode(
            namespace.keys, self.grants, self._reschedule_tick, namespace.real_ms, partial(check_audience, self)
        )
        budget = namespace.budget
        self.locked = budget.locked.share()
        "Locks and unsettled deliveries of this client."
        self.transactions = Transactions(namespace.store, budget.undecided.share())
        self.arrivals = Arrivals(budget.arriving.share(), lambda: self._pause("held"), lambda: self._resume("held"))
        self._leaving = budget.leaving
        self._is_leaving = False
        "True while bytes of this client count as leaving."
        self.answer_bytes = 0
        "Bytes of answers that wait until the client gives credit or reads."
        self._unfinished = Unfinished(self, budget.unfinished)
        self._unflushed_bytes = self._unread_bytes = 0
        self._is_flush_scheduled = False
        self._pauses: set[str] = set()
        "Reasons why the client is not read from: `held`, `unread`, `turn`, `stopping`."
        self._runs: list[Inlet | Outlet] = []
        self._started_s = loop.time()
        self._idle: IdleWatch | None = None
        self._tick_s = TICK_S
        self._set_idle(namespace.faults.idle)
        settings = replace(settings_of(strictness, namespace.name), word_error=self._worded)
        self._connection = Connection(settings, SaslServer(check=self._check_sasl), trace=trace)
        self._timer = loop.call_later(self._tick_s, self._tick)
        namespace.peers.add(self)

    def __repr__(self) -> str:
        remote = self._connection.remote_open
        return f"<Peer {remote.container_id if remote is not None else 'unopened'!r} of {self.namespace.name}>"

    @property
    def dialled_host(self) -> str:
        """The name by which the client called this host, without a port."""
        remote = self._connection.remote_open
        hostname = "" if remote is None else remote.hostname or ""
        return urlsplit(f"//{hostname}").hostname or hostname

    # ── from the wire ──

    def data_received(self, data: bytes) -> None:
        if self.is_over:
            return
        now_ms = self.namespace.now_ms()
        for event in self._connection.receive_data(data, self._loop.time()):
            if type(event) is Delivery:
                end = end_of(event.link)
                if end is not None:
                    end.on_delivery(event, now_ms)
                continue
            if self._runs and type(event) is not Disposed:
                self._submit_runs(now_ms)
            _HANDLERS[type(event)](self, event)
        if self._runs:
            self._submit_runs(now_ms)
        if self._connection.partial_bytes != self._unfinished.size:
            self._unfinished.note(self._connection.partial_bytes)
        self.flush()

    def submit_later(self, end: Inlet | Outlet) -> None:
        """Submit the messages or completions that an end gathers, before any other event is handled."""
        self._runs.append(end)

    def _submit_runs(self, now_ms: int) -> None:
        runs, self._runs = self._runs, []
        for end in runs:
            end.submit(now_ms)
            self.namespace.changed(end.entity)

    def pause_writing(self) -> None:
        self.is_choked = True

    def resume_writing(self) -> None:
        self.is_choked = False
        self._unread_bytes = 0
        self._resume("unread")
        self._wake_links()
        self._reschedule_tick()  # a connection that was frozen owes its client a sign of life

    def connection_lost(self, error: Exception | None = None) -> None:
        self.is_over = True
        self._timer.cancel()
        self._leave()
        self._leaving.note_size(self, 0)
        self._unfinished.note(0)
        self.arrivals.close()
        self.namespace.peers.discard(self)

    def _leave(self) -> None:
        """Stop taking messages out of any queue, and roll back open transactions."""
        for session in self._connection.sessions:
            self._close_ends(session.links)

    # ── to the wire ──

    def flush_soon(self, size: int = 0) -> None:
        """Flush at the end of this turn; or now, when `size` bytes more are too much to gather."""
        self._unflushed_bytes += size
        if self._unflushed_bytes > UNFLUSHED_BYTES_MAX:
            self.flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        if self.is_over:
            return
        self._unflushed_bytes = 0
        if self._connection.has_output:
            data = self._connection.data_to_send()
            self._wire.write(data)
            if self.is_choked:
                self._unread_bytes += len(data)
                if self._unread_bytes > UNREAD_BYTES_MAX:
                    self._pause("unread")
            unread = self.held_bytes()
            if unread or self._is_leaving:
                self._is_leaving = unread > 0
                self._leaving.note_size(self, unread)

    def held_bytes(self) -> int:
        """Return the bytes that the client has not read, and those of answers that wait."""
        return self._wire.get_write_buffer_size() + self.answer_bytes

    def give_up(self) -> None:
        """Cut the client, because memory is short and it has not read for longer than others."""
        logger.warning("%s: cut, because %d bytes wait for it and it does not read", self, self.held_bytes())
        self.cut()

    def stop_reading(self) -> None:
        self._pause("stopping")

    def stop_reading_until_read(self) -> None:
        self._pause("unread")

    def wait_for_turn(self, waits: bool) -> None:
        (self._pause if waits else self._resume)("turn")

    def _pause(self, why: str) -> None:
        if not self._pauses and not self.is_over:
            self._wire.pause_reading()
        self._pauses.add(why)

    def _resume(self, why: str) -> None:
        if why in self._pauses:
            self._pauses.discard(why)
            if not self._pauses and not self.is_over:
                self._wire.resume_reading()

    def close(self, condition: str, description: str) -> None:
        """Tell the client why, and close the connection."""
        if not self.is_over:
            if self._connection.state is EndpointState.OFFERED:
                self._connection.open()
            if self._connection.state is EndpointState.OPEN:
                self._connection.close(self._worded(Error(condition, description)))
            self._hang_up()

    def _hang_up(self) -> None:
        """Write the last bytes, and wait a while for the client to close the socket.

        A socket that is closed with unread bytes in it is reset, and a client that is writing then gets an error before
        it has read our last frames: acceptances, deliveries that are deleted here, and why we close.
        """
        self.flush()
        self.is_over = True
        self._leave()
        if self._pauses:
            self._wire.resume_reading()
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._wire.abort)

    def cut(self) -> None:
        """End the connection without a close frame."""
        self.is_over = True
        self._wire.abort()

    # ── faults ──

    def watch_idle(self, idle: Idle | None) -> None:
        """Close links and connections that are idle by these times from now on."""
        self._set_idle(idle)
        self._reschedule_tick()

    def _set_idle(self, idle: Idle | None) -> None:
        self._idle = None if idle is None else IdleWatch(idle, self.namespace.real_ms())
        self._tick_s = (
            TICK_S if idle is None else max(min(TICK_S, idle.sender_s / 2, idle.connection_s / 2), TICK_MIN_S)
        )

    # ── the words of errors ──

    def _worded(self, error: Error) -> Error:
        return tracked(error, *self._system()) if self.strictness.tracks_errors else error

    def _system(self) -> tuple[str, int]:
        return f"{self.namespace.name}:broker", self.namespace.real_ms()

    def error_of(self, refusal: Refusal) -> Error:
        return self._worded(Error(refusal.condition, refusal.description))

    def refused(self, refusal: Refusal) -> bytes:
        """Encode a `rejected` with the error of the refusal."""
        return Rejected(error=self.error_of(refusal)).encode()

    def text_of(self, description: str) -> str:
        """Return the text of an error that is told in an answer instead of an AMQP error."""
        return track(description, *self._system()) if self.strictness.tracks_errors else description

    # ── rights and time ──

    def call_later(self, delay_s: float, step: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, step)

    def allows(self, path: str, right: str | None) -> bool:
        return self.grants.allows(path, right, self.namespace.real_ms() / 1000)

    def _check_sasl(self, mechanism: str, response: bytes) -> bool:
        """Check SASL: ANONYMOUS and the like are accepted, because tokens decide; PLAIN carries a key's name and
        key."""
        if mechanism != "PLAIN":
            return True
        parts = response.split(b"\x00")
        if len(parts) != 3:
            return False
        grant = self.namespace.keys.login(parts[1].decode("utf-8", "replace"), parts[2].decode("utf-8", "replace"))
        if grant is None:
            return False
        self.grants.put("sasl-plain", grant)
        return True

    def _reschedule_tick(self) -> None:
        if self.is_over:
            return
        self._timer.cancel()
        expiry_s = self.grants.next_expiry_s()
        delay_s = self._tick_s
        wanted_s = self._connection.next_timer()
        if wanted_s is not None:
            delay_s = min(delay_s, max(wanted_s - self._loop.time(), 0.001))
        if not self.grants:
            delay_s = min(delay_s, max(self._started_s + TOKEN_DEADLINE_S - self._loop.time(), 0.0) + 0.01)
        if expiry_s is not None:
            delay_s = min(delay_s, max(expiry_s - self.namespace.real_ms() / 1000, 0.0) + 0.01)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        if self._wire.is_frozen:  # a client that is not read from is not silent
            self._timer = self._loop.call_later(TICK_S, self._tick)
            return
        now = self._loop.time()
        for event in self._connection.handle_timer(now):
            _HANDLERS[type(event)](self, event)
        if not self.grants and now - self._started_s > TOKEN_DEADLINE_S:
            self.close(UNAUTHORIZED_ACCESS, f"No valid token was put within {TOKEN_DEADLINE_S:.0f} seconds.")
        elif self.grants.drop_expired(self.namespace.real_ms() / 1000):
            self._drop_unauthorised_links()
        if self._idle is not None and not self.is_over:
            self._end_idle(self._idle)
        self.transactions.run_due(self.namespace.now_ms())
        self.flush()
        self._reschedule_tick()

    def _end_idle(self, watch: IdleWatch) -> None:
        links = [
            (link, link.context.used_ms if isinstance(link.context, Inlet) else None)
            for link in self.links()
            if (link.is_open and link.context is not None and not self.is_token_link(link))
            or (isinstance(link.context, Applicant) and not link.session.is_over)
        ]
        idle, is_forsaken = watch.look(links, self.namespace.real_ms())
        for link in idle:
            text = f"The link '{link.name}' is force detached. Details: AmqpMessagePublisher.IdleTimerExpired."
            self.detach(link, Refusal(DETACH_FORCED, text))
        if is_forsaken and self._connection.is_open:
            text = "The connection was inactive for too long: it has no active links."
            for session in self._connection.sessions:
                for link in session.links:
                    self.detach(link, Refusal(CONNECTION_FORCED, text))
                if session.state is EndpointState.OPEN:
                    session.end(self._worded(Error(CONNECTION_FORCED, text)))
            self.close(CONNECTION_FORCED, text)

    def _drop_unauthorised_links(self) -> None:
        for link in self.links():
            end = end_of(link)
            paths = end.paths if isinstance(end, EntityLink) else ()
            lost = next((path for path in paths if not self.allows(path, right_of(link))), None)
            if isinstance(end, EntityLink) and lost is not None:
                end.end(self.expired(link, lost))

    def expired(self, link: Link, path: str) -> Refusal:
        text = f"The token for '{path}' has expired."
        if not self.strictness.asks_for_renewal:
            return Refusal(UNAUTHORIZED_ACCESS, text)
        return Refusal(DETACH_FORCED, f"The link '{link.name}' is force detached. {text} Code: RenewToken.")

    # ── links ──

    def links(self) -> Iterator[Link]:
        for session in self._connection.sessions:
            yield from session.links

    def is_token_link(self, link: Link) -> bool:
        """Return whether the link is one of the pair on which tokens are put."""
        return isinstance(link.context, RequestLink | ResponseLink) and link.context.node is self._cbs

    def detach(self, link: Link, refusal: Refusal) -> None:
        """End a link from our side: its token expired, or its queue is gone or disabled."""
        if link.is_open:
            self._close_ends([link])
            link.detach(self.error_of(refusal))
            self.flush_soon()

    def _close_ends(self, links: list[Link]) -> None:
        for link in links:
            end = end_of(link)
            if end is not None:
                self.namespace.links.discard(link)
                end.close()

    def wake_receivers(self) -> None:
        """Note that receivers may get messages again: the budget has room."""
        for link in self.links():
            if isinstance(link.context, Outlet) and not self.is_over:
                link.context.wake()

    def _wake_links(self) -> None:
        now_ms = self.namespace.now_ms()
        for link in self.links():
            end = end_of(link)
            if end is not None:
                end.on_readable(now_ms)

    # ── events ──

    def _on_opened(self, event: ConnectionOpened) -> None:
        if self._connection.state is EndpointState.OFFERED:
            self._connection.open()
            self._reschedule_tick()  # the client may want heartbeats more often than we tick

    def _on_begun(self, event: SessionBegun) -> None:
        if event.session.state is EndpointState.OFFERED:
            event.session.begin()

    def _on_attached(self, event: LinkAttached) -> None:
        link = event.link
        try:
            if link.state is EndpointState.OFFERED:
                attach_link(self, link, event.attach, self._cbs)
            else:  # the client withdrew before we could answer
                raise Refusal(DETACH_FORCED, "The link was detached before it was attached.")
        except Refusal as refusal:
            logger.info("%s: link to %r refused: %s", self, event.attach.name, refusal)
            link.refuse(self.error_of(refusal), bare=self.strictness.bare_refusals)

    def _on_detached(self, event: LinkDetached) -> None:
        link = event.link
        if isinstance(link.context, Applicant):
            link.context.withdrawn()
            return
        self._close_ends([link])
        if link.state is EndpointState.CLOSE_ASKED:

            def answer(error: StoreError | None) -> None:
                if link.state is EndpointState.CLOSE_ASKED and link.session.state is EndpointState.OPEN:
                    link.detach(closed=event.closed)
                    self.flush_soon()

            self.namespace.store.after_commit(answer)

    def _on_transactional(self, event: TransactionalDelivery) -> None:
        end = end_of(event.link)
        if end is not None:
            end.on_transactional(event, self.namespace.now_ms())

    def _on_flow(self, event: LinkFlow) -> None:
        end = end_of(event.link)
        if end is not None:
            end.on_flow()

    def _on_session_flow(self, event: SessionFlow) -> None:
        for link in event.session.links:
            end = end_of(link)
            if end is not None:
                end.on_window()

    def _on_aborted(self, event: DeliveryAborted) -> None:
        end = end_of(event.link)
        if end is not None:
            end.on_aborted()

    def _on_disposed(self, event: Disposed) -> None:
        now_ms = self.namespace.now_ms()
        deliveries = event.deliveries
        start = 0
        for at in range(1, len(deliveries) + 1):  # runs of deliveries on one link; almost always there is one
            if at == len(deliveries) or deliveries[at].link is not deliveries[start].link:
                end = end_of(deliveries[start].link)
                if end is not None:
                    end.on_disposed(event.session, deliveries[start:at], event.settled, event.state, now_ms)
                start = at

    def _on_ended(self, event: SessionEnded) -> None:
        self._close_ends(event.session.links)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            logger.info("%s closed by the client: %s %s", self, event.error.condition, event.error.description)
        self._hang_up()
        self._wire.close()

    def _on_failed(self, event: ConnectionFailed) -> None:
        warn = logger.warning if self.grants else self.namespace.strangers.warning
        warn("%s: %s", self, event.error)
        self._hang_up()


_HANDLERS: dict[type[AmqpEvent], Callable[[Peer, Any], None]] = {
    ConnectionOpened: Peer._on_opened,
    SessionBegun: Peer._on_begun,
    LinkAttached: Peer._on_attached,
    LinkDetached: Peer._on_detached,
    TransactionalDelivery: Peer._on_transactional,
    LinkFlow: Peer._on_flow,
    SessionFlow: Peer._on_session_flow,
    DeliveryAborted: Peer._on_aborted,
    Disposed: Peer._on_disposed,
    SessionEnded: Peer._on_ended,
    ConnectionClosed: Peer._on_closed,
    ConnectionFailed: Peer._on_failed,
}
