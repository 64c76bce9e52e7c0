"""Faults of operations: links that are attached, messages that are sent, handed out and settled, requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import DETACH_FORCED
from pairbus.amqp.events import Delivery
from pairbus.amqp.link import ReceiverLink, SentDelivery
from pairbus.amqp.message import Message
from pairbus.amqp.session import Session
from pairbus.auth.sas import LISTEN, MANAGE, SEND
from pairbus.broker.entities.draft import Draft
from pairbus.broker.outages.refusals import refusal_by
from pairbus.broker.refusal import Refusal
from pairbus.broker.wire.link_handler import entity_link_of
from pairbus.faults import Active, Place

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.broker.outages import NamespaceFaults
    from pairbus.broker.wire.dispatch import Taker
    from pairbus.broker.wire.inlet import Inlet
    from pairbus.broker.wire.link_handler import EntityLink
    from pairbus.broker.wire.outlet import Outlet
    from pairbus.broker.wire.requests import Answering, RequestLink

DIRECTION_OF = {SEND: "send", LISTEN: "receive", MANAGE: "manage"}
"Direction by the right that an operation needs."
DETACHES = ("restart", "disable")
"Kinds that end links at once, without waiting for an operation."


class OperationFaults:
    """Faults that act on links, messages and requests."""

    def __init__(self, owner: NamespaceFaults, namespace: Namespace) -> None:
        self._owner = owner
        self._namespace = namespace

    def _refusal(self, one: Active | None, entity: str, direction: str) -> Refusal:
        """Return the refusal by a fault; None: the refusal by the load limit."""
        kind = "throttle" if one is None else one.fault.kind.name
        return refusal_by(kind, self._namespace.name, entity, direction)

    # ── links ──

    def begin(self, one: Active) -> None:
        """Detach links that the fault does not allow, and end the waits of requests over HTTP.

        A sender of a disabled entity is told in the answer to its send, as without a fault.
        """
        if one.fault.kind.name in DETACHES and one.fault.is_certain:
            for link in list(self._namespace.links):
                end = entity_link_of(link)
                direction = "send" if isinstance(link, ReceiverLink) else "receive"
                is_spared = direction == "send" and one.fault.kind.name == "disable"
                if not is_spared and direction in one.fault.directions and one.concerns(end.entity.path):
                    self._detach(end, one, direction)
            waiting = self._namespace.waiting_requests
            for entity in waiting.entities():
                if "receive" in one.fault.directions and one.concerns(entity.path):
                    waiting.turn_away(entity, self._refusal(one, entity.path, "receive"))

    def _detach(self, end: EntityLink, one: Active, direction: str) -> None:
        path = end.entity.path
        refusal = self._refusal(one, path, direction)
        if one.fault.kind.name == "restart":
            text = f"The link '{end.link.name}' is force detached. Details: the entity '{path}' is restarted."
            refusal = Refusal(DETACH_FORCED, text)
        end.end(refusal)

    def attach(self, right: str, entity: str) -> None:
        """Raise the Refusal of a link that is about to be attached."""
        direction = DIRECTION_OF[right]
        one = self._owner.meet(Place.ATTACH, direction, entity)
        if one is not None:
            raise self._refusal(one, entity, direction)

    # ── sending ──

    def messages(self, inlet: Inlet, run: list[Delivery]) -> list[Delivery]:
        """Return the deliveries of a run that may go on; the others are refused, or held until a stall ends."""
        entity = inlet.entity
        is_partitioned = entity.description.enable_partitioning
        healthy: list[Delivery] = []
        for delivery in run:
            one = self._owner.meet(Place.MESSAGE, "send", entity.path)
            kind = None if one is None else one.fault.kind.name
            if one is None and self._owner.is_overloaded(entity.path, is_partitioned=is_partitioned):
                kind = "throttle"
            if kind is None:
                healthy.append(delivery)
            elif kind == "drop-answer":
                healthy.append(delivery)
                if not delivery.settled:
                    inlet.lost_ids.add(delivery.delivery_id)
            elif kind == "stall" and one is not None:
                inlet.stall(delivery)
                self._owner.held.add(one.id, inlet, partial(inlet.resume, delivery))
            else:
                inlet.refuse(delivery, self._refusal(one, entity.path, "send"))
        return healthy

    def postpone(self, entity: str, drafts: list[Draft], now_ms: int) -> None:
        """Make messages receivable later; a message that is scheduled for an even later time keeps that time."""
        for draft in drafts:
            one = self._owner.meet(Place.VISIBILITY, "send", entity)
            if one is not None:
                numbers = one.fault.arguments
                delay_s = numbers["delay_s"] + numbers["jitter_s"] * self._owner.faults.dice()
                draft.scheduled_ms = max(draft.scheduled_ms, now_ms + round(delay_s * 1000))

    # ── receiving ──

    def keeps(self, outlet: Taker, now_ms: int) -> bool:
        """Return whether a fault keeps messages from this receiver."""
        if self._owner.held.owns(outlet):
            return True
        session = None if outlet.hold is None else outlet.hold.session
        if not (outlet.box.available(now_ms) if session is None else session.waiting):
            return False
        one = self._owner.meet(Place.HAND_OUT, "receive", outlet.entity.path)
        if one is None:
            return False
        if one.fault.kind.name == "stall":
            self._owner.held.add(one.id, outlet, outlet.wake)
        else:
            self._owner.held.add(one.id, outlet, _nothing)  # until the link is closed, so that one fault meets it once
            outlet.turn_away(self._refusal(one, outlet.entity.path, "receive"))
        return True

    def settlements(
        self, outlet: Outlet, session: Session, deliveries: list[SentDelivery], settled: bool, state: Any
    ) -> list[SentDelivery]:
        """Return the deliveries whose settlement may go on; the others are refused, or held until a stall ends."""
        healthy: list[SentDelivery] = []
        for delivery in deliveries:
            one = self._owner.meet(Place.SETTLEMENT, "receive", outlet.entity.path)
            kind = None if one is None else one.fault.kind.name
            if one is None or kind == "drop-answer":
                healthy.append(delivery)
                if one is not None and not settled:
                    outlet.lost_ids.add(delivery.delivery_id)
            elif kind == "stall":
                self._owner.held.add(one.id, outlet, partial(outlet.resume, session, delivery, settled, state))
            else:
                outlet.refuse(session, delivery, settled, state, self._refusal(one, outlet.entity.path, "receive"))
        return healthy

    # ── requests ──

    def request(self, link: RequestLink, request: Message, reply: Answering) -> bool:
        """Return whether a request over AMQP may go on now; otherwise it is refused, or held until a stall ends."""
        node = link.node
        entity, direction = node.entity, DIRECTION_OF[node.right_of(request)]
        one = self._owner.meet(Place.REQUEST, direction, entity)
        if one is None:
            is_overloaded = entity != "$cbs" and self._owner.is_overloaded(entity, is_partitioned=False)
            if is_overloaded:
                node.refuse(reply, self._refusal(None, entity, direction))
            return not is_overloaded
        kind = one.fault.kind.name
        if kind == "drop-answer":
            reply.is_lost = True
            return True
        if kind == "stall":
            self._owner.held.add(one.id, link, partial(link.resume_request, request, reply))
        else:
            node.refuse(reply, self._refusal(one, entity, direction))
        return False


def _nothing() -> None:
    """Do nothing: the end of the fault changes nothing for a link that was detached."""
