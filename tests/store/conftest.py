"""Fixtures of the tests of the store."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pairbus.broker.store import PutEntity, RecoveredStore, Store
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.sqlite import SqliteStore
from tests.store.common import Opened, commit


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture(params=["memory", "sqlite"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    current: list[Store] = [MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)]

    async def reopen() -> tuple[Store, RecoveredStore]:
        if request.param == "sqlite":
            await current[0].close()
            current[0] = SqliteStore(tmp_path)
        return current[0], current[0].recover()

    assert current[0].recover() == RecoveredStore([], [], 0)
    assert await commit(current[0], PutEntity(1, '{"name": "q"}')) is None
    yield Opened(current[0], reopen)
    await current[0].close()
