"""The data source `format("servicebus")`. Options are read here, once for each reader or writer.

Spark calls these methods in Python processes of the driver's host; their results are pickled to the executors.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from pairbus.errors import ConfigError
from pairbus.spark.connections import run
from pairbus.spark.features import BatchReader
from pairbus.spark.options import Options, refuse_tables
from pairbus.spark.sink.writers import BatchSink, StreamSink, message_sizes
from pairbus.spark.source.batch_reader import PeekReader, spark_pushes_filters
from pairbus.spark.source.schema import check_written_columns, columns, spark_schema


class ServiceBusDataSource(DataSource):
    """Azure Service Bus, or a service that speaks its protocol. docs/spark-options.md has options and schema."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> str:
        # Before any option is checked: Spark asks for the schema first, and a wrong option is reported by the part that
        # uses it.
        refuse_tables(self.options)
        raw, kind = self.options.get("includeRaw", ""), self.options.get("propertiesAs", "")
        return spark_schema(include_raw=raw.lower() == "true", plain=kind.lower() == "string")

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options, "read")
        names = read_columns(schema, options)
        if options.push_filters and spark_pushes_filters():
            from pairbus.spark.source.pushdown import (
                FilteringPeekReader,  # a Spark that pushes filters has their classes
            )

            return FilteringPeekReader(options, names)
        return PeekReader(options, names)

    def streamReader(self, schema: StructType) -> BatchReader:
        options = Options.parse(self.options, "stream")
        return stream_reader(options, read_columns(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        options = self._sink_options(schema, overwrite)
        if options.entity is not None:
            run(message_sizes(options, [options.entity], 0.0))  # before any task: is it there, may we send?
        return BatchSink(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        # Called for every micro-batch: the tasks check whether the entity exists, before they send.
        return StreamSink(self._sink_options(schema, overwrite))

    def _sink_options(self, schema: StructType, overwrite: bool) -> Options:
        options = Options.parse(self.options, "write")
        if overwrite:
            raise ConfigError("mode overwrite: what is in a queue cannot be replaced; use append")
        check_written_columns({field.name: field.dataType.simpleString() for field in schema.fields})
        if options.entity is None and "entity" not in schema.names:
            raise ConfigError("option entity is required where the rows have no column entity")
        return options


def stream_reader(options: Options, column_names: Sequence[str] | None = None) -> BatchReader:
    """Return the reader for the kind of stream that the options ask for."""
    # Imported when needed: five Python processes of a batch that is written import this file, and need no stream.
    from pairbus.spark.source.peek_stream import PeekStreamReader
    from pairbus.spark.source.several_stream import SeveralStreamReader
    from pairbus.spark.source.stream_reader import StagedStreamReader

    if not options.removes:
        return PeekStreamReader(options, column_names)
    return (SeveralStreamReader if options.reads_several else StagedStreamReader)(options, column_names)


def read_columns(schema: StructType, options: Options) -> list[str]:
    """Return the columns to give: all, or those of a schema that the user has set, which may leave some out."""
    types = {column.name: column.type for column in columns(options.include_raw, options.plain_properties)}
    for field in schema.fields:
        type_name = types.get(field.name)
        if type_name is None:
            raise ConfigError(f"column {field.name} is not one that format servicebus reads")
        if field.dataType.simpleString() != type_name:
            raise ConfigError(f"column {field.name} is {type_name}, not {field.dataType.simpleString()}")
    return list(schema.names)
