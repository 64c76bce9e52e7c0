"""Calls of plain functions where Spark's driver is: its disk has the journal, its environment has the secrets.

In a classic session the driver is this process. With Spark Connect it is on another host, which cannot call a function
for us. But it asks a Python process beside the driver for the schema of a data source. So a call is a request for the
schema of `format("pairbus-call")`: the option has the function and its arguments, the schema has the result. It needs
no task, hence it works while every slot of the cluster is busy; it costs about 50 ms.

Laws of this file.
 1. A function is one of this package, known by its name, and has the same result when it is called twice.
 2. Arguments are paths and settings, never a secret: Spark shows options.
"""

from __future__ import annotations

import base64
import pickle
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from pairbus.errors import ConfigError, LedgerNewer, PairbusError, SparkGone
from pairbus.spark.features import is_gone, is_remote, register_format, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "pairbus-call"
RESULT = "result"
KEPT = (ConfigError, LedgerNewer)
"Errors that keep their type; others, some of which cannot be pickled, become a PairbusError."

P = ParamSpec("P")
T = TypeVar("T")


class CallSource(DataSource):
    """`format("pairbus-call")`: a call in the form of a data source without rows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        function, arguments, named = _loaded(self.options["call"])
        try:
            result: tuple[bool, object] = (True, function(*arguments, **named))
        except OSError as error:
            result = (False, error)
        except PairbusError as error:
            kind = next((kind for kind in KEPT if isinstance(error, kind)), PairbusError)
            result = (False, kind(str(error)))
        return StructType([StructField(RESULT, StringType(), metadata={RESULT: _dumped(result)})])


class DriverSide:
    """The place of a session's driver, where functions can be called."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.is_elsewhere = is_remote(spark)
        "True when the driver is another process: a call takes 50 ms, the first one a second."
        self._is_known = False

    def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function where the driver is, and return its result or raise its error."""
        if not self.is_elsewhere:
            return function(*arguments, **named)
        try:
            if not self._is_known:
                register_format(self._spark, CallSource)
                self._is_known = True
            reader = self._spark.read.format(FORMAT).options(**options_of(function, *arguments, **named))
            schema = reader.load().schema
        except spark_errors() as error:
            raise _explained(error) from None
        answer: T = answer_of(schema)
        return answer


def options_of(function: Callable[..., object], *arguments: object, **named: object) -> dict[str, str]:
    """Return a call as options. It has a number, because a server caches the answers to equal requests."""
    return {"call": _dumped((function, arguments, named)), "id": uuid.uuid4().hex}


def answer_of(schema: StructType) -> Any:
    """Return the result of the call, or raise its error."""
    is_done, result = _loaded(schema[RESULT].metadata[RESULT])
    if not is_done:
        raise result
    return result


def _explained(error: Exception) -> Exception:
    """Return an error that says what the server lacks, or that it is gone; otherwise the error of Spark."""
    text = str(error)
    if "No module named 'pairbus" in text:
        return ConfigError(
            "pairbus is not installed where the Spark Connect server runs: pip install 'pairbus[spark]' into its Python"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return ConfigError(f"this Python and the one of the Spark Connect server must have one version: {text}")
    if is_gone(error):
        return SparkGone(f"the Spark Connect server has ended, or was started again: {text.splitlines()[0][:200]}")
    return error


def _dumped(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _loaded(text: str) -> tuple[Any, ...]:
    value: tuple[Any, ...] = pickle.loads(base64.b64decode(text))
    return value
