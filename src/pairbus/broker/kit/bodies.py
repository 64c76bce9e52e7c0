"""Bodies of requests to the routes of `control`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from pairbus.errors import ConfigError

BODY_WAIT_S = 20


async def read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            return await request.read()
    except TimeoutError:
        raise ConfigError(f"the body did not arrive within {BODY_WAIT_S} seconds") from None


async def read_object(request: web.Request) -> dict[str, Any]:
    """Read the body of a request, a JSON object; an empty body is an empty object."""
    text = (await read_body(request)).decode("utf-8", "replace")
    try:
        values = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"the body must be a JSON object, is {text[:80]!r}")
    return values
