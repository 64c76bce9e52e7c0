"""Calls of plain functions where Spark's driver is: its disk has the journal, its environment has the secrets.

In a classic session the driver is this process. With Spark Connect it is on another host, which cannot call a function
for us. But it asks a Python process beside the driver for the schema of a data source. So a call is a request for the
schema of `format("pairbus-call")`: the option has the function and its arguments, the schema has the result. It needs
no task, hence it works while every slot of the cluster is busy; it costs about 50 ms.

Laws of this file.
 1. A function is one of this package, known by its name, and has the same result when it is called twice.
 2. Arguments are paths and settings, never a secret: Spark shows options.
 3. Calls and results are JSON, and become values of the types that the function declares: neither side runs code that
    the other has sent.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from pairbus.errors import ConfigError, LedgerNewer, PairbusError, SparkGone, StorageError
from pairbus.spark.features import is_gone, is_remote, register_format, spark_errors
from pairbus.spark.plain_values import from_plain, to_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "pairbus-call"
RESULT = "result"
PACKAGE = "pairbus"
KEPT: tuple[type[Exception], ...] = (ConfigError, LedgerNewer, StorageError, PairbusError, OSError)
"Errors that keep their type; those that are of none of them are errors of Spark."

P = ParamSpec("P")
T = TypeVar("T")


class CallSource(DataSource):
    """`format("pairbus-call")`: a call in the form of a data source without rows."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        call = json.loads(self.options["call"])
        function = function_of(call["function"])
        try:
            answer = {RESULT: to_plain(function(*_arguments(function, call["arguments"])))}
        except KEPT as error:
            kind = next(kind for kind in KEPT if isinstance(error, kind))
            answer = {"error": kind.__name__, "text": str(error)}
        return StructType([StructField(RESULT, StringType(), metadata={RESULT: json.dumps(answer)})])


class DriverSide:
    """The place of a session's driver, where functions can be called."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.is_elsewhere = is_remote(spark)
        "True when the driver is another process: a call takes 50 ms, the first one a second."
        self._is_known = False

    def call(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a function where the driver is, and return its result or raise its error."""
        if not self.is_elsewhere:
            return function(*arguments, **keywords)
        assert not keywords, "a call over Connect has arguments without names"
        try:
            if not self._is_known:
                register_format(self._spark, CallSource)
                self._is_known = True
            reader = self._spark.read.format(FORMAT).options(**options_of(function, *arguments))
            schema = reader.load().schema
        except spark_errors() as error:
            raise _explained(error) from None
        answer: T = answer_of(schema, function)
        return answer


def options_of(function: Callable[..., object], *arguments: object) -> dict[str, str]:
    """Return a call as options. It has a number, because a server caches the answers to equal requests."""
    owner = getattr(function, "__self__", None)  # a method is called with its object as the first argument
    plain: Any = getattr(function, "__func__", function)
    values = arguments if owner is None else (owner, *arguments)
    call = {"function": f"{plain.__module__}:{plain.__qualname__}", "arguments": [to_plain(one) for one in values]}
    return {"call": json.dumps(call), "id": uuid.uuid4().hex}


def answer_of(schema: StructType, function: Callable[..., object]) -> Any:
    """Return the result of the call, or raise its error."""
    answer = json.loads(schema[RESULT].metadata[RESULT])
    if RESULT in answer:
        return from_plain(answer[RESULT], get_type_hints(function)["return"])
    raise next((kind for kind in KEPT if kind.__name__ == answer.get("error")), PairbusError)(answer.get("text"))


def function_of(name: str) -> Callable[..., object]:
    """Return a function of this package by its name; ConfigError for any other."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] != PACKAGE:
        raise ConfigError(f"{name} is not a function of {PACKAGE}")
    function: Any = import_module(module)
    for part in path.split("."):
        function = getattr(function, part, None)
    if not inspect.isfunction(function) or function.__module__ != module:
        raise ConfigError(f"{name} is not a function of {PACKAGE}")
    return function


def _arguments(function: Callable[..., object], values: list[Any]) -> Iterator[Any]:
    """Yield the arguments in the types that the function declares."""
    hints = get_type_hints(function)
    if "." in function.__qualname__:  # a method
        owner = getattr(import_module(function.__module__), function.__qualname__.partition(".")[0])
        hints["self"] = owner
    kinds: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        is_rest = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        kinds += [hints[name]] * (len(values) - len(kinds) if is_rest else 1)
    for value, kind in zip(values, kinds, strict=False):
        yield from_plain(value, kind)


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
