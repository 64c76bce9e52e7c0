"""The route `backup` of the control socket copies the store of a namespace into an empty file.

The client makes the file and gives it its name when the copy is complete. A client that leaves ends the backup.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.broker.kit.bodies import read_object
from pairbus.broker.store.backup import Backup
from pairbus.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

logger = logging.getLogger("pairbus.broker")

TELL_S = 0.25


async def answer_backup(namespace: Namespace, request: web.Request, rest: tuple[str, ...]) -> web.StreamResponse:
    """Answer POST `{"draft": PATH}`: a line of JSON now and again, `{"copied": …, "of": …}` in bytes. The last one is
    `{"commits": …, "messages": …}` for a copy that is complete and durable, or `{"error": …}`."""
    if request.method != "POST" or rest:
        raise web.HTTPMethodNotAllowed(request.method, ["POST"])
    draft = (await read_object(request)).get("draft")
    if not isinstance(draft, str) or not Path(draft).is_absolute():
        raise ConfigError(f"a backup needs 'draft', the absolute path of an empty file, not {draft!r:.80}")
    backup = Backup(Path(draft))
    copying = asyncio.ensure_future(namespace.store.back_up(backup))
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    is_told = False
    try:
        await response.prepare(request)
        while not copying.done():
            await asyncio.wait([copying], timeout=TELL_S)
            await _tell(response, {"copied": backup.copied, "of": backup.size})
            await asyncio.to_thread(backup.sync)  # so that the last sync finds little to do
        last = await _outcome(copying, backup)
        await _tell(response, last)
        is_told = "error" not in last
    except ConnectionError:
        logger.info("%s: the client of the backup %s left", namespace.name, draft)
    finally:
        backup.give_up()
        await asyncio.wait([copying])
        backup.close(keep=is_told)
    return response


async def _outcome(copying: asyncio.Future[None], backup: Backup) -> dict[str, Any]:
    try:
        await copying
        await asyncio.to_thread(backup.sync)
    except StoreError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{backup.draft}: {error.strerror}"}
    assert backup.contents is not None
    return backup.contents._asdict()


async def _tell(response: web.StreamResponse, values: dict[str, Any]) -> None:
    await response.write(json.dumps(values).encode() + b"\n")
