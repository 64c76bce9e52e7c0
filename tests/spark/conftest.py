"""One Spark for all tests of this folder: it takes ten seconds to start and half a gigabyte to run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pairbus.spark import local_session
from pairbus.spark.session import LIGHT_JAVA, write_plain_checkpoints
from tests.brokers import BrokerProcess
from tests.storage.fixtures import azurite, location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["azurite", "location"]

BROKER_VARIABLE = "PAIRBUS_TESTS_OF_SPARK"
"Environment variable that holds the connection string of the shared broker."
BROKER_PLACE = f"env:{BROKER_VARIABLE}"
"For the option connectionString."

TEST_CONF = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT_JAVA,
}


@pytest.fixture(scope="session")
def spark(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Fails fast: no task is tried twice. Its processes inherit BROKER_VARIABLE and a state folder."""
    os.environ[BROKER_VARIABLE] = broker.connection_string()
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    session = local_session("tests", "local[2,1]", **TEST_CONF)
    session.sparkContext.setLogLevel("ERROR")
    write_plain_checkpoints(session)
    yield session
    session.stop()
