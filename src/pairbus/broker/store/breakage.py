"""Ends writing after an error that nobody foresaw: no memory, no thread, a bug.

After such an error nobody knows what the numbers that are kept beside the database say, so no later group is committed:
each fails with `Breakage.error`. What was acknowledged stays in the database, and can be received until the broker is
restarted, but not settled.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker.store")


class Breakage:
    """Error of all writes of one store, once there is one. Shared by the owner's thread and the writer's.

    `with breakage:` ends writing when the block fails, and goes on behind the block, where `error` is set.
    """

    def __init__(self, folder: Path) -> None:
        self.error: StoreError | None = None
        # Made now, because there may be no memory for it later.
        self._prepared = StoreError(
            f"The store in {folder} takes no more writes after an unexpected error, which is in the log. What was "
            "acknowledged is safe: restart the broker."
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, fault: BaseException | None, _trace: object) -> bool:
        if not isinstance(fault, Exception):
            return False
        is_first, self.error = self.error is None, self._prepared
        if is_first:
            with suppress(MemoryError):
                logger.critical("%s", self.error, exc_info=fault)
        return True
