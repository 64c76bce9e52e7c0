"""Opens Spark sessions: on this machine, where it finds or brings what they need, or of a Spark Connect server."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
PLAIN_CHECKPOINTS = (
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager",  # its home until Spark 4.1
)


REMOTE = "SPARK_REMOTE"
"Variable of PySpark with the address of a Connect server."
CONNECT_PORT = 15002
CONNECT_S = 10.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_OWN_CLASSIC = {"spark.api.mode": "classic"}


def open_session(
    app_name: str, *, master: str | None = None, remote: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Open a session of the Connect server at `remote`, or one on `master`.

    Where neither is given it is the server that SPARK_REMOTE names, and without that this machine. ConfigError when
    both are given: a remote session has the master of its server.
    """
    if remote is not None and master is not None:
        raise ConfigError(
            f"master {master} and remote {remote}: a Spark Connect server has its own master, so give one of the two"
        )
    if remote is None and master is None:
        remote = os.environ.get(REMOTE) or None
    if remote is not None:
        return remote_session(app_name, remote, **(conf or {}))
    return local_session(app_name, master or "local[*]", **(conf or {}))


def remote_session(app_name: str, remote: str, **conf: str) -> SparkSession:
    """Open a session of the Spark Connect server at `sc://HOST:PORT`; needs no Java here, `pyspark-client` is enough.

    Settings of `conf` that a session cannot change are the server's to make, and are left out. ConfigError, with the
    fix, when a package is missing, the address is no such address, or nobody answers there.
    """
    _check_reachable(remote)
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"pyspark is missing ({error}): pip install 'pairbus[spark-connect]'") from None
    try:
        session = SparkSession.builder.remote(remote).appName(app_name).getOrCreate()
        for name, value in ({"spark.sql.session.timeZone": "UTC"} | conf).items():
            if session.conf.isModifiable(name):
                session.conf.set(name, value)
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'pairbus[spark-connect]', or 'pyspark[connect]'") from None
    except PySparkException as error:
        raise ConfigError(f"no session of the Spark Connect server at {_shown(remote)}: {error}") from None
    return session


def local_session(app_name: str, master: str = "local[2]", **conf: str) -> SparkSession:
    """Open a session in this process: Java found or brought, this interpreter for the workers, `servicebus` known.

    `conf` goes over LOCAL_CONF: `local_session("drain", **{"spark.driver.memory": "4g"})`. ConfigError, with the fix,
    when pyspark or Java is missing. Spark allows one context a process: one that runs already is returned as it is.
    """
    try:
        from pyspark.core.context import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(f"pyspark is missing ({error}): pip install 'pairbus[spark-local]'") from None
    prepare_environment()
    is_new = SparkContext._active_spark_context is None
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (LOCAL_CONF | _OWN_CLASSIC | {"spark.sql.warehouse.dir": _warehouse()} | conf).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if not is_new or importlib.util.find_spec("pyspark_servicebus") is None:
        register(session)
    return session


def register(spark: SparkSession) -> None:
    """Make `format("servicebus")` known to a session. Spark 4 finds it by itself where pairbus is installed."""
    from pairbus.spark.features import knows_format, register_format
    from pairbus.spark.source.formats import ServiceBusDataSource

    if not knows_format(spark, ServiceBusDataSource.name()):
        register_format(spark, ServiceBusDataSource)


def set_log_level(spark: SparkSession, level: str) -> None:
    """Say how much Java writes to standard error; that of a Connect server is not ours to change."""
    from pairbus.spark.features import is_remote

    if not is_remote(spark):
        spark.sparkContext.setLogLevel(level)


def write_plain_checkpoints(spark: SparkSession) -> None:
    """Write checkpoints without atomic renames: half the cost of a micro-batch, for checkpoints that nobody keeps.

    A Connect server keeps its own way: which class it has cannot be asked there.
    """
    from pairbus.spark.features import is_remote

    if is_remote(spark):
        return
    java: Any = spark._jvm
    name = next(filter(java.org.apache.spark.util.Utils.classIsLoadable, PLAIN_CHECKPOINTS))
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", name)


def _warehouse() -> str:
    """Make a folder for tables without a place of their own: not the folder in which somebody happened to start."""
    folder = tempfile.mkdtemp(prefix="pairbus-warehouse-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _check_reachable(remote: str) -> None:
    """Raise ConfigError unless somebody answers at the address: PySpark itself would try for ten minutes."""
    url = urlsplit(remote)
    try:
        host, port = url.hostname, url.port or CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if url.scheme != "sc" or host is None:
        raise ConfigError(
            f"remote: {_shown(remote)!r} is not the address of a Spark Connect server, as sc://HOST:PORT is"
        )
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return  # the way may lead through a proxy, which gRPC knows better
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"remote: no Spark Connect server answers at {host}:{port}: {error}") from None


def _shown(remote: str) -> str:
    """Return an address without its parameters, one of which may be a token."""
    return remote.partition(";")[0].rpartition("@")[2]
