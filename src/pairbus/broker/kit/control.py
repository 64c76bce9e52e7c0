"""The switches of a broker as JSON over HTTP: `/$pairbus/<route>` of each namespace.

On the port (`broker/kit/port.py`) a request needs Manage and meets the faults like every other request.
`DIR/control.sock` has the same routes at `/<namespace>/$pairbus/<route>` and needs no token: it has mode 0600, so only
its owner can open it. Faults do not affect it. `GET /` lists the namespaces. All routes run in the broker's event
loop.

A further route is one function and one line of `ROUTES`, or of `SOCKET_ROUTES`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pairbus.broker.kit.backup import answer_backup
from pairbus.broker.kit.routes import SwitchLines, SwitchRequest, not_allowed
from pairbus.broker.kit.switches import answer_kit
from pairbus.broker.monitoring.changes import Changes
from pairbus.broker.monitoring.overview import overview
from pairbus.broker.namespace import Namespace
from pairbus.errors import ConfigError, EntityNotFound, FaultNotFound, InvalidFault, PairbusError
from pairbus.faults import Active, Fault
from pairbus.host.control.followers import takes_line
from pairbus.host.control.serving import (
    ControlAnswer,
    ControlRequest,
    ControlServer,
    ControlStream,
    open_server,
    read_object,
)

logger = logging.getLogger("pairbus.broker")

ANSWER_S = 60.0
NUMBER_LENGTH_MAX = 18  # digits of the number of a fault
SOCKET_NAME = "control.sock"

HEARTBEAT_S = 5.0  # a peer that left is noticed at the next write
GAP_S = 0.02  # changes within this time are one line


Route = Callable[[Any, SwitchRequest], Awaitable[Any]]
"(namespace, request) → the answer as JSON, a `ControlAnswer`, or `SwitchLines`. Raises a PairbusError."


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


async def answer_faults(namespace: Switched, request: SwitchRequest) -> Any:
    """Answer GET: the faults that are on. POST: switch one on. DELETE, or DELETE /ID: switch all off, or one."""
    match request.method, request.rest:
        case "GET", ():
            return namespace.faults.list()
        case "POST", ():
            added = namespace.faults.add_fault(Fault.read(read_object(request.body)))
            return next(shown for shown in namespace.faults.list() if shown["id"] == added.id)
        case "DELETE", ():
            return {"cleared": namespace.faults.clear()}
        case "DELETE", (number,):
            if not number.isdecimal() or len(number) > NUMBER_LENGTH_MAX:
                raise InvalidFault(f"{number!r:.80} is no number of a fault")
            return {"cleared": namespace.faults.clear(int(number))}
    return not_allowed("GET", "POST", "DELETE")


async def _kit(name: str, namespace: Namespace, request: SwitchRequest) -> ControlAnswer:
    """Answer requests for the clock and the reset of the tester's kit."""
    return ControlAnswer(*await answer_kit(namespace, request.method, "/".join((name, *request.rest)), request.body))


async def _overview(namespace: Namespace, request: SwitchRequest) -> Any:
    """Answer GET: entities with their counts, faults, clock and meter."""
    return overview(namespace) if request.is_("GET") else not_allowed("GET")


async def _changes(namespace: Namespace, request: SwitchRequest) -> Any:
    """Answer GET: a line at once, for each change, and every few seconds, without end. Message counts are no change."""
    return SwitchLines("text/plain", _change_lines(namespace.changes)) if request.is_("GET") else not_allowed("GET")


