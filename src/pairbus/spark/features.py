"""The parts of PySpark's data source API that not every version from 4.0 on has, found by looking for them.

| a version lacks                        | then                                                                  |
| -------------------------------------- | --------------------------------------------------------------------- |
| a stream writer of Arrow batches (4.0) | the two writers that it has are inherited together                    |
| filters that are pushed down (4.0)     | Spark filters the rows itself; `source/pushdown.py` is never imported |
| a start and a limit for the next batch | the reader remembers the start; Trigger.AvailableNow is one batch     |
| (4.0, 4.1)                             | only, and `pairbus.spark.drain` repeats it until nothing is left      |
| registering a format twice (4.0)       | the second time is left out                                           |
| Java in this process (Spark Connect)   | the driver is asked by `driver_side.py`; py4j is never imported        |

A managed platform brings its own PySpark, with parts of later versions in it: hence no version number is compared.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    TELLS_START = False
    "True when Spark says where a batch begins, and asks the source for the end with Trigger.AvailableNow."
else:
    TELLS_START = True

Offset = dict[str, Any]

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream writer that takes Arrow batches: both base classes that Spark looks for."""


class PlannedReader(DataSourceStreamReader):
    """A stream reader in the words of this package: the next offset after a start, and the tasks between two."""

    @abstractmethod
    def next_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """Return the end of the next batch; `start` when there is none now. `max_rows` is a limit set by the user."""

    @abstractmethod
    def tasks(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks of the batches after `start`, up to `end`."""

    def max_rows(self) -> int | None:
        """Return the limit of a batch unless the user sets one; None: there is none."""
        return None


if TELLS_START:

    class BatchReader(PlannedReader, SupportsTriggerAvailableNow):
        """A reader that Spark tells the start and the limit of every batch."""

        def getDefaultReadLimit(self) -> ReadLimit:
            most = self.max_rows()
            return ReadAllAvailable() if most is None else ReadMaxRows(most)

        def prepareForTriggerAvailableNow(self) -> None:
            """Do nothing; readers that need this call override it."""

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            return self.next_offset(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            return self.tasks(start, end)

else:

    class BatchReader(PlannedReader):  # type: ignore[no-redef]
        """A reader that remembers where the last batch has ended.

        A query with a checkpoint first asks for the partitions of its last batch, or of an empty one. So a reader that
        is first asked for an offset belongs to a query without a checkpoint.
        """

        _start: Offset | None = None

        def latestOffset(self) -> Offset:  # type: ignore[override]
            if self._start is None:
                self._start = self.initialOffset()
            return self.next_offset(self._start, None)

        def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
            self._start = end
            return self.tasks(start, end)


def is_remote(spark: SparkSession) -> bool:
    """Return whether the session is one of Spark Connect: its driver is another process, and there is no Java here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def knows_format(spark: SparkSession, name: str) -> bool:
    """Return whether a session knows a format, found by itself or registered. Costs the start of a Python process."""
    try:
        _ = spark.read.format(name).load().schema
    except spark_errors() as error:  # for an unknown format the error is one of Java, not of PySpark
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def register_format(spark: SparkSession, kind: type[DataSource]) -> None:
    """Make a format known to a session, where it is not known already."""
    try:
        spark.dataSource.register(kind)
    except AnalysisException as error:
        if _condition(error) != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a call of Spark can raise, whether Java is beside this process or elsewhere."""
    return (PySparkException, ConnectionError, *_loaded("py4j.protocol", "Py4JError"), *_loaded("grpc", "RpcError"))


def is_gone(error: Exception) -> bool:
    """Return whether one of these errors says that the driver is gone: its Java has ended, or knows no such session."""
    if isinstance(error, (ConnectionError, *_loaded("grpc", "RpcError"))) or type(error).__name__ in _GONE:
        return True
    return isinstance(error, PySparkException) and (_condition(error) or "").partition(".")[0] in _NO_SESSION


def _loaded(module: str, name: str) -> tuple[type[Exception], ...]:
    """Return a class of a module that this process uses; empty when it does not: then it cannot be raised here."""
    loaded = sys.modules.get(module)
    return () if loaded is None else (getattr(loaded, name),)


_GONE = {"Py4JNetworkError", "SparkConnectGrpcException", "RetriesExceeded"}
"Names of classes: which of them exist depends on the installed packages. None of them has a subclass that counts."
_NO_SESSION = {"INVALID_HANDLE", "NO_ACTIVE_SESSION", "DATA_SOURCE_NOT_FOUND"}
"Conditions of a server that was restarted: it knows neither the session nor what was registered with it."


def _condition(error: Any) -> str | None:
    """Return the name of a Spark error, by the method of the installed version."""
    condition: str | None = (getattr(error, "getCondition", None) or error.getErrorClass)()
    return condition
