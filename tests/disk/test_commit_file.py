"""The number of the last commit: what is written is read again, and damage is never taken for a number."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pairbus.host.commit_file import CommitFile

TEXT_OF_0_3 = b"%020d" % 4711
RECORD_OF_4712 = bytes.fromhex("7061697262757301 6812000000000000 f6cf6d82")


def written(folder: Path, number: int) -> Path:
    file = CommitFile(folder)
    file.write(number)
    file.close()
    return file.path


@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1])
def test_written_number_is_read_again(tmp_path: Path, number: int) -> None:
    """The last number written counts, for every reader, also while the writer has the file open."""
    file = CommitFile(tmp_path)
    assert file.read() is None
    file.write(5)
    file.write(number)
    assert CommitFile(tmp_path).read() == number
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["commits"]


def test_numbers_of_older_releases_are_read(tmp_path: Path) -> None:
    """Stores have always had the record; spools had a text up to release 0.3, which the next write replaces."""
    path = tmp_path / "commits"
    path.write_bytes(TEXT_OF_0_3)
    assert CommitFile(tmp_path).read() == 4711
    assert written(tmp_path, 4712).read_bytes() == RECORD_OF_4712
    assert CommitFile(tmp_path).read() == 4712


def test_damage_is_never_taken_for_a_number(tmp_path: Path) -> None:
    """Every flipped bit and every cut is noticed; the next write makes the file whole."""
    path = written(tmp_path, 4711)
    whole = path.read_bytes()
    flipped = [bytes([*whole[:at], whole[at] ^ 1 << bit, *whole[at + 1 :]]) for at in range(20) for bit in range(8)]
    for data in [*flipped, *(whole[:size] for size in range(20)), whole + b"x", b"1" * 19, b"1" * 21]:
        path.write_bytes(data)
        assert CommitFile(tmp_path).read() is None
        assert written(tmp_path, 4711).read_bytes() == whole


def test_file_gets_its_name_with_its_first_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before leaves no file that looks damaged: a new store would not be opened with it."""
    file = CommitFile(tmp_path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            file.write(1)
    assert not file.path.exists()
    file.write(2)
    assert file.read() == 2 and [path.name for path in tmp_path.iterdir()] == ["commits"]
    file.close()
