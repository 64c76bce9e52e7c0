"""The route `backup` of the control socket copies the store of a namespace into an empty file.

The client makes the file and gives it its name when the copy is complete. A client that leaves ends the backup.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.broker.kit.routes import SwitchLines, SwitchRequest, not_allowed
from pairbus.broker.store.backup import Backup
from pairbus.errors import ConfigError, StoreError
from pairbus.host.control.serving import read_object

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

logger = logging.getLogger("pairbus.broker")

TELL_S = 0.25


async def answer_backup(namespace: Namespace, request: SwitchRequest) -> Any:
    """Answer POST `{"draft": PATH}`: a line of JSON now and again, `{"copied": …, "of": …}` in bytes. The last one is
    `{"commits": …, "messages": …}` for a copy that is complete and durable, or `{"error": …}`."""
    if not request.is_("POST"):
        return not_allowed("POST")
    draft = read_object(request.body).get("draft")
    if not isinstance(draft, str) or not Path(draft).is_absolute():
        raise ConfigError(f"a backup needs 'draft', the absolute path of an empty file, not {draft!r:.80}")
    return SwitchLines("application/x-ndjson", _backup_lines(namespace, Path(draft)))


async def _backup_lines(namespace: Namespace, draft: Path) -> AsyncGenerator[bytes, None]:
    backup = Backup(draft)
    copying = asyncio.ensure_future(namespace.store.back_up(backup))
    is_told = False
    try:
        while not copying.done():
            await asyncio.wait([copying], timeout=TELL_S)
            yield _line({"copied": backup.copied, "of": backup.size})
            await asyncio.to_thread(backup.sync)  # so that the last sync finds little to do
        last = await _outcome(copying, backup)
        yield _line(last)
        is_told = "error" not in last
    except GeneratorExit:
        logger.info("%s: the client of the backup %s left", namespace.name, draft)
        raise
    finally:
        backup.give_up()
        await asyncio.wait([copying])
        backup.close(keep=is_told)


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


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"
