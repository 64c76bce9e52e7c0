"""Fixtures that need a broker (one for the whole run, a fresh queue for each test), and how examples are made."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import hypothesis
import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.spark.session import LIGHT_JAVA
from tests.azure import NAMES as AZURE
from tests.brokers import BrokerProcess

pytest_plugins = ["tests.balance", "tests.failures", "tests.java_trap"]

# Every run uses the same examples, so a failure is the same for everybody. PAIRBUS_EXPLORE=1 looks for new examples.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("explore" if os.environ.get("PAIRBUS_EXPLORE") else "same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--azure", action="store_true", help="run tests/azure on the namespaces of the environment")


def pytest_configure(config: pytest.Config) -> None:
    missing = [name for name in AZURE if not os.environ.get(name)]
    if config.getoption("azure") and missing:
        raise pytest.UsageError(
            f"Set {' and '.join(missing)} to two Service Bus namespaces: connection strings with the Manage claim, or"
            " hosts such as contoso.servicebus.windows.net, which are asked with DefaultAzureCredential (pip install"
            " azure-identity). Queues and topics with a prefix of their own are created there and deleted."
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that gets the fixture `spark`, also through another one, so that `make quick` starts no Java."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session", autouse=True)
def light_java() -> Iterator[None]:
    """Let each Java of a test compile in the quickest way: most of them live for seconds, and several run at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", LIGHT_JAVA)
        yield


@pytest.fixture(scope="session", autouse=True)
def control_dir() -> Iterator[Path]:
    """A folder for control sockets, with a short path: no test sees the processes of the user who runs the tests."""
    folder = Path(tempfile.mkdtemp(prefix="pb-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRBUS_CONTROL_DIR", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def log_levels() -> Iterator[None]:
    """Set levels of loggers back: a command that runs in this process silences them for the rest of it."""
    loggers = [logging.getLogger(name) for name in ("pairbus", "azure", "py4j", "aiohttp")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class MakeQueue(Protocol):
    def __call__(self, name: str | None = None, **settings: Any) -> str:
        """Create a queue with the genuine administration client; its name."""
        ...


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker that most tests share, as strict as Azure; a test that kills or restarts one starts its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", strict=True) as process:
        yield process
        code = process.terminate()
    assert code == 0, f"SIGTERM ended the broker with exit code {code}:\n{process.stderr[-8000:]}"


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with broker.admin() as client:
        yield client


@pytest.fixture
def make_queue(admin: ServiceBusAdministrationClient) -> MakeQueue:
    """Queues of tests are never deleted: their names are unique, and the broker's folder goes with the run."""

    def make(name: str | None = None, **settings: Any) -> str:
        path = name or f"q-{uuid.uuid4().hex[:12]}"
        admin.create_queue(path, **settings)
        return path

    return make


@pytest.fixture
def queue_name(make_queue: MakeQueue) -> str:
    """A fresh queue with default settings."""
    return make_queue()
