"""Spark: `format("servicebus")` as source and sink, and a session on this machine.

    from pairbus.spark import local_session

    spark = local_session("orders")
    spark.read.format("servicebus").option("connectionStringEnv", "ORDERS").load("orders").show()

Importing this package needs neither pyspark nor Java; both are asked for when a session is made.
"""

from pairbus.spark.java import Java, find_java
from pairbus.spark.session import local_session, register

__all__ = ["Java", "find_java", "local_session", "register"]
