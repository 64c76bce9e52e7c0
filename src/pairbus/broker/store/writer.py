"""The thread that commits groups beside the event loop, and how it gets its turn.

A thread that waits for the interpreter lock asks for it only after a whole switch interval without any release, and an
event loop releases it for a microsecond at every system call: too short for the waiting thread to wake up, yet enough
to start its interval again. With the usual 5 ms, commits beside a busy loop were measured to take seconds. So while a
group is being written the interval is shorter than the work of a loop between two system calls.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep

from pairbus.broker.store.backup import Backup
from pairbus.broker.store.breakage import Breakage
from pairbus.broker.store.committer import Committer
from pairbus.broker.store.group import CommitGroup
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker.store")

SWITCH_INTERVAL_S = 0.00005
NO_MEMORY_PAUSE_S = 0.05


class PromptSwitching:
    """The switch interval belongs to the process: shortened while any store writes, then put back."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._writing = 0
        self._usual_s = 0.0

    def begin(self) -> None:
        with self._lock:
            self._writing += 1
            if self._writing == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL_S, self._usual_s))

    def end(self) -> None:
        with self._lock:
            self._writing -= 1
            if self._writing == 0:
                sys.setswitchinterval(self._usual_s)


_switching = PromptSwitching()


@dataclass(frozen=True, slots=True)
class BackupWork:
    backup: Backup
    ended: asyncio.Future[StoreError | None]


class WriterThread:
    """Thread that commits groups in the order of `commit` calls; `finished` is called on the loop, for every group."""

    def __init__(
        self,
        committer: Committer,
        loop: asyncio.AbstractEventLoop,
        finished: Callable[[CommitGroup, StoreError | None], None],
        breakage: Breakage,
    ) -> None:
        self._committer = committer
        self._loop = loop
        self._finished = finished
        self._breakage = breakage
        self._inbox: SimpleQueue[CommitGroup | BackupWork | None] = SimpleQueue()
        self._is_ending = False
        self._loop_is_closed = False
        self._closed: asyncio.Future[None] = loop.create_future()
        # A daemon: a process that ends without closing its store must not hang; SQLite survives that.
        self._thread = Thread(target=self._run, name="pairbus-store", daemon=True)
        self._thread.start()

    def commit(self, group: CommitGroup) -> None:
        _switching.begin()
        self._inbox.put(group)

    async def back_up(self, backup: Backup) -> None:
        """Copy the store between groups; StoreError when the copy is incomplete."""
        work = BackupWork(backup, self._loop.create_future())
        self._inbox.put(work)
        try:
            error = await asyncio.shield(work.ended)
        except asyncio.CancelledError:
            backup.give_up()
            raise
        if error is not None:
            raise error

    async def close(self) -> None:
        """Stop the thread after all groups that were handed in before."""
        self._inbox.put(None)
        await self._closed
        self._thread.join()

    def _run(self) -> None:
        while not self._is_ending:
            match self._inbox.get():
                case None:
                    self._is_ending = True
                case BackupWork() as work:
                    self._copy(work)
                case group:
                    self._carry_out(group)
        self._close()
        if not self._loop_is_closed:
            self._call_on_loop(self._closed.set_result, None)

    def _carry_out(self, group: CommitGroup) -> None:
        error = self._commit(group)
        try:
            self._call_on_loop(self._finished, group, error)
        except RuntimeError:  # the loop was closed without closing the store: there is no caller to tell
            self._is_ending = self._loop_is_closed = True
        else:
            self._tidy_up()
        finally:
            _switching.end()

    def _copy(self, work: BackupWork) -> None:
        error: StoreError | None = None
        try:
            self._committer.copy_into(work.backup, self._commit_for)
        except StoreError as failure:
            error = failure
        except Exception as fault:  # a bug of the copy must not end the commits; its caller is told
            logger.exception("%s: the backup failed", work.backup.draft)
            error = StoreError(f"{work.backup.draft}: the backup failed: {fault}")
        if not self._loop_is_closed:
            self._call_on_loop(work.ended.set_result, error)

    def _commit_for(self, seconds: float) -> bool:
        """Carry out the groups of this time; False when the thread is to end."""
        until = monotonic() + seconds
        while not self._is_ending and (left_s := until - monotonic()) > 0:
            try:
                group = self._inbox.get(timeout=left_s)
            except Empty:
                break
            if group is None:
                self._is_ending = True
            else:
                assert isinstance(group, CommitGroup), "a second backup at a time"
                self._carry_out(group)
        return not self._is_ending

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call on the loop; the caller waits for it, so without memory it is tried until there is some."""
        while True:
            try:
                self._loop.call_soon_threadsafe(callback, *arguments)
                return
            except MemoryError:
                sleep(NO_MEMORY_PAUSE_S)

    def _commit(self, group: CommitGroup) -> StoreError | None:
        if self._breakage.error is not None:
            return self._breakage.error
        with self._breakage:
            return self._committer.commit(group)
        return None if group.is_durable else self._breakage.error

    def _tidy_up(self) -> None:
        if self._breakage.error is None:
            with self._breakage:
                self._committer.tidy_up_if_due()

    def _close(self) -> None:
        with self._breakage:  # without a checkpoint the next start finds the log as after a kill
            self._committer.close()
