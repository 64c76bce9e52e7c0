"""Answers about messages: browse, search, read, send, edit and send again, re-drive, move, purge, export, import.

All answers are bounded: a list by rows and bytes, a search by time, a file by its size. Longer work is a job.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.amqp.errors import ProtocolError
from pairbus.dashboard.choosing import choice_of, reasons_of, row_of, whole_of
from pairbus.dashboard.guard import HEADERS
from pairbus.dashboard.jobs import VerbRun
from pairbus.dashboard.requests import number_of, read_object, text_of
from pairbus.errors import ConfigError, EntityNotFound
from pairbus.explorer import (
    Address,
    Lines,
    Notes,
    Progress,
    body_bytes,
    cancel,
    described,
    encoded,
    grouped,
    import_lines,
    json_line,
    move,
    peek,
    purge,
    redrive,
    resend,
    search,
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
IMPORT_BYTES_MAX = 512 << 20
IMPORT_WAIT_S = 600.0
REDRIVE_S = 0.25

Names = dict[str, str]


def _address(text: str) -> Address:
    return Address.parse(text)


async def browse(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET messages: a page of messages from a sequence number on, or the next ones that a search finds."""
    target = page.target(names["name"])
    address = _address(text_of(request, "path"))
    first = number_of(request, "from", 0, (1 << 63) - 1)
    count = number_of(request, "count", 50, PAGE_MAX) or 1
    choice = choice_of({name: request.query[name] for name in ("grep", "where", "session") if name in request.query})
    carrier = await page.carrier(target.name)
    if choice.text is not None or choice.where is not None:
        return await _searched(carrier, address, choice, first)
    is_large = _average_size(await page.entity(target.name, address.owner)) > LARGE
    found = await peek(carrier, address, first, count, session=choice.session, bodies=False)
    rows = {sequence_number_of(payload): row_of(payload, has_body=False) for payload in found}
    if found and not is_large:
        await _add_bodies(carrier, address, choice.session, rows, first)
    return {"messages": list(rows.values()), "next": _next(found, count), "scanned": len(found)}


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
    until_s, found, scanned, next_number = loop.time() + SEARCH_S, [], 0, None
    async for payloads in walk(carrier, address, first=first, session=choice.session):
        scanned += len(payloads)
        found += [row_of(payload, has_body=True) for payload in payloads if choice.takes(payload)]
        if loop.time() > until_s or len(found) >= FOUND_MAX:
            next_number = _next(payloads, 1)
            break
        await asyncio.sleep(0)
    return {"messages": found, "next": next_number, "scanned": scanned, "unevaluable": choice.unevaluable}


def _next(payloads: list[bytes], count: int) -> str | None:
    """Return the sequence number to go on from; None when the last page was not full."""
    if len(payloads) < count or not payloads:
        return None
    return str((sequence_number_of(payloads[-1]) or 0) + 1)


async def _one(page: Page, request: web.Request, names: Names) -> bytes:
    address = _address(text_of(request, "path"))
    number = number_of(request, "number", -1, (1 << 63) - 1)
    found = await peek(await page.carrier(page.target(names["name"]).name), address, max(number, 0), 1)
    if not found or sequence_number_of(found[0]) != number:
        raise EntityNotFound(f"{address} has no message with the sequence number {number}; it may be gone")
    return found[0]


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
    asked = await read_object(request, SEND_BYTES_MAX)
    path = _path(asked)
    given = asked.get("messages", [asked.get("message")])
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise ConfigError("message must be an object, or messages a list of them")
    payloads = [encoded(one) for one in given]
    carrier = await page.carrier(page.target(names["name"]).name)
    progress = await send(carrier, Address.parse(path).destination, payloads)
    await page.watch.refresh(names["name"])
    return {"sent": progress.done}


