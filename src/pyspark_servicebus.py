"""Entry point for Spark, which imports modules named `pyspark_*` and registers their `DefaultSource`: no `register`
call is needed.

Spark ignores a module that it cannot import, and then does not know the format. So this module imports only packages
that every PySpark has; the rest is imported when the format is used, and an error then says what is missing.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """`format("servicebus")`; `pairbus.spark.source.formats` does the work."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> Any:
        return self._source().schema()

    def reader(self, schema: Any) -> Any:
        return self._source().reader(schema)

    def streamReader(self, schema: Any) -> Any:
        return self._source().streamReader(schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self._source().writer(schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return self._source().streamWriter(schema, overwrite)

    def _source(self) -> DataSource:
        try:
            from pairbus.spark.source.formats import ServiceBusDataSource
        except ImportError as error:
            raise ImportError(
                f"format servicebus cannot be used by {sys.executable}: {error}."
                " Install what it needs there: pip install 'pairbus[spark]'"
            ) from error
        return ServiceBusDataSource(self.options)


__all__ = ["DefaultSource"]
