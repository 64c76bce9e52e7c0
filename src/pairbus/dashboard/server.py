"""Serves the page alone on the port of `pairbus dashboard`, by default on the loopback."""

from __future__ import annotations

import errno
import os
from types import TracebackType

from aiohttp import web

from pairbus.auth.hosts import in_url
from pairbus.dashboard.api import Page
from pairbus.errors import ConfigError

LAST_REQUESTS_S = 1.0


class DashboardServer:
    """Server of one page while it is entered."""

    def __init__(self, page: Page, host: str, port: int) -> None:
        self._page = page
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""
        "Address of the page, without a token."

    async def __aenter__(self) -> DashboardServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._page.handle)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=LAST_REQUESTS_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            await self._page.close()
            other = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "address"
            reason = os.strerror(error.errno) if error.errno else error
            raise ConfigError(f"cannot listen on {self._host}:{self._port}: {reason}; choose another {other}") from None
        self._page.watch.begin()
        self.url = f"http://{in_url(self._host)}:{self._runner.addresses[0][1]}/"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._page.close()
        if self._runner is not None:
            await self._runner.cleanup()
