"""Spark: `format("servicebus")` as source and sink, and sessions on this machine or of a Connect server.

    from pairbus.spark import local_session

    spark = local_session("orders")
    spark.read.format("servicebus").option("connectionString", "env:ORDERS").load("orders").show()

Importing this package needs neither pyspark nor Java; both are asked for when a session is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.errors import SparkGone
    from pairbus.spark.java import Java, find_java
    from pairbus.spark.session import local_session, open_session, register, remote_session
    from pairbus.spark.source.draining import drain
    from pairbus.spark.syphon_job.arguments import redrive, syphon
    from pairbus.spark.syphon_job.compaction import Compacted, compact
    from pairbus.spark.syphon_job.rounds import Quotas

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

_HOMES = {
    "pairbus.errors": ("SparkGone",),
    "pairbus.spark.syphon_job.compaction": ("Compacted", "compact"),
    "pairbus.spark.source.draining": ("drain",),
    "pairbus.spark.java": ("Java", "find_java"),
    "pairbus.spark.syphon_job.rounds": ("Quotas",),
    "pairbus.spark.session": ("local_session", "open_session", "register", "remote_session"),
    "pairbus.spark.syphon_job.arguments": ("redrive", "syphon"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: each Python process of Spark imports this package, most of them for the format alone."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairbus.spark' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)
