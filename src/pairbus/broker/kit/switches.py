"""The switches of the tester's kit as JSON: request in, answer out, for every transport.

GET  clock      {"now": "2030-01-01T00:00:00+00:00", "offset_seconds": 0.0}
POST clock      {"advance_seconds": 60} or {"advance_to": "2030-01-01T00:00:00Z"}; the answer is that of GET
POST reset      {"entities": "keep"} empties every entity, "delete" deletes all of them; the answer is {}
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from pairbus.broker.kit.clock import NamespaceClock, clock_json, move_clock
from pairbus.broker.kit.reset import EntityFate, checked_entities
from pairbus.errors import ConfigError, StoreError


class KitNamespace(Protocol):
    """The parts of a namespace that the switches change."""

    @property
    def clock(self) -> NamespaceClock: ...
    async def reset(self, entities: EntityFate = "keep") -> None: ...


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


async def answer_kit(namespace: KitNamespace, method: str, name: str, body: bytes) -> tuple[int, Any]:
    """Carry out one request: (HTTP status, answer as JSON). An error is `{"error": …}`."""
    switch = _SWITCHES.get((method, name.strip("/").lower()))
    if switch is None:
        known = ", ".join(f"{each} /$pairbus/{path}" for each, path in _SWITCHES)
        return 404, {"error": f"there is no {method} /$pairbus/{name}; there are: {known}"}
    try:
        return 200, await switch(namespace, _decoded(body))
    except ConfigError as error:
        return 400, {"error": str(error)}
    except StoreError as error:
        return 500, {"error": str(error)}


def _decoded(body: bytes) -> Any:
    if not body.strip():
        return {}
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:  # ValueError also for bytes that are not UTF-8
        raise ConfigError(f"the body is not JSON: {error}") from None
