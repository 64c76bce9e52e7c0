"""`format("servicebus")`: what Spark makes of the name. Options are read here, once for each reader or writer.

Spark calls these methods in Python processes of the driver's host; what they return is pickled to the executors.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from pairbus.spark.schema import spark_schema


class ServiceBusDataSource(DataSource):
    """Azure Service Bus, or anything that speaks like it. docs/spark.md has the options and the schema."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> str:
        # Before any option is checked: Spark asks for the schema first, and a wrong option is told by who uses it.
        return spark_schema(include_raw=self.options.get("includeRaw", "false").lower() == "true")
