"""One connection of a scripted endpoint: what the client does becomes steps, the script says what is done about each.

Each step offers a `_Move`: how to accept here, how to refuse, how to do it without a word. The script picks; `_do`
carries it out, the same for all steps.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.errors import MESSAGE_SIZE_EXCEEDED, ProtocolError
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Delivery,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionFlow,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import Link, ReceiverLink, SenderLink, SentDelivery, address_of
from pairbus.amqp.message import Message
from pairbus.amqp.performatives import ACCEPTED_BYTES, Error, Modified, Rejected, Released
from pairbus.amqp.sasl import SaslServer
from pairbus.amqp.session import Session
from pairbus.amqp.types import Int, Symbol
from pairbus.faults.play.abort import reset_transport
from pairbus.proxy.conversation import PING_CONTENT_TYPE, is_node, path_of
from tests.scripted import script
from tests.scripted.mailbox import Received, split
from tests.scripted.nodes import Responder, attach_receiver, reply_to_request, session_of
from tests.scripted.script import Accept, Action, Occasion, Reject, Silent

if TYPE_CHECKING:
    from tests.scripted.endpoint import ScriptedEndpoint

CREDIT = 1000
BATCH_ENVELOPE_SIZE = 1024  # the SDKs do not count the envelope of a batch against the limit
TICK_S = 5.0
LINGER_S = 1.0  # wait for the client's close after ours
RECEIVE_AND_DELETE = 1  # snd-settle-mode


def kept_path(link: Link) -> str:
    """Return the path to which a link leads, which is kept as its context; empty until it is known."""
    return link.context if isinstance(link.context, str) else ""


def _nothing(*_: Any) -> None:
    pass


@dataclass(slots=True)
class _Move:
    accept: Callable[[], None]
    reject: Callable[[Reject], None] = _nothing
    answer: Callable[[Any], None] = _nothing
    without_a_word: Callable[[], None] = _nothing
    fall_silent: Callable[[], None] = _nothing
    link: Link | None = None
    blocks: bool = False
    "A delay here holds up the whole connection."


class ScriptedPeer(asyncio.Protocol):
    """Server side of one connection."""

    def __init__(self, endpoint: ScriptedEndpoint, number: int) -> None:
        self.number = number
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        properties = {Symbol("product"): "scripted"}
        if endpoint.hides_pings:
            properties[Symbol("com.pairbus:hides-pings")] = True  # type: ignore[assignment]
        settings = ConnectionSettings("scripted", properties=properties)
        self._core = Connection(settings, SaslServer(check=self._on_sasl))
        self._transport: asyncio.Transport | None = None
        self._events: deque[AmqpEvent] = deque()
        self._is_silent = False
        self._is_waiting = False
        "True between two moves of a delay that holds up the connection."
        self._locked: dict[tuple[Session, int], tuple[SenderLink, bytes]] = {}
        self._responder = Responder()
        self._timer: asyncio.TimerHandle | None = None

    # ── the socket ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._endpoint.peers.append(self)
        self._timer = self._loop.call_later(TICK_S, self._tick)
        move = _Move(_nothing, lambda _: self.reset(), fall_silent=self._fall_silent, blocks=True)
        self._step(move, Occasion("connect", self.number))
        self._endpoint.changed()

    def data_received(self, data: bytes) -> None:
        if self._is_silent:
            return
        self._events += self._core.receive_data(data, self._loop.time())
        self._work()
        self._endpoint.changed()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._endpoint.peers.remove(self)
        self._give_back(lambda _: True)
        self._endpoint.changed()

    def flush(self) -> None:
        if self._transport is not None and not self._is_silent and not self._is_waiting:
            self._transport.write(self._core.data_to_send())

    def reset(self) -> None:
        if self._transport is not None:
            reset_transport(self._transport)

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close(self, condition: str, description: str | None) -> None:
        """Close with a reason, and leave the end of the socket to the client for a while."""
        if self._core.state is EndpointState.OFFERED:
            self._core.open()
        if self._core.state is EndpointState.OPEN:
            self._core.close(Error(condition, description))
        self.flush()
        self._loop.call_later(LINGER_S, self.hang_up)

    def _fall_silent(self) -> None:
        self._is_silent = True

    def _tick(self) -> None:
        self._events += self._core.handle_timer(self._loop.time())
        self._work()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    # ── script ──

    def _step(self, move: _Move, occasion: Occasion) -> None:
        self._do(move, self._endpoint.decide(occasion))

    def _do(self, move: _Move, action: Action) -> None:
        match action:
            case Accept():
                move.accept()
            case Reject():
                move.reject(action)
            case script.Answer() | script.Reply():
                move.answer(action)
            case script.Detach():
                self._detach(move, Error(action.condition, action.description))
            case script.Close():
                self.close(action.condition, action.description)
            case Silent():
                move.fall_silent()
            case script.Reset():
                self.reset()
            case script.HangUp():
                self.hang_up()
            case script.LoseAnswer():
                move.without_a_word()
                self._do(move, action.then)
            case script.Delay():
                self._is_waiting = self._is_waiting or move.blocks
                self._loop.call_later(action.seconds, self._go_on, move, action.then)
            case _:
                raise AssertionError(f"no step knows {action}")

    def _go_on(self, move: _Move, action: Action) -> None:
        if self._transport is not None:
            if move.blocks:
                self._is_waiting = False
            self._do(move, action)
            self._work()
            self._endpoint.changed()

    def _detach(self, move: _Move, error: Error) -> None:
        assert move.link is not None, "`on` has checked that the step has a link"
        if move.link.state is EndpointState.OFFERED:
            move.accept()
        if move.link.is_open:
            move.link.detach(error)

    # ── events ──

    def _work(self) -> None:
        while self._events and not self._is_waiting and not self._is_silent:
            self._on_event(self._events.popleft())
        self.flush()

    def _on_event(self, event: AmqpEvent) -> None:
        match event:
            case ConnectionOpened():
                self._on_open()
            case SessionBegun():
                self._on_begin(event.session)
            case LinkAttached():
                if event.link.session.state is EndpointState.OPEN and event.link.state is EndpointState.OFFERED:
                    self._on_attach(event)
            case LinkDetached():
                self._give_back(lambda link: link is event.link)
                if event.link.state is EndpointState.CLOSE_ASKED:
                    event.link.detach(closed=event.closed)
            case LinkFlow() | SessionFlow():
                self.pump()
            case Delivery():
                self._on_delivery(event)
            case Disposed():
                for delivery in event.deliveries:
                    self._on_settlement(event, delivery)
            case ConnectionClosed() | ConnectionFailed():
                self.flush()
                self.hang_up()

    def _on_sasl(self, mechanism: str, response: bytes) -> bool:
        """Called by the core in the middle of its work; an action other than Accept delays its answers."""
        action = self._endpoint.decide(Occasion("sasl", self.number))
        if isinstance(action, Reject):
            return False
        if not isinstance(action, Accept):
            self._is_waiting = True
            move = _Move(_nothing, lambda _: self.reset(), fall_silent=self._fall_silent, blocks=True)
            self._loop.call_soon(self._go_on, move, action)
        return True

    def _on_open(self) -> None:
        def accept() -> None:
            if self._core.state is EndpointState.OFFERED:
                self._core.open()

        move = _Move(accept, lambda no: self.close(no.condition, no.description), blocks=True)
        self._step(move, Occasion("open", self.number))

    def _on_begin(self, session: Session) -> None:
        def accept() -> None:
            if session.state is EndpointState.OFFERED:
                session.begin()

        def reject(no: Reject) -> None:
            accept()
            if session.state is EndpointState.OPEN:
                session.end(Error(no.condition, no.description))

        self._step(_Move(accept, reject, blocks=True), Occasion("begin", self.number))

    def _on_attach(self, event: LinkAttached) -> None:
        link, attach = event.link, event.attach
        client_sends = isinstance(link, ReceiverLink)
        path = path_of(address_of(attach.target if client_sends else attach.source))

        def accept() -> None:
            if link.state is not EndpointState.OFFERED:
                return
            link.context = path
            if isinstance(link, ReceiverLink):
                limit = self._endpoint.size_limit(path)
                link.attach(
                    source=attach.source,
                    target=attach.target,
                    snd_settle_mode=attach.snd_settle_mode,
                    rcv_settle_mode=attach.rcv_settle_mode,
                    max_message_size=limit,
                )
                link.max_message_size = limit + BATCH_ENVELOPE_SIZE
                link.keep_credit(CREDIT)
            elif isinstance(link, SenderLink):
                attach_receiver(link, attach, self._endpoint.mailbox.waiting(path))
                self.pump()

        def reject(no: Reject) -> None:
            if link.state is EndpointState.OFFERED:
                link.refuse(Error(no.condition, no.description))

        move = _Move(accept, reject, without_a_word=accept, link=link)
        self._step(move, Occasion("attach", self.number, path, client_sends))

    def _on_delivery(self, delivery: Delivery) -> None:
        path = kept_path(delivery.link)
        if not path:
            return
        try:
            if delivery.too_large:
                raise ProtocolError(MESSAGE_SIZE_EXCEEDED, "The message is larger than the link allows.")
            if is_node(path):
                self._on_request(delivery, path, Message.decode(delivery.payload))
            else:
                self._on_transfer(delivery, path, split(delivery.payload, delivery.message_format))
        except ProtocolError as error:
            self._settle(delivery, Rejected(Error(error.condition, error.description)).encode())

    def _settle(self, delivery: Delivery, state: bytes, settled: bool = True) -> None:
        if not delivery.settled:
            delivery.link.settle(delivery.delivery_id, delivery.delivery_id, state, 1, settled=settled)

    def _on_transfer(self, delivery: Delivery, path: str, messages: tuple[bytes, ...]) -> None:
        is_ping = PING_CONTENT_TYPE in delivery.payload
        received = Received(path, delivery.payload, delivery.message_format, messages, is_ping, self.number)
        self._endpoint.mailbox.received.append(received)

        def store() -> None:
            received.stored = True
            if not (is_ping and self._endpoint.hides_pings):
                self._endpoint.mailbox.store(path, messages)
                self._endpoint.pump()

        def accept() -> None:
            store()
            self._settle(delivery, ACCEPTED_BYTES)

        def answer(action: script.Answer) -> None:
            if action.stores:
                store()
            self._settle(delivery, _encoded(action.state), action.settled)

        move = _Move(
            accept,
            lambda no: self._settle(delivery, Rejected(Error(no.condition, no.description)).encode()),
            answer,
            without_a_word=store,
            link=delivery.link,
        )
        occasion = Occasion(
            "transfer", self.number, path, True, delivery.payload, delivery.message_format, is_ping=is_ping
        )
        self._step(move, occasion)

    def _on_request(self, delivery: Delivery, path: str, request: Message) -> None:
        """Take a request to `$cbs` or `$management`. The script decides whether it is answered."""
        self._settle(delivery, ACCEPTED_BYTES)
        operation = str(request.property("operation") or "")
        respond = partial(self._responder.respond, delivery.link, request)
        if path == "$cbs":
            audience = str(request.property("name") or "")
            self._endpoint.tokens.append((audience, request.property("type"), request.body))
            move = _Move(
                lambda: respond(_token_status(202, "Accepted"), None),
                lambda no: respond(_token_status(no.status or 401, no.description or no.condition), None),
                link=delivery.link,
            )
            self._step(move, Occasion("token", self.number, path_of(audience), operation=operation))
            return
        entity = path.removesuffix("/$management")
        self._endpoint.requests.append((entity, operation, request.body))

        def answer(reply: script.Reply) -> None:
            properties: dict[str, Any] = {"statusCode": Int(reply.status), "statusDescription": reply.description}
            if reply.condition is not None:
                properties["errorCondition"] = Symbol(reply.condition)
            respond(properties, reply.body)

        def carry_out() -> script.Reply:
            return reply_to_request(self._endpoint.mailbox, entity, operation, request.body)

        def reject(no: Reject) -> None:
            answer(script.Reply(no.status or 500, None, no.condition, no.description or no.condition))

        def without_a_word() -> None:
            carry_out()

        move = _Move(lambda: answer(carry_out()), reject, answer, without_a_word, link=delivery.link)
        self._step(move, Occasion("request", self.number, entity, True, delivery.payload, operation=operation))

    def _on_settlement(self, event: Disposed, delivery: SentDelivery) -> None:
        session, state, path = event.session, event.state, kept_path(delivery.link)
        outcome = getattr(state, "NAME", "none")
        self._endpoint.settlements.append((path, outcome))
        key = session, delivery.delivery_id

        def carry_out() -> None:
            comes_again = isinstance(state, Released) or (isinstance(state, Modified) and not state.undeliverable_here)
            if comes_again or state is None:
                self._give_back_one(key)
            else:
                self._locked.pop(key, None)

        def say(answer: bytes, settled: bool = True) -> None:
            if not event.settled and settled:
                session.settle_sent(delivery.delivery_id, delivery.delivery_id, answer)

        def accept() -> None:
            carry_out()
            # The answer to a successful dead-lettering has no error: with one, the SDKs would raise.
            say(Rejected().encode() if isinstance(state, Rejected) else _encoded(state))

        def reject(no: Reject) -> None:
            self._give_back_one(key)
            say(Rejected(Error(no.condition, no.description)).encode())

        move = _Move(accept, reject, lambda other: say(_encoded(other.state)), carry_out, link=delivery.link)
        self._step(move, Occasion("settlement", self.number, path, False, operation=outcome))

    # ── to receivers ──

    def links(self, path: str | None = None) -> list[Link]:
        """The open links to entities, or to one of them."""
        found = [link for session in self._core.sessions for link in session.links if link.is_open and kept_path(link)]
        return [link for link in found if (kept_path(link) == path if path else not is_node(kept_path(link)))]

    def pump(self) -> None:
        """Deliver waiting messages, as far as credit goes; answer drains."""
        self._responder.pump()
        now_ms = time.time_ns() // 1_000_000
        for link in self.links():
            if not isinstance(link, SenderLink):
                continue
            waiting = self._endpoint.mailbox.waiting(kept_path(link))
            while link.sendable and (payload := session_of(link).take(waiting)) is not None:
                message, token = self._endpoint.mailbox.as_delivery(payload, now_ms)
                for_good = link.remote_attach is not None and link.remote_attach.snd_settle_mode == RECEIVE_AND_DELETE
                delivery_id = link.send(message, token, settled=for_good)
                if not for_good:
                    self._locked[link.session, delivery_id] = link, payload
            if link.drain:
                link.drained()
        self.flush()

    def _give_back_one(self, key: tuple[Session, int]) -> None:
        link, payload = self._locked.pop(key, (None, b""))
        if link is not None:
            self._endpoint.mailbox.waiting(kept_path(link)).appendleft(payload)

    def _give_back(self, of_link: Callable[[Link], bool]) -> None:
        """Put deliveries that were not settled back into the mailbox."""
        for key in [key for key, (link, _) in self._locked.items() if of_link(link)][::-1]:
            self._give_back_one(key)


def _encoded(state: Any) -> bytes:
    return state if isinstance(state, bytes) else bytes(state.encode()) if state is not None else b"\x40"


def _token_status(code: int, description: str) -> dict[str, Any]:
    return {"status-code": Int(code), "status-description": description}
