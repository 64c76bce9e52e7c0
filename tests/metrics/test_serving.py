"""A port that serves metrics: its readers, and where it may listen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pairbus.errors import ConfigError
from pairbus.telemetry.metrics.serving import MetricsPort, place_of
from pairbus.telemetry.metrics.text import CONTENT_TYPE, Family


@asynccontextmanager
async def served(token: str | None = None) -> AsyncIterator[str]:
    port = MetricsPort("127.0.0.1", 0, token, lambda: [Family("a", "gauge", "A", [("", "", 1)])])
    await port.open()
    try:
        yield port.url
    finally:
        await port.close()


async def get(url: str, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_loopback_needs_no_token() -> None:
    """A scraper asks again and again."""
    async with served() as url:
        assert await get(url) == await get(url) == (200, CONTENT_TYPE, "# HELP a A\n# TYPE a gauge\na 1\n")
        assert (await get(url.replace("/metrics", "/")))[0] == 404


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("[::1]:9", 200), ("evil.example", 421), ("[", 421)])
async def test_request_for_another_host_is_refused(host: str, status: int) -> None:
    """DNS rebinding: a web page would read the names of all entities."""
    async with served() as url:
        assert (await get(url, Host=host))[0] == status
        assert (await get(url, Host=host, Origin="http://localhost"))[0] == (403 if status == 200 else status)


async def test_token_must_be_shown_where_there_is_one() -> None:
    """A token that was set is required on the loopback too."""
    async with served("secret") as url:
        assert (await get(url))[0] == (await get(url, Authorization="Bearer other"))[0] == 401
        assert (await get(url, Authorization="Bearer secret"))[0] == 200


async def test_bad_places_are_clear_errors() -> None:
    """Each error says what a right value is."""
    with pytest.raises(ConfigError, match="PAIRBUS_METRICS_TOKEN"):
        MetricsPort("0.0.0.0", 0, None, list)
    with pytest.raises(ConfigError, match="empty"):
        MetricsPort("127.0.0.1", 0, "", list)
    assert place_of("9464") == ("127.0.0.1", 9464)
    assert place_of("0.0.0.0:1") == ("0.0.0.0", 1) and place_of("[::1]:1") == ("::1", 1)
    for wrong in ("", ":", ":9464", "here", "localhost:", "70000", "9464/metrics", "²"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            place_of(wrong)
    async with served() as url:
        with pytest.raises(ConfigError, match="cannot serve metrics on"):
            await MetricsPort("127.0.0.1", int(url.split(":")[2].split("/")[0]), None, list).open()
