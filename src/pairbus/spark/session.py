"""A Spark session on this machine, with everything that it needs found or brought."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

from pairbus.errors import ConfigError
from pairbus.spark.java import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    # Both: with only one of them, parts of Spark ask the host's name, which a laptop's network may not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # A task that ran twice would receive, send or count twice.
    "spark.speculation": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
}

LIGHT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"For jobs in which Java hands work to Python, or ends soon: the better compiler would take a core from those who work."


_STREAMING = "org.apache.spark.sql.execution.streaming"
_PLAIN_CHECKPOINTS = (
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager",  # its home until Spark 4.1
)


def local_session(app_name: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """A session in this process: Java found or brought, this interpreter for the workers, `servicebus` registered.

    `conf` goes over LOCAL_CONF: `local_session("drain", **{"spark.driver.memory": "4g"})`. ConfigError, with the fix,
    when pyspark or Java is missing. Spark allows one context a process: one that runs already is returned as it is.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"pyspark is missing ({error}): pip install 'pairbus[spark-local]'") from None
    prepare_environment()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (LOCAL_CONF | {"spark.sql.warehouse.dir": _warehouse()} | conf).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(spark: SparkSession) -> None:
    """Make `format("servicebus")` known to a session. Spark 4 finds it by itself where pairbus is installed."""
    from pairbus.spark.features import register_format
    from pairbus.spark.source import ServiceBusDataSource

    register_format(spark, ServiceBusDataSource)


def write_plain_checkpoints(spark: SparkSession) -> None:
    """Write checkpoints without atomic renames: half the cost of a micro-batch, for checkpoints that nobody keeps."""
    java: Any = spark._jvm
    name = next(filter(java.org.apache.spark.util.Utils.classIsLoadable, _PLAIN_CHECKPOINTS))
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", name)


def _warehouse() -> str:
    """Where tables without a place of their own go: not into the folder in which somebody happened to start."""
    folder = tempfile.mkdtemp(prefix="pairbus-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
