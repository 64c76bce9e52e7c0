"""Runs the verbs that take many messages: count, export, re-drive, move, purge, import. All but the first two are jobs.

Laws of this file.
 1. A verb that takes messages away needs a choice: conditions, numbers, or {"all": true}.
    An empty condition is an error.
 2. The choice of a verb does not know which part of a list a browser shows.
 3. A count and the verb that follows it agree: `last` of the count, given to the verb, leaves later messages alone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.dashboard.choosing import choice_of, named_choice, reasons_of
from pairbus.dashboard.guard import HEADERS
from pairbus.dashboard.jobs import VerbRun
from pairbus.dashboard.messages import path_of
from pairbus.dashboard.requests import number_of, read_object, text_of
from pairbus.errors import ConfigError
from pairbus.explorer import (
    Address,
    Lines,
    Notes,
    Progress,
    described,
    extent,
    import_lines,
    json_line,
    move,
    purge,
    redrive,
    search,
)
from pairbus.explorer import count as count_chosen

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

COUNT_S = 5.0  # a search is counted for so long
IMPORT_BYTES_MAX = 512 << 20
IMPORT_WAIT_S = 600.0
REDRIVE_S = 0.25
CONDITIONS = ("grep", "where", "session", "first", "last")

Names = dict[str, str]


# ── before a verb ──


async def count(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET count?path=…&conditions: the messages that move or purge would take, as of now.

    `last` is their highest number; `is_all` is false when there may be more of them than were counted.
    """
    address = Address.parse(text_of(request, "path"))
    choice = choice_of({name: request.query[name] for name in CONDITIONS if name in request.query})
    target = page.target(names["name"])
    carrier = await page.carrier(target.name)
    ends = await extent(carrier, address)
    if ends is None:
        return {"count": 0, "is_all": True, "last": None}
    last = ends[1] if choice.last is None else min(ends[1], choice.last)
    if choice.is_all:
        await page.watch.refresh(target.name)
        entity = await page.entity(target.name, address.owner)
        return {
            "count": entity.get("dead" if address.is_dead_letter else "active", 0),
            "is_all": True,
            "last": str(last),
        }
    result = await count_chosen(carrier, address, choice, within_s=COUNT_S)
    return {
        "count": result.messages,
        "is_all": result.is_exact,
        "unevaluable": result.unevaluable,
        "not_active": result.others,
        "last": str(last),
    }


# ── jobs ──


async def begin_purge(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST purge: {"path", …choice}: a job that deletes messages for good."""
    body = await read_object(request)
    address, choice = Address.parse(path_of(body)), named_choice(body)
    carrier = await page.carrier(page.target(names["name"]).name)

    async def work(job: VerbRun) -> None:
        await _take(job, lambda progress: purge(carrier, address, choice=choice, progress=progress))
        await page.watch.refresh(names["name"])

    return page.jobs.begin("purge", names["name"], address.path, work, _expected(body)).as_json()


async def begin_move(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST move: {"path", "to", "to_namespace", …choice}: a job; a message's copy is stored before it goes."""
    body = await read_object(request)
    address, choice = Address.parse(path_of(body)), named_choice(body)
    to, to_namespace = body.get("to"), body.get("to_namespace") or names["name"]
    if not isinstance(to, str) or not to.strip():
        raise ConfigError("to is missing: it names the queue or topic to move to")
    source = await page.carrier(page.target(names["name"]).name)
    destination = await page.carrier(page.target(str(to_namespace)).name)

    async def work(job: VerbRun) -> None:
        await _take(
            job, lambda progress: move(source, address, destination, to.strip(), choice=choice, progress=progress)
        )
        await page.watch.refresh(names["name"])

    return page.jobs.begin("move", names["name"], address.path, work, _expected(body)).as_json()


async def begin_redrive(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST redrive: {"path", "reasons", "new_ids"}: a job that sends dead letters back to their entity."""
    body = await read_object(request)
    address = Address.parse(path_of(body))
    reasons = None if body.get("reasons") is None else reasons_of(body["reasons"])
    carrier = await page.carrier(page.target(names["name"]).name)
    window_s = _duplicate_window_s(await page.entity(names["name"], address.destination))

    async def work(job: VerbRun) -> None:
        syphon = redrive(
            carrier, address, reasons=reasons, duplicate_window_s=window_s, new_ids=body.get("new_ids") is True
        )
        running = asyncio.ensure_future(syphon.run_once())
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=REDRIVE_S)
                progress = syphon.progress()
                job.count(done=progress.moved, left=progress.blocked)
            await running
        finally:
            if not running.done():
                await syphon.stop()
                await asyncio.gather(running, return_exceptions=True)
            job.count(done=syphon.progress().moved, left=syphon.progress().blocked)
        await page.watch.refresh(names["name"])

    return page.jobs.begin("redrive", names["name"], address.path, work, _expected(body)).as_json()


def _expected(body: dict[str, Any]) -> int | None:
    """Return the count that the dialog named, towards which the job shows its progress; None when there was none."""
    expected = body.get("expected")
    return (
        expected if isinstance(expected, int) and not isinstance(expected, bool) and 0 <= expected < 1 << 53 else None
    )


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
    """Answer GET export?path=…&conditions, or POST export {"path", …choice}: the chosen messages as JSON lines.

    The lines have all bytes of the messages, which stay where they are.
    """
    if request.method == "POST":
        body = await read_object(request)
    else:
        body = {name: request.query[name] for name in ("path", *CONDITIONS) if name in request.query}
    address, choice = Address.parse(path_of(body)), choice_of(body)
    carrier = await page.carrier(page.target(names["name"]).name)
    pages = search(carrier, address, choice)
    first = await anext(pages, None)  # errors of the entity come before the headers of the answer
    headers = {**HEADERS, "Content-Disposition": 'attachment; filename="messages.jsonl"'}
    response = web.StreamResponse(headers=headers)
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    payloads = first
    while payloads:
        for payload in payloads:
            await response.write(json_line(described(payload, raw=True)).encode("utf-8", "surrogatepass"))
        payloads = await anext(pages, None)
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
        size_bytes = await _spooled(request, file)
        if resumed is not None:
            lines.skip_to(resumed)
    except BaseException:
        file.close()
        raise

    async def work(job: VerbRun) -> None:
        progress = Progress(tell=lambda now: _tell(job, now))
        job.count(size=size_bytes)
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


async def _spooled(request: web.Request, file: Any) -> int:
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
    return size
