"""Ledgers as a table of Spark: compaction of lines into rows by day, and views on them in SQL.

A run lists the files (`listing`), reads the lines that the manifest does not know yet (`compaction`, `lines`), and adds
each row once (`table`), also after a kill; sums of removed files are not counted beside their rows (`lost`).

    from pairbus.ledger.table import compact_ledgers, register_views

    compact_ledgers(spark, ["ledger"], "/data/ledger-table")
    register_views(spark, "/data/ledger-table")
    spark.sql("SELECT entity, begins, recovered FROM outages").show()

Importing this package needs no pyspark.
"""

from pairbus.ledger.table.compaction import CompactedLedgers, compact_ledgers
from pairbus.ledger.table.table import FORMATS
from pairbus.ledger.table.views import VIEWS, register_views

__all__ = ["FORMATS", "VIEWS", "CompactedLedgers", "compact_ledgers", "register_views"]
