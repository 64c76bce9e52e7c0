"""The server of control sockets: JSON over HTTP, for brokers, proxies, clients and syphons.

Laws of this file.
 1. The process that opened a socket serves it and removes it. A forked child does neither.
 2. Threads answer, also while the event loop is busy: one accepts, and each request has one of its own, so that a
    request that waits (for a disk that a fault stopped) does not keep the next one out (which ends the fault).
 3. Functions that change something run in the event loop that they belong to (`call_in`), or not at all.
 4. No thread waits for a peer that follows: a `ControlStream` takes the connection over.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.host.control.followers import Followers
from pairbus.host.control.places import new_path
from pairbus.host.control.rate import SAMPLE_S
from pairbus.host.control.sockets import has_unix_sockets, listen
from pairbus.host.forks import call_in_forked_child

logger = logging.getLogger("pairbus.control")

BODY_BYTES_MAX = 1 << 20
PEER_S = 2.0  # a peer may be silent for so long in the middle of a request
LOOP_S = 5.0
JOIN_S = 1.0
AT_ONCE = 32  # requests, each with a thread; further peers wait
AGAIN_S = 1.0  # pause after an error of accept: perhaps there are no more file descriptors


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A request as it was read."""

    method: str
    path: str
    "Without the query, and without percent signs."
    body: bytes


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """A status and the JSON of an answer."""

    status: int
    value: Any
    allow: str = ""
    "Methods that the path has, when it has not the one of the request."


class ControlStream(Protocol):
    """An answer without an end."""

    @property
    def content_type(self) -> str: ...

    def adopt(self, follower: socket.socket, greet: Callable[[], None]) -> None:
        """Take the connection over, which does not block; `greet` sends the headers."""


Handler = Callable[[ControlRequest], ControlAnswer | ControlStream]
"Called in a thread of the request. A PairbusError is answered with status 409, ConfigError 400, EntityNotFound 404."
ControlRoute = Callable[[dict[str, Any]], Any]
"Body of a request → the JSON of its answer, or a ControlStream."
Routes = Mapping[tuple[str, str], ControlRoute]

_STATUSES: tuple[tuple[type[PairbusError], int], ...] = (
    (EntityNotFound, 404),
    (ConfigError, 400),
    (PairbusError, 409),
)

T = TypeVar("T")


# ── what a request leads to ──


def by_routes(routes: Routes) -> Handler:
    """Return the handler that looks up method and path in a table."""

    def handle(request: ControlRequest) -> ControlAnswer | ControlStream:
        route = routes.get((request.method, request.path))
        if route is None:
            known = ", ".join(" ".join(each) for each in routes)
            raise EntityNotFound(f"there is no {request.method} {request.path:.200}; there are: {known}")
        value = route(read_object(request.body))
        return value if isinstance(value, Followers) else ControlAnswer(200, value)

    return handle


def read_object(body: bytes) -> dict[str, Any]:
    """Read the body of a request, a JSON object; an empty body is an empty object."""
    text = body.decode("utf-8", "replace")
    try:
        values = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"the body must be a JSON object, is {text[:80]!r}")
    return values


def call_in(loop: AbstractEventLoop, function: Callable[[], T], wait_s: float = LOOP_S) -> T:
    """Call a function in an event loop and return its result. PairbusError when it was not called in time."""
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        if not outcome.set_running_or_notify_cancel():
            return  # too late: the caller was told that nothing was done
        try:
            result = function()
        except Exception as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    try:
        loop.call_soon_threadsafe(call)
        return outcome.result(wait_s)
    except (RuntimeError, TimeoutError):
        if outcome.done() or not outcome.cancel():
            return outcome.result()
        raise PairbusError(f"its event loop did not answer within {wait_s:g} s; nothing was done") from None


# ── the server ──


def open_server(
    role: str, path: Path | None, handler: Handler, tick: Callable[[], object], followers: Followers | None = None
) -> ControlServer:
    """Open a control socket and serve it; without a path, in the folder of the user. ConfigError when it cannot be."""
    place = "a control socket" if path is None else f"{path}: the control socket"
    if not has_unix_sockets():
        raise ConfigError(f"{place} cannot be opened: this system has no Unix sockets")
    try:
        path = new_path(role) if path is None else path
        return ControlServer(path, listen(path), handler, tick, followers)
    except OSError as error:
        raise ConfigError(f"{place} cannot be opened: {error.strerror or error}") from None


