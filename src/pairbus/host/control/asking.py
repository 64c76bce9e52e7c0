"""Asks control sockets, and sends them commands."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pairbus.errors import PairbusError

ANSWER_SIZE_MAX = 64 << 20  # bytes; some 300 for each entity of a client
AT_ONCE = 16


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path, wait_s: float) -> None:
        super().__init__("localhost", timeout=wait_s)
        self._path = path
        self._wait_s = wait_s

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._wait_s)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, route: str, body: dict[str, Any] | None, wait_s: float) -> tuple[int, Any]:
    """Make one request; return the status and the JSON of the answer. PairbusError when there is no answer."""
    connection = UnixConnection(path, wait_s)
    try:
        connection.request(method, route, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read(ANSWER_SIZE_MAX))
    except TimeoutError:
        raise PairbusError(f"{path}: no answer within {wait_s:g} s; is its process stopped?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise PairbusError(f"{path}: no answer: {reason}") from None
    finally:
        connection.close()


def describe_all(paths: Sequence[Path], wait_s: float) -> list[dict[str, Any] | PairbusError]:
    """Ask all processes at the same time to describe themselves; a missing answer is an error in its place."""
    if not paths:
        return []
    with ThreadPoolExecutor(min(len(paths), AT_ONCE), "pairbus-control") as threads:
        return list(threads.map(lambda path: _described(path, wait_s), paths))


def _described(path: Path, wait_s: float) -> dict[str, Any] | PairbusError:
    try:
        status, said = ask(path, "GET", "/", None, wait_s)
    except PairbusError as error:
        return error
    if status != 200 or not isinstance(said, dict) or "role" not in said:
        return PairbusError(f"{path} does not speak as a control socket of this version does (status {status})")
    return said
