"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: hence no `register` call is needed."""

from pairbus.spark.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
