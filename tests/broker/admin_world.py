"""A namespace in memory behind the real administration application, on one loopback port, plain and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from pairbus.auth.sas import LISTEN, SEND, KeyRing, SharedAccessKey
from pairbus.broker.admin import D, QueueInfo
from pairbus.broker.admin.app import WebSocketHandler, admin_app
from pairbus.broker.description import QueueDescription, path_key
from pairbus.broker.namespace import Namespace
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.wire.certificate import ca_path, server_context

ROOT_KEY = SharedAccessKey("RootManageSharedAccessKey", "SAS_KEY_VALUE")
LISTEN_KEY = SharedAccessKey("listener", "listen key", rights=frozenset({LISTEN}))
SEND_KEY = SharedAccessKey("sender", "send key", rights=frozenset({SEND}))


class WorldNamespace(Namespace):
    """A real namespace in memory, with counts that a test sets and errors that a test plans."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.planned_error: Exception | None = None
        self.clock_ms: int | None = None
        "Set it to a time to stop the clock there."
        self.counts: dict[str, dict[str, Any]] = {}
        "Planted fields of QueueInfo, by path."
        keys = KeyRing([ROOT_KEY, LISTEN_KEY, SEND_KEY])
        store = MemoryStore(loop.call_soon)
        super().__init__("contoso", store, keys, loop=loop, now_ms=self._clock)
        self.recover()

    def _clock(self) -> int:
        return self.clock_ms if self.clock_ms is not None else time.time_ns() // 1_000_000

    def forget_tests(self) -> None:
        """Leave nothing of an earlier test."""
        self.clock_ms = self.planned_error = None
        self.counts.clear()
        self.catalog.queues.clear()
        self.catalog.topics.clear()

    def add(self, path: str) -> None:
        """Create a queue from the thread of the test."""
        asyncio.run_coroutine_threadsafe(self.create(QueueDescription(path)), self._loop).result(10)

    async def create(self, description: D) -> D:
        self._fail_as_planned()
        return await super().create(description)

    async def update(self, description: D) -> D:
        self._fail_as_planned()
        return await super().update(description)

    async def delete(self, path: str) -> None:
        self._fail_as_planned()
        await super().delete(path)

    def queue_info(self, path: str) -> QueueInfo:
        return replace(super().queue_info(path), **self.counts.get(path_key(path), {}))

    def queue_infos(self) -> list[QueueInfo]:
        return [self.queue_info(info.description.path) for info in super().queue_infos()]

    def _fail_as_planned(self) -> None:
        if self.planned_error is not None:
            raise self.planned_error


class AdminServer:
    """The served namespace; tests talk to `port` with genuine clients from their own threads."""

    def __init__(self, namespace: WorldNamespace, folder: Path, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.namespace = namespace
        self.loop = loop
        self.ca_file = str(ca_path(folder))
        self.port = port

    def connection_string(self, key: SharedAccessKey = ROOT_KEY, host: str = "localhost") -> str:
        return (
            f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={key.name};SharedAccessKey={key.key};"
            "UseDevelopmentEmulator=true"
        )


@contextmanager
def serve(folder: Path, websocket: WebSocketHandler | None = None) -> Iterator[AdminServer]:
    """Serves in a thread with an event loop of its own, because half of the genuine clients block."""
    loop = asyncio.new_event_loop()
    namespace = WorldNamespace(loop)
    context = server_context(folder)
    listener = socket.create_server(("127.0.0.1", 0))
    app = admin_app(
        namespace, hosts=frozenset({"broker.test"}), ca_pem=ca_path(folder).read_bytes(), websocket=websocket
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    loop.run_until_complete(runner.setup())
    threads = [
        threading.Thread(target=loop.run_forever),
        threading.Thread(target=_accept, args=(listener, loop, runner, context)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield AdminServer(namespace, folder, listener.getsockname()[1], loop)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        for thread in threads:
            thread.join(10)
        listener.close()
        loop.close()


def _accept(
    listener: socket.socket, loop: asyncio.AbstractEventLoop, runner: web.AppRunner, context: ssl.SSLContext
) -> None:
    """Serve HTTP and HTTPS on one port, told apart by the first byte as the broker does."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        is_tls = connection.recv(1, socket.MSG_PEEK) == b"\x16"
        connection.setblocking(False)
        assert runner.server is not None
        connecting = loop.connect_accepted_socket(runner.server, connection, ssl=context if is_tls else None)
        asyncio.run_coroutine_threadsafe(connecting, loop)
