"""What happens to every client in a forked process, before anything else runs there."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Any

logger = logging.getLogger("pairbus")

clients: weakref.WeakSet[Any] = weakref.WeakSet()
"All that live, of both kinds."


def _after_fork() -> None:
    for client in list(clients):
        try:
            client._after_fork()
        except Exception:  # whatever is wrong with one, the others must not speak on the parent's sockets
            logger.exception("after a fork %r cannot be used", client)


os.register_at_fork(after_in_child=_after_fork)
