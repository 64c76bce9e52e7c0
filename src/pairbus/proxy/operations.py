"""Faults of operations at a proxy: links that are attached, messages, settlements, requests.

Refusals have the same texts as the broker's. An operation that is refused here does not reach the target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from typing import Protocol

from pairbus.amqp.errors import DETACH_FORCED, ProtocolError
from pairbus.amqp.message import Message
from pairbus.amqp.performatives import Error
from pairbus.amqp.transfers import decode_transfer
from pairbus.broker.management import OPERATIONS
from pairbus.broker.outages.operations import DIRECTION_OF
from pairbus.broker.outages.refusals import refusal_by
from pairbus.faults import MANAGE, RECEIVE, SEND, Active, Place
from pairbus.proxy.conversation import FollowedLink, Unit, is_node
from pairbus.proxy.passage import Passage
from pairbus.proxy.verdicts import FrameAct, How

STALL = ("stall",)
REFUSALS = ("throttle", "restart", "disable", "quota", "unauthorized", "internal-error", "time-out")
"Kinds that answer with an error."


class Meeting(Protocol):
    """The set of faults, as operations use it."""

    def meet(
        self, place: Place, direction: str | None, entity: str = "", among: Container[str] | None = None
    ) -> Active | None: ...


class OperationRules:
    """The decisions about frames of links."""

    def __init__(self, faults: Meeting, namespace: str) -> None:
        self._faults = faults
        self._namespace = namespace
        "Name of the namespace, for the texts of errors."

    def drops_answer(self, link: FollowedLink, *, to_settlement: bool) -> bool:
        return False  # a lost answer cuts the connection

    def begin(self, one: Active, passages: Iterable[Passage]) -> None:
        """Detach the links that the fault forbids.

        A sender gets an error when it sends, unless its links are lost by a restart; a receiver that has given credit
        already would get no error.
        """
        kind = one.fault.kind.name
        if kind not in REFUSALS or not one.fault.is_certain:
            return
        for passage in passages:
            for link in passage.links():
                direction = _direction_of(link)
                is_spared = (direction == SEND and kind != "restart") or is_node(link.path)
                if not is_spared and direction in one.fault.directions and one.concerns(entity_of(link.path)):
                    passage.detach(link, self._detachment(one, link, direction))

    def attach(self, link: FollowedLink) -> FrameAct | None:
        link.used_at = asyncio.get_running_loop().time()
        if is_node(link.path):
            return None
        return self._act(Place.ATTACH, _direction_of(link), link)

    def message(self, link: FollowedLink, unit: Unit) -> FrameAct | None:
        link.used_at = asyncio.get_running_loop().time()
        if is_node(link.path):
            return self._act(Place.REQUEST, _direction_of_request(unit), link)
        return self._act(Place.MESSAGE, SEND, link)

    def asks(self, link: FollowedLink) -> FrameAct | None:
        return self._act(Place.HAND_OUT, RECEIVE, link, REFUSALS)

    def delivery(self, link: FollowedLink) -> FrameAct | None:
        return self._act(Place.HAND_OUT, RECEIVE, link, STALL)

    def settlement(self, link: FollowedLink) -> FrameAct | None:
        return self._act(Place.SETTLEMENT, RECEIVE, link)

    def _act(
        self, place: Place, direction: str, link: FollowedLink, among: Container[str] | None = None
    ) -> FrameAct | None:
        one = self._faults.meet(place, direction, entity_of(link.path), among)
        if one is None:
            return None
        kind = one.fault.kind.name
        if kind == "stall":
            return FrameAct(How.HOLD, key=one.id)
        if kind == "drop-answer":
            return FrameAct(How.LOSE_ANSWER)
        how = How.DETACH if place in (Place.ATTACH, Place.HAND_OUT) else How.REFUSE
        return FrameAct(how, error=self._error(kind, link, direction))

    def _error(self, kind: str, link: FollowedLink, direction: str) -> Error:
        refusal = refusal_by(kind, self._namespace, entity_of(link.path), direction)
        return Error(refusal.condition, refusal.description)

    def _detachment(self, one: Active, link: FollowedLink, direction: str) -> Error:
        if one.fault.kind.name != "restart":
            return self._error(one.fault.kind.name, link, direction)
        entity = entity_of(link.path)
        return Error(
            DETACH_FORCED, f"The link '{link.name}' is force detached. Details: the entity '{entity}' is restarted."
        )


def entity_of(path: str) -> str:
    """Return the entity of a path: `orders/$deadletterqueue` and `orders/$management` belong to `orders`."""
    return path if path.startswith("$") else path.partition("/$")[0]


def _direction_of(link: FollowedLink) -> str:
    return SEND if link.client_sends else RECEIVE


def _direction_of_request(unit: Unit) -> str:
    """Return the direction of a request by the right that it needs; manage for several frames, or if unreadable."""
    try:
        payload_at = decode_transfer(unit.raw, unit.raw[4] * 4, len(unit.raw))[-1]
        name = Message.decode(unit.raw[payload_at:]).property("operation")
    except (ProtocolError, IndexError):
        return MANAGE
    operation = OPERATIONS.get(name) if isinstance(name, str) else None
    return MANAGE if operation is None else DIRECTION_OF[operation.right]
