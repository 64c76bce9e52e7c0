"""Faults that meet requests over HTTP: as requests, as operations on messages, and as bytes of a connection that a
fault freezes or slows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pairbus.broker.outages.refusals import http_refusal_by, refusal_by
from pairbus.broker.wire.address import parse_entity
from pairbus.faults import Active, Pace, Place

if TYPE_CHECKING:
    from pairbus.broker.outages import NamespaceFaults


LOOK_S = 0.5  # between two looks whether the client of a held request is still there


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request over HTTP that is being answered. When it began a fault itself, its answer leaves all the same."""

    connection: object
    begun: set[int] = field(default_factory=set)
    "Numbers of the faults that it began."


answered_request: ContextVar[HttpRequest | None] = ContextVar("answered_request", default=None)
"Request that is being answered in this context."


class HttpFaults:
    """A cable passes the bytes of AMQP; a request over HTTP waits here as a whole, as long as its bytes would."""

    def __init__(self, switches: NamespaceFaults, namespace: str, loop: asyncio.AbstractEventLoop) -> None:
        self._switches = switches
        self._namespace = namespace
        self._loop = loop

    def begin(self, active: Active) -> None:
        """Note that the request which is being answered began this fault."""
        request = answered_request.get()
        if request is not None:
            request.begun.add(active.id)

    async def until_open(self) -> None:
        """Wait while a black hole that the request did not begin itself swallows the bytes of open connections."""
        request = answered_request.get()
        begun = set() if request is None else request.begun
        while holes := [
            active
            for active in self._switches.faults.at(Place.CONNECT)
            if active.fault.kind.name == "black-hole" and active.fault.is_certain and active.id not in begun
        ]:
            await self._until_end(holes[0])

    async def until_passed(self, size: int) -> None:
        """Wait as long as an answer of `size` bytes takes on a slow cable."""
        slow = self._switches.connections.cables.slow
        if slow:
            now = self._loop.time()
            await asyncio.sleep(Pace(self._switches.faults.dice).leaves_at(size, slow, now) - now)

    async def request(self, path: str) -> tuple[bool, tuple[int, str] | None]:
        """Return (whether the answer is lost, status and detail of a refusal); waits for a stall to end."""
        entity = _entity_of(path)
        active = self._switches.meet(Place.HTTP, "manage", entity)
        if active is None:
            is_overloaded = self._switches.is_overloaded(entity, is_partitioned=False)
            return False, http_refusal_by("throttle", self._namespace, path) if is_overloaded else None
        kind = active.fault.kind.name
        if kind == "stall":
            await self._until_end(active)
            return False, None
        if kind == "drop-answer":
            return True, None
        return False, http_refusal_by(kind, self._namespace, path)

    async def operation(
        self,
        place: Place,
        direction: str,
        entity: str,
        *,
        is_partitioned: bool,
        client_left: Callable[[], bool],
    ) -> bool:
        """Let an operation on messages meet its fault, as the same operation on a link does: wait for a stall to end,
        or raise the Refusal. Return whether the answer is lost."""
        restart = self._switches.meet(Place.ATTACH, direction, entity, among=("restart",))
        active = restart or self._switches.meet(place, direction, entity)
        if active is None:
            counts = place is Place.MESSAGE or place is Place.REQUEST
            if counts and self._switches.is_overloaded(entity, is_partitioned=is_partitioned):
                raise refusal_by("throttle", self._namespace, entity, direction)
            return False
        kind = active.fault.kind.name
        if kind == "stall":
            await self._until_end(active, client_left)
            return False
        if kind == "drop-answer":
            return True
        raise refusal_by(kind, self._namespace, entity, direction)

    async def _until_end(self, active: Active, client_left: Callable[[], bool] | None = None) -> None:
        """Wait until the fault has ended. ConnectionResetError: the client left before."""
        ended = self._loop.create_future()
        self._switches.held.add(active.id, ended, partial(_resolve, ended))
        try:
            while client_left is not None and not ended.done():
                await asyncio.wait({ended}, timeout=LOOK_S)
                if client_left():
                    raise ConnectionResetError("the client left while a fault held its request")
            await ended
        finally:
            self._switches.held.forget(ended)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _entity_of(path: str) -> str:
    """Return the entity of an HTTP path: rules belong to their subscription, a list of entities to none."""
    if path.startswith("$"):
        return ""
    name = parse_entity(path)
    return name.root if name.subscription is None else f"{name.root}/Subscriptions/{name.subscription}"
