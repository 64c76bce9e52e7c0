"""The switches of a broker as JSON over HTTP: `/$pairbus/<route>` of each namespace.

On the port a request needs Manage and meets the faults like every other request. `DIR/control.sock` has the same routes
at `/<namespace>/$pairbus/<route>` and needs no token: it has mode 0600, so only its owner can open it. Faults do not
affect it. `GET /` lists the namespaces.

A further route is one function and one line of `ROUTES`, or of `SOCKET_ROUTES`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from pairbus.broker.kit.backup import answer_backup
from pairbus.broker.kit.bodies import read_body, read_object
from pairbus.broker.kit.switches import answer_kit
from pairbus.broker.monitoring.overview import overview
from pairbus.broker.namespace import Namespace
from pairbus.errors import ConfigError, EntityNotFound, FaultNotFound, InvalidFault, PairbusError
from pairbus.faults import Active, Fault
from pairbus.host.control.sockets import has_unix_sockets, listen

logger = logging.getLogger("pairbus.broker")

BODY_SIZE_MAX = 256 * 1024
NUMBER_LENGTH_MAX = 18  # digits of the number of a fault
SOCKET_NAME = "control.sock"

HEARTBEAT_S = 5.0  # a peer that left is noticed at the next write
GAP_S = 0.02  # changes within this time are one line

Route = Callable[[Any, web.Request, tuple[str, ...]], Awaitable[Any]]
"(namespace, request, path segments behind the route) → the answer, as a response or as JSON. Raises a PairbusError."


class Switches(Protocol):
    """Faults of a namespace or of a proxy, as the routes switch them."""

    def add_fault(self, fault: Fault) -> Active: ...

    def clear(self, number: int | None = None) -> int: ...

    def list(self) -> list[dict[str, Any]]: ...


class Switched(Protocol):
    """A namespace or a proxy whose faults can be switched."""

    @property
    def name(self) -> str: ...

    @property
    def faults(self) -> Switches: ...


_STATUS_OF: tuple[tuple[type[PairbusError], int], ...] = (
    (FaultNotFound, 404),
    (EntityNotFound, 404),
    (ConfigError, 400),
    (PairbusError, 500),
)


# ── the routes ──


async def answer_faults(namespace: Switched, request: web.Request, rest: tuple[str, ...]) -> Any:
    """Answer GET: the faults that are on. POST: switch one on. DELETE, or DELETE /ID: switch all off, or one."""
    match request.method, rest:
        case "GET", ():
            return namespace.faults.list()
        case "POST", ():
            added = namespace.faults.add_fault(Fault.read(await read_object(request)))
            return next(shown for shown in namespace.faults.list() if shown["id"] == added.id)
        case "DELETE", ():
            return {"cleared": namespace.faults.clear()}
        case "DELETE", (number,):
            if not number.isdecimal() or len(number) > NUMBER_LENGTH_MAX:
                raise InvalidFault(f"{number!r:.80} is no number of a fault")
            return {"cleared": namespace.faults.clear(int(number))}
    raise web.HTTPMethodNotAllowed(request.method, ["GET", "POST", "DELETE"])


async def _kit(name: str, namespace: Namespace, request: web.Request, rest: tuple[str, ...]) -> web.Response:
    """Answer requests for the clock and the reset of the tester's kit."""
    status, answer = await answer_kit(namespace, request.method, "/".join((name, *rest)), await read_body(request))
    return web.json_response(answer, status=status)


async def _overview(namespace: Namespace, request: web.Request, rest: tuple[str, ...]) -> Any:
    """Answer GET: entities with their counts, faults, clock and meter."""
    if request.method != "GET" or rest:
        raise web.HTTPMethodNotAllowed(request.method, ["GET"])
    return overview(namespace)


