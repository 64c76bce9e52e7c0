"""Answers the requests of the page: its files, and the JSON twin of every view.

    GET  /                                          the page
    GET  /$pairbus/page/static/FILE                 its style and scripts
    GET  /$pairbus/page/api/overview                all namespaces, as they are now
    GET  /$pairbus/page/api/watch                   the same as server-sent events: look, patch, happened, job
    GET  /$pairbus/page/api/happened                the last events
    …    /$pairbus/page/api/namespaces/NAME/…       see ROUTES; faults and clock are those of the broker's switches
    GET  /metrics                                   for Prometheus; of `pairbus dashboard`, see metrics.py

All answers but the files need the token, where there is one. Errors are `{"error": …}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus import __version__
from pairbus.dashboard.carriers import Carriers
from pairbus.dashboard.files import INDEX, file_answer
from pairbus.dashboard.guard import HEADERS, READING, Denied, Guard
from pairbus.dashboard.jobs import Jobs
from pairbus.dashboard.requests import read_object
from pairbus.dashboard.watch import Watch
from pairbus.errors import ConfigError, EntityNotFound, FaultNotFound, PairbusError
from pairbus.faults.kinds import KINDS
from pairbus.transport.threads import in_thread

if TYPE_CHECKING:
    from pairbus.dashboard.targets import WatchedNamespace
    from pairbus.transport import Carrier

logger = logging.getLogger("pairbus.dashboard")

BASE = "/$pairbus/page/"
HEARTBEAT_S = 15.0

Handler = Callable[["Page", web.Request, dict[str, str]], Awaitable[Any]]
"(page, request, names in the path) → a response, or JSON to answer with. Raises a PairbusError."

Answer = Callable[[web.Request], Awaitable[web.Response]]

_STATUS_OF: tuple[tuple[type[PairbusError], int], ...] = (
    (FaultNotFound, 404),
    (EntityNotFound, 404),
    (ConfigError, 400),
    (PairbusError, 502),
)


class Page:
    """A page watches its namespaces, and has rules for its requests."""

    def __init__(
        self, watch: Watch, guard: Guard, *, is_on_broker: bool = False, metrics: Answer | None = None
    ) -> None:
        """Make a page. `metrics` answers `GET /metrics`; a broker has a page of metrics of its own."""
        self.watch = watch
        self.guard = guard
        self._metrics = metrics
        self.jobs = Jobs(watch.tell)
        self._carriers = Carriers()
        self.is_on_broker = is_on_broker
        "True when the page is on the port of a namespace: an outage of that port takes the page with it."

    def target(self, name: str) -> WatchedNamespace:
        target = self.watch.targets.get(name)
        if target is None:
            raise EntityNotFound(f"there is no namespace {name!r:.80}; there are: {', '.join(self.watch.targets)}")
        return target

    async def carrier(self, name: str) -> Carrier:
        """Return the carrier for messages of a namespace."""
        return await self._carriers.of(self.target(name))

    async def entity(self, name: str, path: str) -> dict[str, Any]:
        """Return an entity as of the last look; empty when the look does not have it."""
        look = await self.watch.look()
        entities: dict[str, Any] = look["namespaces"][name].get("entities", {})
        entity: dict[str, Any] = entities.get(path) or {}
        return entity

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer any request to the page."""
        path = request.path
        if path == "/metrics" and self._metrics is not None and request.method in READING:
            return await self._metrics(request)
        try:
            if path == "/" or path.startswith(f"{BASE}static/"):
                self.guard.check_host(request)
                if request.method not in READING:
                    raise web.HTTPMethodNotAllowed(request.method, list(READING))
                return file_answer(INDEX if path == "/" else path.removeprefix(f"{BASE}static/"))
            self.guard.check(request)
            return await self._api(request, path.removeprefix(f"{BASE}api/") if path.startswith(BASE) else "")
        except Denied as error:
            return _error(error.status, str(error))
        except web.HTTPException as error:
            return _error(error.status, error.text or error.reason, error.headers.get("Allow"))
        except PairbusError as error:
            # A wrong field, filter or address is a ValueError too.
            is_wrong = isinstance(error, ValueError)
            status = 400 if is_wrong else next(status for kind, status in _STATUS_OF if isinstance(error, kind))
            return _error(status, str(error))

    async def _api(self, request: web.Request, path: str) -> web.StreamResponse:
        allowed = []
        for method, pattern, handler in ROUTES:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if request.method == method:
                answer = await handler(self, request, match.groupdict())
                return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer, headers=HEADERS)
            allowed.append(method)
        if allowed:
            raise web.HTTPMethodNotAllowed(request.method, allowed)
        raise web.HTTPNotFound(text="there is nothing here")

    async def close(self) -> None:
        """End all tasks, jobs first: they give back messages that they have locked."""
        await self.jobs.close()
        await self.watch.close()
        await self._carriers.close()


def _error(status: int, text: str, allow: str | None = None) -> web.Response:
    headers = HEADERS if allow is None else {**HEADERS, "Allow": allow}
    return web.json_response({"error": text}, status=status, headers=headers)


# ── state and events ──


