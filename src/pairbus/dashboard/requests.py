"""Reads requests of the page: their JSON, their numbers, and the texts of their errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from pairbus.errors import ConfigError

BODY_SIZE_MAX = 1 << 20  # for a message that is typed into a form; files have their own limit
BODY_WAIT_S = 20.0


async def read_bytes(request: web.Request, size_max: int = BODY_SIZE_MAX, wait_s: float = BODY_WAIT_S) -> bytes:
    """Read the body of a request. ConfigError when it is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(wait_s):
            async for chunk in request.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > size_max:
                    raise ConfigError(f"the body has more than {size_max} bytes")
    except TimeoutError:
        raise ConfigError(f"the body did not arrive within {wait_s:g} s") from None
    return bytes(body)


async def read_object(request: web.Request, size_max: int = BODY_SIZE_MAX) -> dict[str, Any]:
    """Read a JSON object; an empty body is an empty object."""
    text = await read_bytes(request, size_max)
    try:
        value = json.loads(text) if text.strip() else {}
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # JSON may escape it, but no path and no field of a message can have it
        raise ConfigError("the body has half of a surrogate pair, which is not a character") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("the body must be a JSON object")
    return value


def text_of(request: web.Request, name: str) -> str:
    """Return a required parameter of the URL."""
    value = request.query.get(name, "")
    if not value:
        raise ConfigError(f"the parameter {name} is missing")
    return value


def number_of(request: web.Request, name: str, default: int, most: int) -> int:
    """Return a whole number of the URL, not below 0."""
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        raise ConfigError(f"{name} is {text[:40]!r}; a whole number is needed")
    return min(int(text), most)
