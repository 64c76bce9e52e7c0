"""One Azurite for the tests of a process, and a new location in each kind of storage for a test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus.spark.storage import LargeStorage
from pairbus.spark.storage.opening import open_storage
from tests.storage.azurites import MISSING, WHY_MISSING, Azurite

VARIABLE = "PAIRBUS_TESTS_OF_STORAGE"
"Environment variable that holds the connection string of Azurite."
PLACE = f"env:{VARIABLE}"

BACKENDS = ["folder", pytest.param("blob", marks=pytest.mark.node)]


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    if MISSING:
        pytest.skip(WHY_MISSING)
    with Azurite() as running:
        os.environ[VARIABLE] = running.connection_string
        yield running


@pytest.fixture(params=BACKENDS)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new location, once in each kind of storage."""
    if request.param == "folder":
        return str(tmp_path / "location")
    azurite: Azurite = request.getfixturevalue("azurite")
    return azurite.new_container(f"t-{uuid.uuid4().hex[:12]}") + "/some/path"


@pytest.fixture
def storage(location: str) -> LargeStorage:
    return open_storage(location, PLACE, patience_s=20.0)