async def _overview(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    look = await page.watch.look()
    return {**look, "version": __version__, "on_broker": page.is_on_broker}


async def _happened(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    await page.watch.look()
    return list(page.watch.log.events)


async def _watch(page: Page, request: web.Request, names: dict[str, str]) -> web.StreamResponse:
    """Send the whole look, then every change, until the browser leaves."""
    watcher = await page.watch.join()
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
    try:
        await response.prepare(request)
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    line = await watcher.lines.get()
            except TimeoutError:
                line = ": still here\n\n"
            if line is None:
                break
            await response.write(line.encode())
    except ConnectionError:
        logger.debug("a watcher left")
    finally:
        page.watch.leave(watcher)
    return response


# ── switches of a broker ──


async def _entity_settings(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    from pairbus.dashboard.administering import form_of_settings

    return form_of_settings()


async def _kinds(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    """Return the kinds of faults that a broker plays."""
    return [
        {
            "kind": kind.name,
            "directions": kind.directions,
            "meets": kind.meets,
            "takes_entity": kind.takes_entity,
            "takes_chance": kind.takes_chance,
            "arguments": [
                {"name": each.name, "default": each.default, "meaning": each.meaning} for each in kind.arguments
            ],
        }
        for kind in KINDS.values()
        if "broker" in kind.at
    ]


def _switch(route: str) -> Handler:
    """Return the handler that passes a request on to a switch of the broker."""

    async def pass_on(page: Page, request: web.Request, names: dict[str, str]) -> Any:
        target = page.target(names["name"])
        body = None if request.method in (*READING, "DELETE") else await read_object(request)
        rest = f"/{names['number']}" if names.get("number") else ""
        reply = await target.switch(request.method, f"{route}{rest}", body)
        if request.method not in READING:
            await page.watch.refresh(target.name)
        return reply

    return pass_on


def _about_messages(function: str) -> Handler:
    def load() -> Any:
        from pairbus.dashboard import messages

        return messages

    return _lazily(load, function)


def _administration(function: str) -> Handler:
    def load() -> Any:
        from pairbus.dashboard import administering

        return administering

    return _lazily(load, function)


def _about_rules(function: str) -> Handler:
    def load() -> Any:
        from pairbus.dashboard import rules

        return rules

    return _lazily(load, function)


def _verb(function: str) -> Handler:
    def load() -> Any:
        from pairbus.dashboard import verbs

        return verbs

    return _lazily(load, function)


def _about_entities(function: str) -> Handler:
    def load() -> Any:
        from pairbus.dashboard import entities

        return entities

    return _lazily(load, function)


def _lazily(load: Callable[[], Any], function: str) -> Handler:
    """Return a handler that is imported when it is needed: a broker's page loads the code for messages at first use."""

    async def handle(page: Page, request: web.Request, names: dict[str, str]) -> Any:
        page.target(names["name"])
        loaded = await in_thread("pairbus-import", load)
        return await getattr(loaded, function)(page, request, names)

    return handle


async def _jobs(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    return page.jobs.get(int(names["number"])).as_json() if names.get("number") else page.jobs.list()


async def _cancel_job(page: Page, request: web.Request, names: dict[str, str]) -> Any:
    return page.jobs.cancel(int(names["number"])).as_json()


def _of_namespace(rest: str) -> re.Pattern[str]:
    return re.compile(rf"namespaces/(?P<name>[^/]+)/{rest}")


ROUTES: list[tuple[str, re.Pattern[str], Handler]] = [
    ("GET", re.compile("overview"), _overview),
    ("GET", re.compile("watch"), _watch),
    ("GET", re.compile("happened"), _happened),
    ("GET", re.compile("fault-kinds"), _kinds),
    ("GET", re.compile("entity-settings"), _entity_settings),
    ("GET", _of_namespace("faults"), _switch("faults")),
    ("POST", _of_namespace("faults"), _switch("faults")),
    ("DELETE", _of_namespace("faults"), _switch("faults")),
    ("DELETE", _of_namespace("faults/(?P<number>[0-9]{1,9})"), _switch("faults")),
    ("GET", _of_namespace("clock"), _switch("clock")),
    ("POST", _of_namespace("clock"), _switch("clock")),
    ("GET", _of_namespace("entity"), _about_entities("show")),
    ("GET", _of_namespace("settings"), _administration("settings")),
    ("POST", _of_namespace("create"), _administration("create")),
    ("POST", _of_namespace("change"), _administration("change")),
    ("POST", _of_namespace("delete"), _administration("delete")),
    ("GET", _of_namespace("sessions"), _about_entities("sessions")),
    ("GET", _of_namespace("scheduled"), _about_entities("scheduled_messages")),
    ("GET", _of_namespace("rules"), _about_entities("show_rules")),
    ("POST", _of_namespace("create-rule"), _about_rules("create")),
    ("POST", _of_namespace("change-rule"), _about_rules("change")),
    ("POST", _of_namespace("delete-rule"), _about_rules("delete")),
    ("POST", _of_namespace("match"), _about_entities("match")),
    ("GET", _of_namespace("messages"), _about_messages("browse")),
    ("GET", _of_namespace("message"), _about_messages("read")),
    ("GET", _of_namespace("body"), _about_messages("body")),
    ("GET", _of_namespace("dead-letters"), _about_messages("dead_letters")),
    ("GET", _of_namespace("count"), _verb("count")),
    ("GET", _of_namespace("export"), _verb("export_messages")),
    ("POST", _of_namespace("export"), _verb("export_messages")),
    ("POST", _of_namespace("send"), _about_messages("send_messages")),
    ("POST", _of_namespace("resend"), _about_messages("send_again")),
    ("POST", _of_namespace("cancel"), _about_messages("cancel_scheduled")),
    ("POST", _of_namespace("redrive"), _verb("begin_redrive")),
    ("POST", _of_namespace("move"), _verb("begin_move")),
    ("POST", _of_namespace("purge"), _verb("begin_purge")),
    ("POST", _of_namespace("import"), _verb("begin_import")),
    ("GET", re.compile("jobs"), _jobs),
    ("GET", re.compile("jobs/(?P<number>[0-9]{1,9})"), _jobs),
    ("DELETE", re.compile("jobs/(?P<number>[0-9]{1,9})"), _cancel_job),
]
"(method, path behind `api/`, handler). A GET changes nothing."