async def _change_lines(changes: Changes) -> AsyncGenerator[bytes, None]:
    heard = asyncio.Event()
    changes.follow(heard.set)
    heard.set()  # the first line tells the client that it follows
    try:
        while not changes.is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await heard.wait()
            line = b"changed\n" if heard.is_set() else b"nothing\n"
            heard.clear()
            yield line
            await asyncio.sleep(GAP_S)
    finally:
        changes.leave(heard.set)


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
    namespace: Switched, method: str, path: str, body: bytes, routes: Mapping[str, Route] = ROUTES
) -> ControlAnswer | SwitchLines:
    """Answer a request to `$pairbus/<route>[/…]`; errors are `{"error": …}` with their status."""
    _, name, *rest = path.strip("/").split("/")
    route = routes.get(name.lower())
    if route is None:
        return ControlAnswer(404, {"error": f"there is no '/$pairbus/{name}'; there are: {', '.join(routes)}"})
    try:
        value = await route(namespace, SwitchRequest(method, tuple(rest), body))
        if isinstance(value, SwitchLines):
            await value.begin()
    except PairbusError as error:
        status = next(status for kind, status in _STATUS_OF if isinstance(error, kind))
        return ControlAnswer(status, {"error": str(error)})
    return value if isinstance(value, (ControlAnswer, SwitchLines)) else ControlAnswer(200, value)


# ── the socket ──


class ControlSocket:
    """The routes of all namespaces of a broker, or of a proxy, on a Unix socket."""

    def __init__(self, path: Path, namespaces: Mapping[str, Switched], routes: Mapping[str, Route] = ROUTES) -> None:
        """Make the socket. `namespaces`: by name in lower case."""
        self.path = path
        self._namespaces = namespaces
        self._routes = routes
        self._server: ControlServer | None = None
        self._streams: set[asyncio.Task[None]] = set()

    def open(self) -> bool:
        """Listen. False when that fails: a warning says why, and the broker runs without the socket."""
        try:
            self.listen()
        except ConfigError as error:
            logger.warning("%s; faults can be switched over the port", error)
            return False
        return True

    def listen(self) -> None:
        """Listen, and answer in the running event loop. ConfigError says why that failed."""
        self._loop = asyncio.get_running_loop()
        self._server = open_server("broker", self.path, self._handle, lambda: None)

    async def close(self) -> None:
        """Stop listening, remove the file, and end the streams."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.close, wait=True)
        for task in self._streams:
            task.cancel()
        if self._streams:
            await asyncio.wait(self._streams)

    def _handle(self, request: ControlRequest) -> ControlAnswer | ControlStream:
        """Answer a request, in the thread that serves it."""
        answering = self._answered(request)
        try:
            future = asyncio.run_coroutine_threadsafe(answering, self._loop)
        except RuntimeError:  # the loop is closed
            answering.close()
            raise PairbusError("it has stopped; nothing was done") from None
        try:
            reply = future.result(ANSWER_S)
        except TimeoutError:
            if future.done():
                raise
            raise PairbusError(f"it did not answer within {ANSWER_S:g} s; it may still do what was asked") from None
        return reply if isinstance(reply, ControlAnswer) else _SocketStream(self._loop, reply, self._streams)

    async def _answered(self, request: ControlRequest) -> ControlAnswer | SwitchLines:
        name, _, path = request.path.strip("/").partition("/")
        if not name and request.method == "GET":
            return ControlAnswer(200, {"namespaces": [each.name for each in self._namespaces.values()]})
        namespace = self._namespaces.get(name.lower())
        if namespace is None or not path.lower().startswith("$pairbus/"):
            known = ", ".join(each.name for each in self._namespaces.values())
            error = f"a path is /NAMESPACE/$pairbus/ROUTE; namespaces: {known}; routes: {', '.join(self._routes)}"
            return ControlAnswer(404, {"error": error})
        return await answer(namespace, request.method, path, request.body, self._routes)


class _SocketStream:
    """SwitchLines on a connection of the control socket, which a task of the broker's event loop writes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lines: SwitchLines, tasks: set[asyncio.Task[None]]) -> None:
        self.content_type = lines.content_type
        self._loop = loop
        self._lines = lines
        self._tasks = tasks

    def adopt(self, follower: socket.socket, greet: Callable[[], None]) -> None:
        try:
            greet()
        finally:  # the task notices too when the peer is gone
            self._loop.call_soon_threadsafe(self._start, follower)

    def _start(self, follower: socket.socket) -> None:
        task = self._loop.create_task(self._write(follower))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, follower: socket.socket) -> None:
        with follower:
            try:
                async for line in self._lines:
                    if not takes_line(follower, line):
                        break
            finally:
                await self._lines.close()
