"""Follows control sockets: clients tell their events at once, so that the page need not wait for the next look."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from pairbus.transport.tasks import Tasks

AGAIN_S = 1.0
CONNECT_S = 2.0


class Following:
    """Keeps a connection to each known control socket."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        """Take the function that is called for each event."""
        self._on_event = on_event
        self._tasks: dict[Path, asyncio.Task[None]] = {}
        self._watched = Tasks()

    def keep(self, paths: Iterable[Path]) -> None:
        """Follow exactly these sockets."""
        sockets = set(paths)
        for path in self._tasks.keys() - sockets:
            self._tasks.pop(path).cancel()
        for path in sockets - self._tasks.keys():
            self._tasks[path] = self._watched.start(self._follow(path), f"following {path}")

    async def _follow(self, path: Path) -> None:
        """Follow one process until it is gone, or says that it has no events: a syphon has none."""
        while await _hear(path, self._on_event):
            self._on_event()
            await asyncio.sleep(AGAIN_S)


async def _hear(path: Path, on_event: Callable[[], None]) -> bool:
    """Call `on_event` for each event, until the connection ends; False when there is no connection, or no events."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    try:
        writer.write(b"GET /events HTTP/1.0\r\n\r\n")
        if b" 200 " not in await reader.readline():
            return False
        while (await reader.readline()).strip():
            pass  # headers
        while await reader.readline():
            on_event()
    except (OSError, ValueError):  # the process ended in the middle, or a line has no end
        pass
    finally:
        writer.close()
    return True
