"""A control socket and the thread that serves it: one request at a time, with JSON for every answer.

Laws of this file.
 1. The process that opened a socket serves it and removes it. A forked child does neither.
 2. A thread of its own answers, also while the event loop is busy.
 3. Functions that change something run in the event loop that they belong to (`call_in`), or not at all.
 4. The thread never waits for a follower, who asked to be told of events: a follower that does not read is cut.
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
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeVar

from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.host.control.places import new_path
from pairbus.host.control.rate import SAMPLE_S
from pairbus.host.control.sockets import has_unix_sockets, listen
from pairbus.host.forks import call_in_forked_child

logger = logging.getLogger("pairbus.control")

BODY_BYTES_MAX = 1 << 20
PEER_S = 2.0  # a peer may be silent for so long in the middle of a request; other peers wait for it
LOOP_S = 5.0
JOIN_S = 1.0
FOLLOWERS_MAX = 16
AGAIN_S = 1.0  # pause after an error of accept: perhaps there are no more file descriptors

ControlRoute = Callable[[dict[str, Any]], Any]
"Body of a request → answer, as JSON has them. Raises a PairbusError for a refusal."
Routes = Mapping[tuple[str, str], ControlRoute]
FOLLOW = object()
"Answer of a route that makes the peer a follower."

_STATUSES: tuple[tuple[type[PairbusError], int], ...] = (
    (EntityNotFound, 404),
    (ConfigError, 400),
    (PairbusError, 409),
)

T = TypeVar("T")


def open_server(role: str, path: Path | None, routes: Routes, tick: Callable[[], object]) -> ControlServer:
    """Open a control socket and serve it; without a path, in the folder of the user. ConfigError when it cannot be."""
    if not has_unix_sockets():
        raise ConfigError("a control socket cannot be opened: this system has no Unix sockets")
    try:
        path = new_path(role) if path is None else path
        return ControlServer(path, listen(path), routes, tick)
    except OSError as error:
        where = "a control socket" if path is None else f"the control socket {path}"
        raise ConfigError(f"{where} cannot be opened: {error.strerror or error}") from None


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


class ControlServer:
    """A control socket that is being served. `tick` is called every few seconds."""

    def __init__(self, path: Path, listener: socket.socket, routes: Routes, tick: Callable[[], object]) -> None:
        self.path = path
        self.routes = routes
        self._tick = tick
        self._listener = listener
        self._inode = path.stat().st_ino
        self._connection: socket.socket | None = None
        self._followers: list[socket.socket] = []
        self._lock = threading.RLock()  # `close` may be called by the garbage collector, anywhere
        "Held while followers are changed or told."
        self._pid = os.getpid()
        self._is_closed = False
        self._thread = threading.Thread(target=self._main, name="pairbus-control", daemon=True)
        _servers.add(self)
        listener.settimeout(SAMPLE_S)
        self._thread.start()

    @property
    def is_of_this_process(self) -> bool:
        return self._pid == os.getpid()

    def close(self, *, wait: bool = False) -> None:
        """Remove the socket and end the thread, in the process that opened it."""
        if self._is_closed or not self.is_of_this_process:
            return
        self._is_closed = True
        with self._lock:
            self._cut(self._followers)
        with suppress(OSError):  # the socket was removed by another process: the thread then ends within SAMPLE_S
            if self.path.stat().st_ino == self._inode:
                self._wake()
                self.path.unlink()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join(JOIN_S)

    def _wake(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, suppress(OSError):
            peer.setblocking(False)  # it connects at once, or other peers wait and wake the thread as well
            peer.connect(str(self.path))

    # ── followers ──

    def tell(self, event: dict[str, Any]) -> None:
        """Tell the followers, if there are any. Any thread may call this, and it never waits."""
        if not self._followers or not self.is_of_this_process:
            return
        line = json.dumps(event).encode() + b"\n"
        with self._lock:
            self._cut([one for one in self._followers if not _takes(one, line)])

    def make_room(self) -> None:
        """Forget followers that are gone. PairbusError: there is no room for one more."""
        with self._lock:
            self._cut([one for one in self._followers if _is_gone(one)])
            if len(self._followers) >= FOLLOWERS_MAX:
                raise PairbusError(f"{FOLLOWERS_MAX} follow this process already")

    def add_follower(self, follower: socket.socket, greet: Callable[[], None]) -> None:
        """Tell the follower of events from now on, after the lines that `greet` sends; it misses no event."""
        with self._lock:
            self._followers.append(follower)
            greet()

    def _cut(self, followers: list[socket.socket]) -> None:
        for one in followers:
            one.close()
        self._followers = [one for one in self._followers if one not in followers]

    def forget(self) -> None:
        """Close the sockets that a forked child inherited; the parent goes on."""
        self._cut(self._followers)  # without the lock, which another thread of the parent may hold
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def _main(self) -> None:
        with self._listener:
            while not self._is_closed:
                try:
                    self._connection, _ = self._listener.accept()
                except TimeoutError:
                    self._tick()
                    continue
                except OSError:
                    if not self._is_closed:
                        time.sleep(AGAIN_S)
                    continue
                with self._connection as connection, suppress(OSError):  # a peer that is gone needs no answer
                    _Exchange(connection, ("", 0), self)  # type: ignore[arg-type]  # only `routes` is asked of it
                self._connection = None


class _Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    timeout = PEER_S
    server: ControlServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        self._respond()

    do_POST = do_PUT = do_DELETE = do_GET

    def _respond(self) -> None:
        try:
            status, answer = 200, self._route()(self._body())
            if answer is FOLLOW:
                self.server.make_room()
        except PairbusError as error:
            status = next(status for kind, status in _STATUSES if isinstance(error, kind))
            answer = {"error": str(error)}
        except OSError:  # the peer is silent or gone
            raise
        except Exception as error:  # a bug of ours: the log has it, and the socket is still needed
            logger.exception("%s %s failed", self.command, self.path)
            status, answer = 500, {"error": f"{type(error).__name__}: {error}"}
        if answer is FOLLOW:
            self._follow()
        else:
            self._answer(status, answer)

    def _follow(self) -> None:
        """Answer with a line of JSON for each event, as it happens; the answer has no end."""
        follower = self.connection.dup()
        follower.setblocking(False)
        self.send_response(200)
        self.send_header("Content-Type", "application/jsonl")
        self.server.add_follower(follower, self.end_headers)

    def _route(self) -> ControlRoute:
        routes = self.server.routes
        route = routes.get((self.command, self.path.partition("?")[0]))
        if route is None:
            known = ", ".join(" ".join(each) for each in routes)
            raise EntityNotFound(f"there is no {self.command} {self.path:.200}; there are: {known}")
        return route

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            raise ConfigError(f"the body has {length:.20} bytes; accepted are up to {BODY_BYTES_MAX}")
        text = self.rfile.read(int(length)).decode("utf-8", "replace")
        try:
            body = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the body is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise ConfigError(f"the body must be a JSON object, is {text[:80]!r}")
        return body

    def _answer(self, status: int, answer: Any) -> None:
        text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read; the base class would do it in HTML."""
        self.close_connection = True
        self.request_version = "HTTP/1.0"  # the peer's version may be nonsense, or older than headers
        self._answer(code, {"error": message or "the request cannot be read"})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there are many requests."""


def _takes(follower: socket.socket, line: bytes) -> bool:
    """Send a line; False when the follower is gone or does not read."""
    try:
        return follower.send(line) == len(line)
    except OSError:
        return False


def _is_gone(follower: socket.socket) -> bool:
    """Tell whether a follower has closed its end; followers send nothing."""
    try:
        return follower.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def program() -> str:
    """Return the name of the program that this process runs, without its arguments, which may hold secrets."""
    path = Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else sys.executable)
    return path.parent.name if path.name == "__main__.py" else path.name


_servers: weakref.WeakSet[ControlServer] = weakref.WeakSet()


def _forget_in_child() -> None:
    for server in list(_servers):
        server.forget()


call_in_forked_child(_forget_in_child)
