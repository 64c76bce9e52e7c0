"""Followers of a process: peers of its control socket to whom it tells events as they happen, a line of JSON each.

Nobody ever waits for a follower: one that does not read is cut.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from pairbus.errors import PairbusError

FOLLOWERS_MAX = 16


class Followers:
    """The followers of one process; a stream of `host/control/serving.py`."""

    content_type = "application/jsonl"

    def __init__(self) -> None:
        self._followers: list[socket.socket] = []
        self._lock = threading.RLock()  # `close` may be called by the garbage collector, anywhere
        self._pid = os.getpid()

    def tell(self, event: dict[str, Any]) -> None:
        """Tell the followers, if there are any. Any thread may call this, and it never waits."""
        if not self._followers or self._pid != os.getpid():
            return
        line = json.dumps(event).encode() + b"\n"
        with self._lock:
            self._cut([one for one in self._followers if not takes_line(one, line)])

    def with_room(self) -> Followers:
        """Return the followers after those that are gone were forgotten. PairbusError: no room for one more."""
        with self._lock:
            self._cut([one for one in self._followers if _is_gone(one)])
            if len(self._followers) >= FOLLOWERS_MAX:
                raise PairbusError(f"{FOLLOWERS_MAX} follow this process already")
        return self

    def adopt(self, follower: socket.socket, greet: Callable[[], None]) -> None:
        """Tell the follower of events from now on, after the lines that `greet` sends; it misses no event."""
        with self._lock:
            self._followers.append(follower)
            greet()

    def close(self) -> None:
        with self._lock:
            self._cut(self._followers)

    def forget(self) -> None:
        """Close the sockets that a forked child inherited; the parent goes on."""
        self._cut(self._followers)  # without the lock, which another thread of the parent may hold

    def _cut(self, followers: list[socket.socket]) -> None:
        for one in followers:
            one.close()
        self._followers = [one for one in self._followers if one not in followers]


def takes_line(follower: socket.socket, line: bytes) -> bool:
    """Send a line on a socket that does not block; False when the follower is gone or does not read."""
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
