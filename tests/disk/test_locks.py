"""Locks of folders and files: their owners, and when they end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import portalocker
import pytest

from pairbus.broker.store.folder import own as own_store
from pairbus.errors import SpoolError, StoreError
from pairbus.host.locks import LOCK_NAME, FolderInUse, FolderLock, hold_shared, is_held_here, is_in_use
from pairbus.spool import Spool
from tests.spool.test_folder import in_child


def is_free(folder: Path) -> bool:
    try:
        FolderLock(folder).release()
    except FolderInUse:
        return False
    return True


def test_second_owner_hears_who_has_the_folder(tmp_path: Path) -> None:
    """Before the first owner has signed, the error cannot name it."""
    lock = FolderLock(tmp_path)
    with pytest.raises(FolderInUse) as unsigned:
        FolderLock(tmp_path)
    lock.sign()
    with pytest.raises(FolderInUse) as signed:
        FolderLock(tmp_path)
    lock.release()
    assert (unsigned.value.by, signed.value.by) == ("", f" (process {os.getpid()})")
    assert is_free(tmp_path) and (tmp_path / LOCK_NAME).read_bytes() == b""


def test_process_knows_which_folders_it_holds(tmp_path: Path) -> None:
    """Under any name of the folder: a second descriptor of a database would end SQLite's own locks."""
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    lock = FolderLock(folder)
    assert is_held_here(link)
    lock.release()
    lock.release()
    assert not is_held_here(folder)


def test_waiting_for_an_unsigned_owner_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that signs in the meantime keeps the lock."""
    lock = FolderLock(tmp_path)
    monkeypatch.setattr("pairbus.host.locks.time.sleep", lambda _: lock.sign())
    with pytest.raises(FolderInUse, match=str(os.getpid())):
        FolderLock(tmp_path, patience_s=60)
    lock.release()


def test_killed_owner_leaves_the_folder_free(tmp_path: Path) -> None:
    """The lock needs no cleaning up, and the name of the dead owner is wiped."""
    code = (
        "import sys, pathlib, pairbus.host.locks as locks\n"
        "lock = locks.FolderLock(pathlib.Path(sys.argv[1])); lock.sign(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=str(owner.pid)):
            FolderLock(tmp_path)
        owner.send_signal(signal.SIGKILL)
    lock = FolderLock(tmp_path)
    assert (tmp_path / LOCK_NAME).read_bytes() == b""
    lock.release()


# ── forks ──


def test_forked_child_neither_holds_nor_releases_the_lock(tmp_path: Path) -> None:
    """An unlock in the child would count for the parent too."""
    lock = FolderLock(tmp_path)
    lock.sign()

    def child() -> bool:
        held = is_held_here(tmp_path)
        lock.release()
        return not held and not is_free(tmp_path)

    assert in_child(child)
    with pytest.raises(FolderInUse, match=str(os.getpid())):
        FolderLock(tmp_path)
    lock.release()


@pytest.mark.parametrize("take", [FolderLock, own_store], ids=["folder", "store"])
def test_lock_ends_with_its_owner_though_a_child_lives_on(tmp_path: Path, take: Callable[[Path], FolderLock]) -> None:
    """A worker that was forked from the process of an embedded broker must not keep the next broker out."""
    ready, ready_end = os.pipe()
    done, done_end = os.pipe()
    owner = os.fork()
    if owner == 0:
        take(tmp_path)
        if os.fork() == 0:
            os.close(done_end)
            os.write(ready_end, b"x")
            os.read(done, 1)
        os._exit(0)
    os.waitpid(owner, 0)
    assert os.read(ready, 1) == b"x"
    assert is_free(tmp_path)
    for end in (done_end, done, ready, ready_end):
        os.close(end)


def test_child_of_a_foreign_fork_does_not_unlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that Python did not fork still has the descriptor, under another process id."""
    lock = FolderLock(tmp_path)
    of_the_parent = os.dup(lock._fd)
    with monkeypatch.context() as patch:
        patch.setattr("pairbus.host.locks.os.getpid", lambda: -1)
        lock.release()
    assert not is_free(tmp_path)
    os.close(of_the_parent)
    assert is_free(tmp_path)


# ── disks without locks ──


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        error = OSError(errno.ENOLCK, "No locks available")
        raise portalocker.LockException(error) from error

    monkeypatch.setattr(portalocker, "lock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_disk_without_locks_is_told_as_that(tmp_path: Path) -> None:
    """Two owners would destroy each other's files: without a lock there is no owner, and no descriptor is left."""
    before = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    with pytest.raises(OSError, match="No locks available"):
        FolderLock(tmp_path)
    with pytest.raises(StoreError, match=r"Cannot open .*lock: No locks available"):
        own_store(tmp_path)
    with pytest.raises(SpoolError, match="cannot be opened: No locks available"):
        Spool(tmp_path / "spool")
    after = set(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else set()
    assert len(after) == len(before)


@pytest.mark.usefixtures("no_locks")
def test_shared_file_counts_as_in_use_where_nobody_can_tell(tmp_path: Path) -> None:
    """A ledger goes on without locks, and never removes the files of others."""
    path = tmp_path / "rows"
    with path.open("wb") as file:
        hold_shared(file.fileno())
    assert is_in_use(path) and is_in_use(tmp_path / "missing")


def test_file_counts_as_in_use_where_no_locks_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows without pywin32 is such a place: exclusive locks work, and would say that no process writes."""
    lock = portalocker.lock

    def exclusive_only(fd: int, flags: portalocker.LockFlags) -> None:
        if flags & portalocker.LockFlags.SHARED:
            raise ImportError("pywin32 is missing")
        lock(fd, flags)

    monkeypatch.setattr(portalocker, "lock", exclusive_only)
    path = tmp_path / "rows"
    with path.open("wb") as file:
        hold_shared(file.fileno())
        assert is_in_use(path)


def test_file_is_in_use_until_its_last_writer_has_closed_it(tmp_path: Path) -> None:
    """Asking does not disturb the writers."""
    path = tmp_path / "rows"
    with path.open("wb") as first:
        hold_shared(first.fileno())
        with path.open("ab") as second:
            hold_shared(second.fileno())
            assert is_in_use(path)
        assert is_in_use(path)
    assert not is_in_use(path)
