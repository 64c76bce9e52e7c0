"""Answers requests about messages: browse, search, read, send, edit and send again, cancel; dead letters by reason.

All answers are bounded: a list by rows and bytes, a search by time. Longer work is in `verbs.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.amqp.errors import ProtocolError
from pairbus.dashboard.choosing import choice_of, row_of, whole_of
from pairbus.dashboard.guard import HEADERS
from pairbus.dashboard.requests import number_of, read_object, text_of
from pairbus.errors import ConfigError, EntityNotFound
from pairbus.explorer import (
    Address,
    body_bytes,
    cancel,
    encoded,
    grouped,
    peek,
    resend,
    send,
    sequence_number_of,
    walk,
)

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

PAGE_MAX = 250
PAGE_BYTES_MAX = 4 << 20  # bytes of bodies for one list; later rows are shown without their bodies
LARGE = 64 << 10  # bytes: bodies of entities whose messages are larger on average are not fetched for a list
SEARCH_S = 1.5
FOUND_MAX = 200
SEND_BYTES_MAX = 140 << 20  # a body of 100 MB in base64, and the rest

Names = dict[str, str]


async def browse(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET messages: a page of messages from a sequence number on, or the next ones that a search finds."""
    target = page.target(names["name"])
    address = Address.parse(text_of(request, "path"))
    first = number_of(request, "from", 0, (1 << 63) - 1)
    count = number_of(request, "count", 50, PAGE_MAX) or 1
    choice = choice_of({name: request.query[name] for name in ("grep", "where", "session") if name in request.query})
    carrier = await page.carrier(target.name)
    if choice.text is not None or choice.where is not None:
        return await _searched(carrier, address, choice, first)
    is_large = _average_size(await page.entity(target.name, address.owner)) > LARGE
    payloads = await peek(carrier, address, first, count, session=choice.session, bodies=False)
    rows = {sequence_number_of(payload): row_of(payload, has_body=False) for payload in payloads}
    if payloads and not is_large:
        await _add_bodies(carrier, address, choice.session, rows, first)
    return {"messages": list(rows.values()), "next": _next(payloads, count), "scanned": len(payloads)}


def _average_size(entity: dict[str, Any]) -> float:
    count: int = sum(entity.get(name, 0) for name in ("active", "dead", "deferred", "scheduled"))
    size_bytes: int = entity.get("size_bytes", 0)
    return size_bytes / max(count, 1)


async def _add_bodies(carrier: Any, address: Address, session: str | None, rows: dict[Any, Any], first: int) -> None:
    last, size = max(rows), 0
    async for payloads in walk(carrier, address, first=first, last=last, session=session):
        for payload in payloads:
            if sequence_number_of(payload) in rows:  # others arrived in between
                rows[sequence_number_of(payload)] = row_of(payload, has_body=True)
        size += sum(map(len, payloads))
        if size > PAGE_BYTES_MAX:
            return


async def _searched(carrier: Any, address: Address, choice: Any, first: int) -> dict[str, Any]:
    """Search for a moment; `next` says where the search goes on."""
    loop = asyncio.get_running_loop()
    until_s, rows, scanned, next_number = loop.time() + SEARCH_S, [], 0, None
    async for payloads in walk(carrier, address, first=first, session=choice.session):
        scanned += len(payloads)
        rows += [row_of(payload, has_body=True) for payload in payloads if choice.takes(payload)]
        if loop.time() > until_s or len(rows) >= FOUND_MAX:
            next_number = _next(payloads, 1)
            break
        await asyncio.sleep(0)
    return {"messages": rows, "next": next_number, "scanned": scanned, "unevaluable": choice.unevaluable}


def _next(payloads: list[bytes], count: int) -> str | None:
    """Return the sequence number to go on from; None when the last page was not full."""
    if len(payloads) < count or not payloads:
        return None
    return str((sequence_number_of(payloads[-1]) or 0) + 1)


async def _one(page: Page, request: web.Request, names: Names) -> bytes:
    address = Address.parse(text_of(request, "path"))
    number = number_of(request, "number", -1, (1 << 63) - 1)
    payloads = await peek(await page.carrier(page.target(names["name"]).name), address, max(number, 0), 1)
    if not payloads or sequence_number_of(payloads[0]) != number:
        raise EntityNotFound(f"{address} has no message with the sequence number {number}; it may be gone")
    return payloads[0]


async def read(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET message: one message in full, with the beginning of a large body."""
    return whole_of(await _one(page, request, names))


async def body(page: Page, request: web.Request, names: Names) -> web.Response:
    """Answer GET body: the whole body as a file, which no browser shows or runs."""
    payload = await _one(page, request, names)
    try:
        content = body_bytes(payload)
    except ProtocolError:
        content = payload
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="body.bin"'}
    return web.Response(body=content, content_type="application/octet-stream", headers=headers)


# ── changes ──


async def send_messages(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST send: {"path", "message"} or {"path", "messages"}; the messages are stored when it answers."""
    body = await read_object(request, SEND_BYTES_MAX)
    path = path_of(body)
    messages = body.get("messages", [body.get("message")])
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise ConfigError("message must be an object, or messages a list of them")
    payloads = [encoded(one) for one in messages]
    carrier = await page.carrier(page.target(names["name"]).name)
    progress = await send(carrier, Address.parse(path).destination, payloads)
    await page.watch.refresh(names["name"])
    return {"sent": progress.done}


async def send_again(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST resend: {"path", "number", "changes", "to", "keep_original"}. The copy is stored first."""
    body = await read_object(request, SEND_BYTES_MAX)
    changes, to = body.get("changes", {}), body.get("to")
    if not isinstance(changes, dict) or not (to is None or isinstance(to, str)):
        raise ConfigError("changes must be an object of fields, and to a path")
    [number] = choice_of({"numbers": [body.get("number")]}).numbers or ()
    carrier = await page.carrier(page.target(names["name"]).name)
    keeps = body.get("keep_original") is True
    await resend(carrier, Address.parse(path_of(body)), number, changes, path=to or None, keep_original=keeps)
    await page.watch.refresh(names["name"])
    return {"sent": 1}


async def cancel_scheduled(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST cancel: {"path", "numbers"}: scheduled messages are deleted."""
    body = await read_object(request)
    numbers = choice_of({"numbers": body.get("numbers", [])}).numbers or ()
    await cancel(await page.carrier(page.target(names["name"]).name), Address.parse(path_of(body)), list(numbers))
    await page.watch.refresh(names["name"])
    return {"cancelled": len(numbers)}


def path_of(body: dict[str, Any]) -> str:
    """Return the entity of a request; ConfigError when it is missing."""
    path = body.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError("path is missing: it names the queue, topic or subscription")
    return path


async def dead_letters(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET dead-letters: the dead letters of an entity, grouped by reason."""
    address = Address.parse(text_of(request, "path"))
    groups = await grouped(await page.carrier(page.target(names["name"]).name), address)
    return [
        {
            "reason": group.reason,
            "count": group.count,
            "description": group.description,
            "oldest": group.oldest,
            "newest": group.newest,
        }
        for group in groups
    ]