async def send_again(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST resend: {"path", "number", "changes", "to", "keep_original"}. The copy is stored first."""
    asked = await read_object(request, SEND_BYTES_MAX)
    changes, to = asked.get("changes", {}), asked.get("to")
    if not isinstance(changes, dict) or not (to is None or isinstance(to, str)):
        raise ConfigError("changes must be an object of fields, and to a path")
    [number] = choice_of({"numbers": [asked.get("number")]}).numbers or ()
    carrier = await page.carrier(page.target(names["name"]).name)
    keeps = asked.get("keep_original") is True
    await resend(carrier, _address(_path(asked)), number, changes, path=to or None, keep_original=keeps)
    await page.watch.refresh(names["name"])
    return {"sent": 1}


async def cancel_scheduled(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST cancel: {"path", "numbers"}: scheduled messages are deleted."""
    asked = await read_object(request)
    numbers = choice_of({"numbers": asked.get("numbers", [])}).numbers or ()
    await cancel(await page.carrier(page.target(names["name"]).name), _address(_path(asked)), list(numbers))
    await page.watch.refresh(names["name"])
    return {"cancelled": len(numbers)}


def _path(asked: dict[str, Any]) -> str:
    path = asked.get("path")
    if not isinstance(path, str) or not path:
        raise ConfigError("path is missing: it names the queue, topic or subscription")
    return path


async def begin_purge(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST purge: {"path", …choice}: a job that deletes messages for good."""
    asked = await read_object(request)
    address, choice = _address(_path(asked)), choice_of(asked)
    carrier = await page.carrier(page.target(names["name"]).name)

    async def work(job: VerbRun) -> None:
        await _take(job, lambda progress: purge(carrier, address, choice=choice, progress=progress))
        await page.watch.refresh(names["name"])

    return page.jobs.begin("purge", names["name"], address.path, work).as_json()


async def begin_move(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST move: {"path", "to", "to_namespace", …choice}: a job; a message's copy is stored before it goes."""
    asked = await read_object(request)
    address, choice = _address(_path(asked)), choice_of(asked)
    to, to_namespace = asked.get("to"), asked.get("to_namespace") or names["name"]
    if not isinstance(to, str) or not to.strip():
        raise ConfigError("to is missing: it names the queue or topic to move to")
    source = await page.carrier(page.target(names["name"]).name)
    destination = await page.carrier(page.target(str(to_namespace)).name)

    async def work(job: VerbRun) -> None:
        await _take(
            job, lambda progress: move(source, address, destination, to.strip(), choice=choice, progress=progress)
        )
        await page.watch.refresh(names["name"])

    return page.jobs.begin("move", names["name"], address.path, work).as_json()


async def begin_redrive(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST redrive: {"path", "reasons", "new_ids"}: a job that sends dead letters back to their entity."""
    asked = await read_object(request)
    address = _address(_path(asked))
    reasons = None if asked.get("reasons") is None else reasons_of(asked["reasons"])
    carrier = await page.carrier(page.target(names["name"]).name)
    window_s = _duplicate_window_s(await page.entity(names["name"], address.destination))

    async def work(job: VerbRun) -> None:
        syphon = redrive(
            carrier, address, reasons=reasons, duplicate_window_s=window_s, new_ids=asked.get("new_ids") is True
        )
        running = asyncio.ensure_future(syphon.run_once())
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=REDRIVE_S)
                found = syphon.progress()
                job.count(done=found.moved, left=found.blocked)
            await running
        finally:
            if not running.done():
                await syphon.stop()
                await asyncio.gather(running, return_exceptions=True)
            job.count(done=syphon.progress().moved, left=syphon.progress().blocked)
        await page.watch.refresh(names["name"])

    return page.jobs.begin("redrive", names["name"], address.path, work).as_json()


def _duplicate_window_s(entity: dict[str, Any]) -> float | None:
    """Return for how long an entity remembers message ids, 0 when it does not; None: its settings were not read."""
    window_s: float | None = entity.get("duplicate_window_s", 0.0 if "status" in entity else None)
    return window_s


async def _take(job: VerbRun, verb: Callable[[Progress], Awaitable[Progress]]) -> None:
    """Run a verb that takes messages out of an entity; its counts are in the job, also after an error."""
    progress = Progress(tell=lambda now: _tell(job, now))
    try:
        await verb(progress)
    finally:
        _tell(job, progress)
    job.is_complete = not (progress.left or progress.uncompleted)


def _tell(job: VerbRun, progress: Progress) -> None:
    job.count(
        done=progress.done,
        passed=progress.passed,
        total=progress.total,
        left=progress.left,
        uncompleted=progress.uncompleted,
        notes=progress.notes or None,
    )


# ── files ──


async def export_messages(page: Page, request: web.Request, names: Names) -> web.StreamResponse:
    """Answer GET export: the chosen messages as JSON lines, with their bytes; the messages stay where they are."""
    address = _address(text_of(request, "path"))
    asked = ("grep", "where", "session", "first", "last")
    choice = choice_of({name: request.query[name] for name in asked if name in request.query})
    carrier = await page.carrier(page.target(names["name"]).name)
    found = search(carrier, address, choice)
    first = await anext(found, None)  # errors of the entity come before the headers of the answer
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="messages.jsonl"'}
    response = web.StreamResponse(headers=headers)
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    payloads = first
    while payloads:
        for payload in payloads:
            await response.write(json_line(described(payload, raw=True)).encode("utf-8", "surrogatepass"))
        payloads = await anext(found, None)
    await response.write_eof()
    return response


async def begin_import(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST import?path=…: the body is JSON lines; a job sends them in their order, at least once.

    An interrupted import has `resume` in its job: lines, offset and digest; as parameters they continue the import.
    """
    path = Address.parse(text_of(request, "path")).destination
    resumed = _resumed(request)
    carrier = await page.carrier(page.target(names["name"]).name)
    file = tempfile.TemporaryFile(prefix="pairbus-import-")  # noqa: SIM115 - the job closes it
    lines = Lines(file, "the file")
    try:
        await _spooled(request, file)
        if resumed is not None:
            lines.skip_to(resumed)
    except BaseException:
        file.close()
        raise

    async def work(job: VerbRun) -> None:
        progress = Progress(tell=lambda now: _tell(job, now))
        with file:
            await import_lines(carrier, path, lines, progress, _JobNotes(job))
        job.counts.pop("resume", None)
        await page.watch.refresh(names["name"])

    return page.jobs.begin("import", names["name"], path, work).as_json()


class _JobNotes:
    """Notes of an import, kept by its job: the browser stores them in case this server ends."""

    def __init__(self, job: VerbRun) -> None:
        self._job = job

    def write(self, notes: Notes) -> None:
        self._job.count(resume={"lines": notes.lines, "offset": notes.offset, "digest": notes.digest})


def _resumed(request: web.Request) -> Notes | None:
    offset = number_of(request, "offset", 0, 1 << 62)
    if not offset:
        return None
    return Notes("", number_of(request, "lines", 0, 1 << 62), offset, text_of(request, "digest"))


async def _spooled(request: web.Request, file: Any) -> None:
    size = 0
    try:
        async with asyncio.timeout(IMPORT_WAIT_S):
            async for chunk in request.content.iter_chunked(1 << 20):
                size += len(chunk)
                if size > IMPORT_BYTES_MAX:
                    raise ConfigError(f"the file has more than {IMPORT_BYTES_MAX >> 20} MB; use pairbus message import")
                file.write(chunk)
    except TimeoutError:
        raise ConfigError(f"the file did not arrive within {IMPORT_WAIT_S:g} s") from None
    file.seek(0)


async def dead_letters(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET dead-letters: the dead letters of an entity, grouped by reason."""
    address = _address(text_of(request, "path"))
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
