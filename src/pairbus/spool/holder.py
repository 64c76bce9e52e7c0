"""The spool of a client while it is open, and the threads that wait for its disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future

from pairbus.spool import Spool, disk_threads, open_free

logger = logging.getLogger("pairbus")

CLOSE_S = 5.0  # for writes under way when a spool is closed: a disk that hangs must not hold the application


class SpoolHolder:
    """The spool of one client, if it has one, and the threads that wait for its disk."""

    def __init__(self, folder: str | os.PathLike[str] | None, pair: str, max_bytes: int) -> None:
        self._folder = folder
        "Folder of the spool; None for a client without one."
        self._pair = pair
        self._max_bytes = max_bytes
        self._left = 0
        self._opening: Future[None] | None = None
        self.open_spool: Spool | None = None
        self.disk = disk_threads()
        "Threads for the spool alone: the application's own threads may all be busy for a long time."

    @property
    def is_open(self) -> bool:
        return self.open_spool is not None

    @property
    def waiting(self) -> int:
        return 0 if self.open_spool is None else self.open_spool.waiting

    def depth(self) -> int:
        """Number of waiting messages, an earlier client's included; after closing, of messages that were left."""
        return self._left if self.open_spool is None else self.open_spool.waiting

    @property
    def is_opening(self) -> bool:
        return self._opening is not None and not self._opening.done()

    def begin_to_open(self, is_needed: Callable[[], bool]) -> Future[None] | None:
        """Begin to open the spool in a thread for the disk, and return the outcome; None: there is nothing to open.

        The spool is closed again if `is_needed` is then False. Callers share one attempt; a later one tries again.
        """
        if self._folder is None or self.open_spool is not None:
            return None
        if self._opening is None or self._opening.done():
            self._opening = self.disk.submit(self._open, self._folder, is_needed)
        return self._opening

    def _open(self, folder: str | os.PathLike[str], is_needed: Callable[[], bool]) -> None:
        self.open_spool = open_free(os.fspath(folder), pair=self._pair, max_bytes=self._max_bytes)
        if not is_needed():
            spool, self.open_spool = self.open_spool, None
            if spool is not None:  # closed in this thread for the disk: the client may have replaced the others
                spool.close()
                self._note_left(spool)

    def close(self, *, is_last: bool = False) -> None:
        """Close the spool; waits for appends under way, five seconds at most. A later append is an error.

        When the disk does not answer by then, the spool is closed as soon as it does, and its folder stays locked until
        then. It is opened by one of the threads for the disk, so there is one that can close it.
        """
        spool, self.open_spool = self.open_spool, None
        if spool is not None:
            try:
                self.disk.submit(spool.close).result(CLOSE_S)
            except TimeoutError:
                logger.warning("the disk of %s does not answer: its folder stays locked until it does", spool.folder)
            self._note_left(spool, is_told=not is_last)
        if is_last:
            disk, self.disk = self.disk, disk_threads()  # a late send gets the error that the spool is closed
            disk.shutdown(wait=False)

    def _note_left(self, spool: Spool, *, is_told: bool = True) -> None:
        self._left = spool.waiting
        if spool.waiting and is_told:
            logger.warning("%d messages stay in %s for the next client", spool.waiting, spool.folder)
