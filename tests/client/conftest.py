"""Two strict broker processes for each file, and a world of its own for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.azure import NAMES as LIVE
from tests.brokers import BrokerProcess
from tests.client.world import LISTEN_ONLY, SEND_ONLY, Namespaces, Stage, World
from tests.scripted import ScriptedEndpoint
from tests.sdk.flavours import Flavour


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    if all(os.environ.get(name) for name in LIVE):
        live = Namespaces(None)
        yield live
        live.close()
        return
    with two_processes(tmp_path_factory.mktemp("pair"), strict=True) as ours:
        yield ours


@contextmanager
def two_processes(folder: Path, *, strict: bool) -> Iterator[Namespaces]:
    """A primary and a secondary of our own."""
    with (
        BrokerProcess(
            folder / "primary", namespaces=["primary"], config=keys("primary", SEND_ONLY), strict=strict
        ) as primary,
        BrokerProcess(
            folder / "secondary",
            namespaces=["secondary"],
            config=keys("secondary", SEND_ONLY, LISTEN_ONLY),
            strict=strict,
        ) as secondary,
    ):
        ours = Namespaces((primary, secondary))
        yield ours
        ours.close()


def keys(namespace: str, *more: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a broker whose namespace has these beside the key with the Manage claim."""
    return {"UserConfig": {"Namespaces": [{"Name": namespace, "Keys": list(more)}]}}


BENEATH_THE_FACE = (
    *("test_background", "test_causes", "test_content", "test_hung_disk", "test_idle", "test_never_diverts"),
    *("test_outcomes", "test_partly_stored", "test_recovery", "test_requests", "test_rules_of_pings"),
    *(
        "test_rules_of_sending",
        "test_same_errors_of_receivers",
        "test_shared_identifier",
        "test_silent_links",
        "test_slow_is_not_dead",
    ),
    *("test_spooling", "test_truth_of_errors"),
)
"""Files about what both flavours share: the face hands a call on, and everything else happens in one place. `make test`
runs them with aio, `make deep` with sync too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if item.path.stem in BENEATH_THE_FACE and callspec is not None and callspec.params.get("flavour") == "sync":
            item.add_marker(pytest.mark.deep)
            item.add_marker(pytest.mark.beneath)


@pytest.fixture(params=[pytest.param("sync", marks=pytest.mark.slow), "aio"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Flavours of the client: `make test` has both where the face matters, else aio; so has `make quick` everywhere."""
    return "aio" if request.param == "aio" else "sync"


@pytest.fixture
async def world(namespaces: Namespaces) -> AsyncIterator[World]:
    world = World(namespaces)
    yield world
    await world.close()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
        stage = Stage(primary, secondary)
        yield stage
        await stage.close()
