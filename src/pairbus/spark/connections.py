"""Connections of one process, kept from one task to the next: a worker of Spark lives longer than its tasks.

Tasks are plain functions, connections live on an event loop. It runs in a thread of its own, once in a process, and
what nobody has used for a while is closed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pairbus.errors import ConfigError
from pairbus.transport import Carrier, Endpoint

IDLE_S = 60.0
LOOK_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a connection string stands; what Spark shows of it in plans, logs and pages is only this."""

    source: str
    "`env:NAME` or `@FILE`, to be read where it is needed."

    @classmethod
    def parse(cls, text: str, option: str) -> Secret:
        if text.removeprefix("env:") not in ("", text) or text.removeprefix("@") not in ("", text):
            return cls(text)
        raise ConfigError(
            f"{option}: Spark shows options in its plans and pages, so give the place of the connection string and not"
            " the string itself: 'env:NAME' for an environment variable, '@FILE' for a file"
        )

    def read(self) -> str:
        """ConfigError names the place and the host, never what stands there."""
        where = f"{self.source} on host {socket.gethostname()}"
        if self.source.startswith("env:"):
            text = os.environ.get(self.source[4:], "")
        else:
            try:
                text = Path(self.source[1:]).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"no connection string in {where}: {error}") from None
        if not text.strip():
            raise ConfigError(f"no connection string in {where}: it is not set, or empty")
        return text.strip()


class _Loop:
    """The event loop of this process, and the carriers on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.carriers: dict[tuple[str, str | None], Carrier] = {}
        self.used_at: dict[tuple[str, str | None], float] = {}
        self.in_use: dict[tuple[str, str | None], int] = {}
        self._endings: set[asyncio.Task[None]] = set()
        threading.Thread(target=self._run, name="pairbus connections", daemon=True).start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_later(LOOK_S, self._look)
        self.loop.run_forever()

    def _look(self) -> None:
        for key, at in list(self.used_at.items()):
            if not self.in_use.get(key) and self.loop.time() - at > IDLE_S:
                del self.used_at[key]
                ending = self.loop.create_task(self.carriers.pop(key).close())
                self._endings.add(ending)
                ending.add_done_callback(self._endings.discard)
        self.loop.call_later(LOOK_S, self._look)


_own: _Loop | None = None
_lock = threading.Lock()


def _loop() -> _Loop:
    global _own  # noqa: PLW0603
    with _lock:
        if _own is None:
            _own = _Loop()
        return _own


def _forget() -> None:
    """In the child of a fork: the thread is not there, and the sockets are the parent's."""
    global _own, _lock
    _own, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it on this process's event loop, and wait."""
    return asyncio.run_coroutine_threadsafe(work, _loop().loop).result()


class Borrowed:
    """`async with Borrowed(secret, ca_file) as carrier`: the process's connection to that namespace."""

    def __init__(self, secret: Secret, ca_file: str | None) -> None:
        self._key = (secret.read(), ca_file)

    async def __aenter__(self) -> Carrier:
        own = _loop()
        carrier = own.carriers.get(self._key)
        if carrier is None:
            text, ca_file = self._key
            carrier = own.carriers[self._key] = Carrier(Endpoint.parse(text), ssl=ca_file)
        own.in_use[self._key] = own.in_use.get(self._key, 0) + 1
        return carrier

    async def __aexit__(self, *_: object) -> None:
        own = _loop()
        own.in_use[self._key] -= 1
        own.used_at[self._key] = own.loop.time()
