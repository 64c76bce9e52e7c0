"""One Spark for all tests of this folder: it takes ten seconds to start and half a gigabyte to run.

With the variable CONNECT it is a Spark Connect server in a process of its own, and this process has no Java.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from pairbus.spark import local_session
from pairbus.spark.session import LIGHT_JAVA, PLAIN_CHECKPOINTS, open_session, set_log_level, write_plain_checkpoints
from tests.brokers import BrokerProcess
from tests.spark import processes
from tests.spark.connect_server import ConnectServer
from tests.storage.fixtures import azurite, location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["azurite", "location"]

BROKER_VARIABLE = "PAIRBUS_TESTS_OF_SPARK"
"Environment variable that holds the connection string of the shared broker."
CONNECT = "PAIRBUS_TESTS_CONNECT"
"Environment variable that holds the interpreter of a Connect server; not set: tests have a session of their own."
BROKER_PLACE = f"env:{BROKER_VARIABLE}"
"Value for the option connectionString."

PAGE_VARIABLES = {
    "PAIRBUS_CONNECTION_STRING": "fabrikam",
    "ORDERS": "fabrikam",
    "CONTOSO": "contoso",
    "FABRIKAM": "fabrikam",
}
"Variable of the documents → namespace of the shared broker. Java and its workers have them, this process does not."

TEST_CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT_JAVA,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Over Connect, leave out tests that start a Java of their own, or need the one of this process."""
    if CONNECT in os.environ:
        for item in items:
            if item.get_closest_marker("classic"):
                item.add_marker(pytest.mark.skip(reason="needs a Java in this process or beside it"))


TOO_BUSY = "Python worker failed to connect back"
"Error of Spark on a busy machine: it gives a new worker ten seconds, and this limit cannot be set."


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test again, with new fixtures, when Spark found the machine too busy for it; four times at most."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for tries_left in (4, 3, 2, 1, 0):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not tries_left or not any(report.failed and TOO_BUSY in report.longreprtext for report in reports):
            break
        item._initrequest()  # type: ignore[attr-defined]
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def spark(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Fails fast: no task is tried twice. Its processes inherit BROKER_VARIABLE and a state folder."""
    state = str(tmp_path_factory.mktemp("state"))
    os.environ |= {BROKER_VARIABLE: broker.connection_string(), "XDG_STATE_HOME": state}
    if CONNECT in os.environ:
        environment = {BROKER_VARIABLE: broker.connection_string(), "XDG_STATE_HOME": state}
        conf = {"spark.sql.streaming.checkpointFileManagerClass": PLAIN_CHECKPOINTS[0]}
        folder = tmp_path_factory.mktemp("connect")
        with ConnectServer(folder, environment=environment, python=os.environ[CONNECT], conf=conf) as server:
            session = open_session("tests", remote=server.remote)
            assert server.process is not None
            processes.connect_server = server.process.pid
            yield session
            session.stop()
        return
    with pytest.MonkeyPatch.context() as while_java_starts:
        for name, namespace in PAGE_VARIABLES.items():
            while_java_starts.setenv(name, broker.connection_string(namespace))
        session = local_session("tests", "local[2,1]", **TEST_CONF)
    set_log_level(session, "ERROR")
    write_plain_checkpoints(session)
    yield session
    session.stop()
