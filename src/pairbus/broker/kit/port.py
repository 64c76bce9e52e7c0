"""The switches of a namespace on its port: the routes of `broker/kit/control.py`, behind the admin routes' checks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from pairbus.broker.kit.control import answer
from pairbus.broker.kit.routes import SwitchLines
from pairbus.broker.namespace import Namespace
from pairbus.host.control.serving import ControlAnswer

logger = logging.getLogger("pairbus.broker")

BODY_WAIT_S = 20


def control_of(namespace: Namespace) -> Callable[[web.Request, str], Awaitable[web.StreamResponse]]:
    """Return the handler of `/$pairbus/…` on the port of a namespace; its caller has checked the right."""
    return partial(_respond, namespace)


async def _respond(namespace: Namespace, request: web.Request, path: str) -> web.StreamResponse:
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            body = await request.read()
    except TimeoutError:
        error = f"the body did not arrive within {BODY_WAIT_S} seconds"
        return web.json_response({"error": error}, status=400)
    reply = await answer(namespace, request.method, path, body)
    if isinstance(reply, ControlAnswer):
        headers = {"Allow": reply.allow} if reply.allow else None
        return web.json_response(reply.value, status=reply.status, headers=headers)
    return await _stream(namespace, request, reply)


async def _stream(namespace: Namespace, request: web.Request, lines: SwitchLines) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": lines.content_type, "Cache-Control": "no-store"})
    try:
        await response.prepare(request)
        async for line in lines:
            await response.write(line)
    except ConnectionError:
        logger.debug("%s: a follower left", namespace.name)
    finally:
        await lines.close()
    return response
