"""The genuine SDK, sync and aio, against the broker. The whole folder runs on one event loop.

Closing an SDK sender or receiver takes up to a second (it joins a thread that sleeps), so closing goes on behind the
next tests of the module and is awaited at its end; later the loop may stand still, and deadlines would pass unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Flavour, Receivers, Sdk


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker without options, for other people's clients; test_strict.py has them on a strict one."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process
        code = process.terminate()
    assert code == 0, f"SIGTERM ended the broker with exit code {code}:\n{process.stderr[-8000:]}"


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with broker.admin() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def closing(broker: BrokerProcess) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Closings under way; an error in one of them fails the run."""
    tasks: list[asyncio.Task[None]] = []
    yield tasks
    await asyncio.gather(*tasks)


@pytest.fixture(params=[pytest.param("sync", marks=pytest.mark.slow), "aio"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The two flavours in `make test`; `make quick` has the aio one only, and of it the modules not marked slow.

    The time goes into pauses inside the SDK: half a second to open a link, a second to be refused one.
    """
    return "aio" if request.param == "aio" else "sync"


RECEIVING = ("test_locks", "test_receivers", "test_sessions", "test_settle")
"Files about receiving, whose tests run with our receivers too."


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "receivers" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in RECEIVING:
        metafunc.parametrize("receivers", ["sdk", "pairbus"])


@pytest.fixture
def receivers() -> Receivers:
    return "sdk"


@pytest_asyncio.fixture(loop_scope="session")
async def sdk(
    flavour: Flavour, receivers: Receivers, broker: BrokerProcess, closing: list[asyncio.Task[None]]
) -> AsyncIterator[Sdk]:
    client = Sdk(flavour, broker.connection_string(), receivers=receivers)
    yield client
    closing.append(asyncio.create_task(client.close()))


@pytest_asyncio.fixture(loop_scope="session")
async def sdk_admin(flavour: Flavour, broker: BrokerProcess) -> AsyncIterator[Admin]:
    client = Admin(flavour, broker.connection_string(), broker.ca_file)
    yield client
    await client.close()
