"""Answers questions about an entity: settings, sessions, scheduled messages, rules, and whether a message matches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.dashboard.choosing import row_of, sequence_number
from pairbus.dashboard.requests import number_of, read_object, text_of
from pairbus.errors import ConfigError, EntityNotFound
from pairbus.explorer import (
    Address,
    encoded,
    peek,
    rules,
    scheduled,
    sequence_number_of,
    session_ids,
    session_state,
    would_match,
)

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

SESSIONS_MAX = 100  # sessions whose states are read at once: each is locked for a moment
SCHEDULED_MAX = 500
SCHEDULED_S = 3.0

Names = dict[str, str]


async def show(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET entity: its part of the overview, and its subscriptions where it is a topic."""
    path = text_of(request, "path")
    look = await page.watch.look()
    entities = look["namespaces"][page.target(names["name"]).name].get("entities", {})
    entry = next(((each, one) for each, one in entities.items() if each.lower() == path.lower()), None)
    if entry is None:
        raise EntityNotFound(f"{names['name']} has no entity {path!r:.200}")
    prefix = f"{entry[0]}/Subscriptions/".lower()
    below = {each: one for each, one in entities.items() if each.lower().startswith(prefix)}
    return {"path": entry[0], **entry[1], **({"entities": below} if below else {})}


async def sessions(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET sessions: ids with their states, `SESSIONS_MAX` from the `from`th on. Each is locked for a moment."""
    address = Address.parse(text_of(request, "path"))
    carrier = await page.carrier(page.target(names["name"]).name)
    first = number_of(request, "from", 0, 1 << 31)
    ids = await session_ids(carrier, address)
    page_ids = ids[first : first + SESSIONS_MAX]
    states = [await session_state(carrier, address, session) for session in page_ids]
    return {
        "sessions": [{"session_id": session, **state} for session, state in zip(page_ids, states, strict=True)],
        "total": len(ids),
        "next": first + SESSIONS_MAX if first + SESSIONS_MAX < len(ids) else None,
    }


async def scheduled_messages(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET scheduled: scheduled messages of a queue by their times; `is_all` is false when there may be more."""
    address = Address.parse(text_of(request, "path"))
    carrier = await page.carrier(page.target(names["name"]).name)
    rows: list[dict[str, Any]] = []
    is_all = True
    try:
        async with asyncio.timeout(SCHEDULED_S):
            async for payloads in scheduled(carrier, address):
                rows += [row_of(payload, has_body=True) for payload in payloads]
                if len(rows) >= SCHEDULED_MAX:
                    is_all = False
                    break
    except TimeoutError:
        is_all = False
    rows.sort(key=lambda row: row.get("scheduled_enqueue_time") or "")
    return {"messages": rows[:SCHEDULED_MAX], "is_all": is_all}


async def show_rules(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET rules: the rules of a subscription."""
    address = Address.parse(text_of(request, "path"))
    _check_subscription(address)
    return await rules(await page.carrier(page.target(names["name"]).name), address)


async def match(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST match: {"path", "message"} or {"path", "from_path", "number"}: do the rules select this message?"""
    body = await read_object(request)
    path, message = body.get("path"), body.get("message")
    if not isinstance(path, str):
        raise ConfigError("path is missing: it names the subscription")
    address = Address.parse(path)
    _check_subscription(address)
    carrier = await page.carrier(page.target(names["name"]).name)
    if isinstance(message, dict):
        payload = encoded(message)
    else:
        payload = await _stored(carrier, body)
    answers = []
    for rule in await rules(carrier, address):
        matches, problem = would_match(rule, payload)
        answers.append({**rule, "matches": matches, **({"problem": problem} if problem else {})})
    return {"matches": any(answer["matches"] for answer in answers), "rules": answers}


async def _stored(carrier: Any, body: dict[str, Any]) -> bytes:
    place = body.get("from_path")
    if not isinstance(place, str) or body.get("number") is None:
        raise ConfigError('say which message: {"message": {…}}, or {"from_path": PATH, "number": N}')
    number = sequence_number("number", body["number"])
    payloads = await peek(carrier, Address.parse(place), number, 1)
    if not payloads or sequence_number_of(payloads[0]) != number:
        raise EntityNotFound(f"{place} has no message with the sequence number {number}")
    return payloads[0]


def _check_subscription(address: Address) -> None:
    if not address.is_subscription:
        raise ConfigError(f"{address} is no subscription: only subscriptions have rules")
