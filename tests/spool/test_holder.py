"""The spool of a client that is closed while its spool is being opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pairbus.spool import Spool, holder, open_free


def test_spool_that_opens_after_its_client_is_closed_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread for the disk that opens the spool closes it again, and ends."""
    opening, answer, opened = threading.Event(), threading.Event(), open_free
    before = set(threading.enumerate())

    def slow(*args: Any, **options: Any) -> Spool:
        opening.set()
        assert answer.wait(10)
        return opened(*args, **options)

    monkeypatch.setattr(holder, "open_free", slow)
    held = holder.SpoolHolder(tmp_path / "spool", "pair", 1 << 20)
    is_open = held.begin_to_open(lambda: False)
    assert is_open is not None
    assert opening.wait(10)
    threads = set(threading.enumerate()) - before
    held.close(is_last=True)
    answer.set()
    is_open.result(10)
    for thread in threads:
        thread.join(10)
    assert set(threading.enumerate()) <= before
    assert not held.is_open
    Spool(tmp_path / "spool").close()  # its folder is free
