"""`GET /metrics` over HTTP: the answer, for applications that have a port, and a port of its own for commands.

Rights: without a token only the loopback is served; with one, every request must have `Authorization: Bearer TOKEN`.
A request that names another host, or comes from a web page, is refused: the page names entities.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Iterable
from urllib.parse import urlsplit

from aiohttp import web

from pairbus.auth.hosts import LOOPBACK_HOSTS, in_url, is_address, is_loopback
from pairbus.errors import ConfigError
from pairbus.telemetry.metrics.text import CONTENT_TYPE, Family, render_all

TOKEN_VARIABLE = "PAIRBUS_METRICS_TOKEN"


async def metrics_answer(families: Iterable[Family]) -> web.Response:
    """Answer with a page. Between two families the event loop gets its turn."""
    parts = []
    for part in render_all(families):
        parts.append(part)
        await asyncio.sleep(0)
    body = "".join(parts).encode("utf-8", "replace")
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


def refusal_of(request: web.Request, host: str, token: str | None, hosts: Collection[str] = ()) -> web.Response | None:
    """Return the answer to a request that has no right to the page; None when it has.

    `host`: the address on which the server listens; `hosts`: further names of it, in lower case. `token`: the token
    that a request must have; None: no token, which is for the loopback only.
    """
    try:
        named = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError:
        named = ""
    if named not in {*LOOPBACK_HOSTS, host.lower(), *hosts} and not is_address(named):
        return web.Response(status=421, text="this is another host\n")
    if "Origin" in request.headers:
        return web.Response(status=403, text="requests of web pages are refused\n")
    shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
    if token is not None and not hmac.compare_digest(shown, f"Bearer {token}".encode()):
        text = "the page needs the token: Authorization: Bearer TOKEN\n"
        return web.Response(status=401, text=text, headers={"WWW-Authenticate": "Bearer"})
    return None


class MetricsPort:
    """A port that serves only `GET /metrics`, until it is closed."""

    def __init__(self, host: str, port: int, token: str | None, families: Callable[[], Iterable[Family]]) -> None:
        """Check host and token: without a token only the loopback is served, else ConfigError. Port 0: any free one."""
        if token == "":
            raise ConfigError(f"{TOKEN_VARIABLE} is empty: remove it, or give it a text that nobody guesses")
        if token is None and not is_loopback(host):
            raise ConfigError(f"serving metrics on {host} needs a token: set {TOKEN_VARIABLE}")
        self._host = host
        self._port = port
        self._token = token
        self._families = families
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{in_url(self._host)}:{self._port}/metrics"

    async def open(self) -> None:
        """Listen; ConfigError when the address cannot be listened on."""
        app = web.Application()
        app.router.add_get("/metrics", self._handle)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"cannot serve metrics on {self._host}:{self._port}: {error.strerror or error}"
            ) from error
        self._runner, (_, self._port) = runner, runner.addresses[0][:2]

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        refused = refusal_of(request, self._host, self._token)
        return refused if refused is not None else await metrics_answer(self._families())


def place_of(text: str) -> tuple[str, int]:
    """Read `PORT` or `HOST:PORT`; without a host it is the loopback. ConfigError when the text is neither."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (colon and not host) or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise ConfigError(f"{text!r:.80} is no place for metrics; right is PORT or HOST:PORT, as 9464 or 0.0.0.0:9464")
    return host or LOOPBACK_HOSTS[1], int(port)
