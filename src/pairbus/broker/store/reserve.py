"""Reserve: room on the disk that is kept for the time when the disk is full.

A full disk must not keep a broker from being emptied, and SQLite needs room also for a deletion: for the log, and for
the database when the log is copied into it. So a file beside the database reserves some. The first group of settlements
that finds no room gets it: the reserve is given up, the log is copied into the database, the group is tried again. From
then on

* the log is copied after each commit, so that the next commit begins at its start and takes no new room;
* sends are refused, until either there is room for a new reserve, or the settlements have emptied as much in the
  database itself (of a small one, half): it never shrinks, and new messages take the place of settled ones.

A group of settlements that needs more than there is then is committed in parts, and only what is too large alone fails:
a batch of messages that become active writes their bodies again.

Copying the log needs at most as much room as the log has, and log.py knows how much that is. While the disk has less
than `PLENTY_BYTES`, the log is kept shorter than a quarter of the reserve, so the reserve pays for it. A disk with
plenty that others fill within seconds may meet a longer log: then settlements go on as long as the reserve lasts.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from pairbus.host.folders import take_room

logger = logging.getLogger("pairbus.broker.store")

RESERVE_BYTES = 4 << 20
SHARE = 8  # a small disk gives this part of its free room
LEAST_BYTES = 128 << 10  # a few pages of the log: less is of no use
PLENTY_BYTES = 128 << 20


class Reserve:
    """File `folder/reserve`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "reserve"
        self._folder = folder
        self.size = self.path.stat().st_size if self.path.exists() else 0
        "Bytes that the reserve holds; 0: none."

    def take(self) -> bool:
        """Take the room unless it is held already; False when the disk has too little."""
        if self.size:
            return True
        size = min(RESERVE_BYTES, self.free_bytes() // SHARE)
        if size < LEAST_BYTES:
            return False
        try:
            take_room(self.path, size)
        except OSError as error:
            logger.warning("%s: cannot keep room for a full disk: %s", self.path, error.strerror)
            self.give_up()
            return False
        self.size = size
        return True

    def give_up(self) -> None:
        """Give the room back to the disk."""
        self.size = 0
        try:
            os.truncate(self.path, 0)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("%s: cannot give the room back: %s", self.path, error.strerror)

    def free_bytes(self) -> int:
        """Return the bytes that are free on the disk, besides the reserve."""
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            logger.warning("%s: cannot ask how much room is left: %s", self._folder, error.strerror)
            return 0