class ControlServer:
    """A control socket that is being served. `tick` is called every few seconds while nobody asks."""

    def __init__(
        self,
        path: Path,
        listener: socket.socket,
        handler: Handler,
        tick: Callable[[], object],
        followers: Followers | None,
    ) -> None:
        self.path = path
        self.handler = handler
        self._tick = tick
        self._followers = followers
        self._listener = listener
        self._inode = path.stat().st_ino
        self._peers: dict[threading.Thread, socket.socket] = {}
        self._room = threading.Semaphore(AT_ONCE)
        self._pid = os.getpid()
        self._is_closed = False
        self._thread = threading.Thread(target=self._main, name=f"pairbus-control {path.name}", daemon=True)
        _servers.add(self)
        listener.settimeout(SAMPLE_S)
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def close(self, *, wait: bool = False) -> None:
        """Remove the socket and end the threads, in the process that opened it."""
        if self._is_closed or not self.is_of_this_process:
            return
        self._is_closed = True
        if self._followers is not None:
            self._followers.close()
        with suppress(OSError):  # the socket was removed by another process: the thread then ends within SAMPLE_S
            if self.path.stat().st_ino == self._inode:
                self._wake()
                self.path.unlink()
        if wait:
            ends_at = time.monotonic() + JOIN_S
            for thread in (self._thread, *self._peers):
                if thread is not threading.current_thread():
                    thread.join(max(ends_at - time.monotonic(), 0.0))

    def _wake(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, suppress(OSError):
            peer.setblocking(False)  # it connects at once, or other peers wait and wake the thread as well
            peer.connect(str(self.path))

    def forget(self) -> None:
        """Close the sockets that a forked child inherited; the parent goes on."""
        if self._followers is not None:
            self._followers.forget()
        self._listener.close()
        for connection in self._peers.values():
            connection.close()

    def _main(self) -> None:
        with self._listener:
            while not self._is_closed:
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    self._tick()
                    continue
                except OSError:
                    if not self._is_closed:
                        time.sleep(AGAIN_S)
                    continue
                self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        """Serve a connection in a thread of its own, as soon as there is room for one more."""
        while not self._room.acquire(timeout=AGAIN_S):
            if self._is_closed:
                break
        if self._is_closed:
            connection.close()
            return
        thread = threading.Thread(target=self._serve, args=(connection,), name="pairbus-control-peer", daemon=True)
        self._peers[thread] = connection
        try:
            thread.start()
        except RuntimeError as error:  # there are too many threads, or the interpreter ends
            logger.warning("%s: a request is refused: %s", self.path, error)
            self._end(thread, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):  # a peer that is gone needs no answer
                _Exchange(connection, ("", 0), self)  # type: ignore[arg-type]  # only `handler` is asked of it
        finally:
            self._end(threading.current_thread(), connection)

    def _end(self, thread: threading.Thread, connection: socket.socket) -> None:
        connection.close()
        self._peers.pop(thread, None)
        self._room.release()


class _Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    server: ControlServer  # type: ignore[assignment]

    def setup(self) -> None:
        self.request.settimeout(PEER_S)
        super().setup()

    def do_GET(self) -> None:
        self._respond()

    do_POST = do_PUT = do_DELETE = do_GET

    def _respond(self) -> None:
        answer: ControlAnswer | ControlStream
        try:
            path = unquote(self.path.partition("?")[0])
            answer = self.server.handler(ControlRequest(self.command, path, self._body()))
        except PairbusError as error:
            status = next(status for kind, status in _STATUSES if isinstance(error, kind))
            answer = ControlAnswer(status, {"error": str(error)})
        except OSError:  # the peer is silent or gone
            raise
        except Exception as error:  # a bug of ours: the log has it, and the socket is still needed
            logger.exception("%s %s failed", self.command, self.path)
            answer = ControlAnswer(500, {"error": f"{type(error).__name__}: {error}"})
        if isinstance(answer, ControlAnswer):
            self._answer(answer)
        else:
            self._stream(answer)

    def _stream(self, stream: ControlStream) -> None:
        follower = self.connection.dup()
        follower.setblocking(False)
        self.send_response(200)
        self.send_header("Content-Type", stream.content_type)
        self.send_header("Cache-Control", "no-store")
        stream.adopt(follower, self.end_headers)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            raise ConfigError(f"the body has {length:.20} bytes; accepted are up to {BODY_BYTES_MAX}")
        try:
            return self.rfile.read(int(length))
        except TimeoutError:
            raise ConfigError(f"the body did not arrive within {PEER_S:g} seconds") from None

    def _answer(self, answer: ControlAnswer) -> None:
        text = json.dumps(answer.value, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        if answer.allow:
            self.send_header("Allow", answer.allow)
        self.end_headers()
        self.wfile.write(text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read; the base class would do it in HTML."""
        self.close_connection = True
        self.request_version = "HTTP/1.0"  # the peer's version may be nonsense, or older than headers
        self._answer(ControlAnswer(code, {"error": message or "the request cannot be read"}))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there are many requests."""


def program() -> str:
    """Return the name of the program that this process runs, without its arguments, which may hold secrets."""
    path = Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else sys.executable)
    return path.parent.name if path.name == "__main__.py" else path.name


_servers: weakref.WeakSet[ControlServer] = weakref.WeakSet()


def _forget_in_child() -> None:
    for server in list(_servers):
        server.forget()


call_in_forked_child(_forget_in_child)
