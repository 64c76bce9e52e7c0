"""Messages as a paired client leaves them in a backlog queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from azure.servicebus import ServiceBusMessage

from pairbus.backlog.envelope import Envelope, wrap
from pairbus.sdk.encoding import encode
from pairbus.sdk.messages import ensure_message_id
from pairbus.transport import connect

BATCH = 500


def diverted(message: ServiceBusMessage, path: str) -> bytes:
    """Encode a message as it lies in a backlog queue."""
    return wrap(encode(ensure_message_id(message)), Envelope(path))


async def put_diverted(secondary: str, queue: str, path: str, messages: Sequence[ServiceBusMessage]) -> None:
    """Leave messages for the entity `path` in a backlog queue."""
    async with await connect(secondary) as connection:
        sender = await connection.sender(queue)
        for start in range(0, len(messages), BATCH):
            await sender.send_batch([diverted(one, path) for one in messages[start : start + BATCH]])


def put_diverted_sync(secondary: str, queue: str, path: str, messages: Sequence[ServiceBusMessage]) -> None:
    """Do the same for a caller that may be in an event loop."""
    thread = threading.Thread(target=asyncio.run, args=(put_diverted(secondary, queue, path, messages),))
    thread.start()
    thread.join()
