"""Spark: `format("servicebus")` as source and sink, and sessions on this machine or of a Connect server.

    from pairbus.spark import local_session

    spark = local_session("orders")
    spark.read.format("servicebus").option("connectionString", "env:ORDERS").load("orders").show()

Importing this package needs neither pyspark nor Java; both are asked for when a session is made.
"""

from pairbus.errors import SparkGone
from pairbus.spark.compaction import Compacted, compact
from pairbus.spark.draining import drain
from pairbus.spark.java import Java, find_java
from pairbus.spark.rounds import Quotas
from pairbus.spark.session import local_session, open_session, register, remote_session
from pairbus.spark.syphon_job import redrive, syphon

__all__ = [
    "Compacted",
    "Java",
    "Quotas",
    "SparkGone",
    "compact",
    "drain",
    "find_java",
    "local_session",
    "open_session",
    "redrive",
    "register",
    "remote_session",
    "syphon",
]
