"""The switches of the tester's kit as JSON: request in, answer out, wherever the request came from.

GET  clock      {"now": "2030-01-01T00:00:00+00:00", "offset_seconds": 0.0}
POST clock      {"advance_seconds": 60} or {"advance_to": "2030-01-01T00:00:00Z"}; the answer is that of GET
POST reset      {"entities": "keep"} empties every entity, "delete" deletes all of them; the answer is {}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from pairbus.broker.clock import NamespaceClock, clock_json, move_clock
from pairbus.broker.reset import Entities, checked_entities
from pairbus.errors import ConfigError, EntityNotFound


class KitNamespace(Protocol):
    """The parts of a namespace that the switches move."""

    @property
    def clock(self) -> NamespaceClock: ...
    async def reset(self, entities: Entities = "keep") -> None: ...


async def _show_clock(namespace: KitNamespace, asked: Any) -> Any:
    return clock_json(namespace.clock)


async def _move_clock(namespace: KitNamespace, asked: Any) -> Any:
    return await move_clock(namespace.clock, asked)


async def _reset(namespace: KitNamespace, asked: Any) -> Any:
    match asked:
        case {"entities": entities, **others} if not others:
            await namespace.reset(checked_entities(entities))
        case {**others} if not others:
            await namespace.reset()
        case _:
            raise ConfigError('the body must be {"entities": "keep"} or {"entities": "delete"}')
    return {}


_SWITCHES: dict[tuple[str, str], Callable[[KitNamespace, Any], Awaitable[Any]]] = {
    ("GET", "clock"): _show_clock,
    ("POST", "clock"): _move_clock,
    ("POST", "reset"): _reset,
}
"(method, name behind `/$pairbus/`) → handler of the decoded body."


async def answer_kit(namespace: KitNamespace, method: str, name: str, body: bytes) -> Any:
    """Carry out one request; the answer is JSON. ConfigError: the request is wrong and nothing has changed."""
    switch = _SWITCHES.get((method, name.strip("/").lower()))
    if switch is None:
        known = ", ".join(f"{each} /$pairbus/{path}" for each, path in _SWITCHES)
        raise EntityNotFound(f"{method} /$pairbus/{name} is none of {known}")
    return await switch(namespace, _decoded(body))


def _decoded(body: bytes) -> Any:
    if not body.strip():
        return {}
    try:
        return json.loads(body)
    except ValueError as error:  # also bytes that are no UTF-8
        raise ConfigError(f"the body is not JSON: {error}") from None
