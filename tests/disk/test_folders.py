"""Modes, and room that is taken in advance."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pairbus.host import folders
from pairbus.host.folders import CHUNK_BYTES, make_folder, make_private, open_private, sync_folder, take_room


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_files_are_private_whatever_they_were(tmp_path: Path) -> None:
    """Files of an earlier release, and folders that an installer made, become private too."""
    old = tmp_path / "old"
    old.touch()
    old.chmod(0o666)
    tmp_path.chmod(0o755)
    os.close(open_private(old, os.O_WRONLY | os.O_CREAT))
    make_private(tmp_path)
    assert (mode(old), mode(tmp_path)) == (0o600, 0o700)


def test_started_programs_do_not_inherit_private_files(tmp_path: Path) -> None:
    """A program that lives on would keep the lock."""
    fd = open_private(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("allocates", [True, False])
def test_room_is_taken_on_every_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocates: bool) -> None:
    """A system that cannot allocate writes the bytes; content of the file stays."""
    if not allocates:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    path = tmp_path / "reserve"
    for size in (100, 3 * CHUNK_BYTES, 200):
        take_room(path, size)
    assert path.stat().st_size == 3 * CHUNK_BYTES
    assert path.stat().st_blocks * 512 >= 3 * CHUNK_BYTES


def test_folder_is_made_in_a_parent_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A parent that may be written and searched is enough; only the sync of the new name needs to read it."""

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))  # tests may run as root, whom no mode stops

    monkeypatch.setattr(folders, "sync_folder", refuse)
    make_folder(tmp_path / "data")
    assert mode(tmp_path / "data") == 0o700
    assert f"{tmp_path / 'data'} may be missing after a power failure" in caplog.text


def test_every_new_name_above_a_folder_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure a folder is gone with everything in it when the name of one of its parents is."""
    synced: list[Path] = []
    monkeypatch.setattr(folders, "sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert mode(tmp_path / "a" / "b" / "c") == 0o700
    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [], "a folder that was there"


def test_syncing_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    """A caller must not believe that a name is durable when it is not."""
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "missing")