async def _changes(namespace: Namespace, request: web.Request, rest: tuple[str, ...]) -> web.StreamResponse:
    """Answer GET: a line at once, for each change, and every few seconds, without end. Message counts are no change."""
    if request.method != "GET" or rest:
        raise web.HTTPMethodNotAllowed(request.method, ["GET"])
    changes, heard = namespace.changes, asyncio.Event()
    changes.follow(heard.set)
    heard.set()  # the first line tells the client that it follows
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": "no-store"})
    try:
        await response.prepare(request)
        while not changes.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await heard.wait()
            line = b"changed\n" if heard.is_set() else b"nothing\n"
            heard.clear()
            await response.write(line)
            await asyncio.sleep(GAP_S)
    except ConnectionError:
        logger.debug("%s: a follower left", namespace.name)
    finally:
        changes.leave(heard.set)
    return response


ROUTES: dict[str, Route] = {
    "faults": answer_faults,
    "overview": _overview,
    "changes": _changes,
    "clock": partial(_kit, "clock"),
    "reset": partial(_kit, "reset"),
}


SOCKET_ROUTES: dict[str, Route] = {**ROUTES, "backup": answer_backup}
"Routes of the control socket. Those that write files of this machine are not for clients of the port."


async def answer(
    namespace: Switched, request: web.Request, path: str, routes: Mapping[str, Route] = ROUTES
) -> web.StreamResponse:
    """Answer a request to `$pairbus/<route>[/…]`; errors are `{"error": …}` with their status."""
    _, name, *rest = path.strip("/").split("/")
    route = routes.get(name.lower())
    try:
        if route is None:
            raise web.HTTPNotFound(text=f"there is no '/$pairbus/{name}'; there are: {', '.join(routes)}")
        response = await route(namespace, request, tuple(rest))
        return response if isinstance(response, web.StreamResponse) else web.json_response(response)
    except web.HTTPException as error:
        allow = {name: value for name, value in error.headers.items() if name == "Allow"}
        return web.json_response({"error": error.text or error.reason}, status=error.status, headers=allow)
    except PairbusError as error:
        status = next(status for kind, status in _STATUS_OF if isinstance(error, kind))
        return web.json_response({"error": str(error)}, status=status)


# ── the socket ──


class ControlSocket:
    """The routes of all namespaces of a broker, or of a proxy, on a Unix socket."""

    def __init__(self, path: Path, namespaces: Mapping[str, Switched], routes: Mapping[str, Route] = ROUTES) -> None:
        """Make the socket. `namespaces`: by name in lower case."""
        self.path = path
        self._namespaces = namespaces
        self._routes = routes
        self._runner: web.AppRunner | None = None

    async def open(self) -> bool:
        """Listen. False when that fails: a warning says why, and the broker runs without the socket."""
        try:
            await self.listen()
        except ConfigError as error:
            logger.warning("%s; faults can be switched over the port", error)
            return False
        return True

    async def listen(self) -> None:
        """Listen. ConfigError says why that failed."""
        if not has_unix_sockets():
            raise ConfigError(f"{self.path}: this system has no Unix sockets")
        try:
            listener = listen(self.path)
        except OSError as error:
            remedy = "; use a shorter path" if error.errno == errno.ENAMETOOLONG else ""
            raise ConfigError(f"{self.path}: the control socket cannot be opened: {error.strerror}{remedy}") from error
        listener.setblocking(False)
        app = web.Application(client_max_size=BODY_SIZE_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        """Stop listening and remove the file."""
        if self._runner is not None:
            self.path.unlink(missing_ok=True)
            await self._runner.cleanup()
            self._runner = None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        name, _, path = request.path.strip("/").partition("/")
        if not name and request.method == "GET":
            return web.json_response({"namespaces": [each.name for each in self._namespaces.values()]})
        namespace = self._namespaces.get(name.lower())
        if namespace is None or not path.lower().startswith("$pairbus/"):
            known = ", ".join(each.name for each in self._namespaces.values())
            error = f"a path is /NAMESPACE/$pairbus/ROUTE; namespaces: {known}; routes: {', '.join(self._routes)}"
            return web.json_response({"error": error}, status=404)
        return await answer(namespace, request, path, self._routes)


def control_of(namespace: Namespace) -> Callable[[web.Request, str], Awaitable[web.StreamResponse]]:
    """Return the handler of `/$pairbus/…` on the port of a namespace; its caller has checked the right."""
    return partial(answer, namespace)
