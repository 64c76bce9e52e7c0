"""The ledger: append-only JSON lines about every operation on either namespace, its cost, and every event.

`book` takes operations and events from any thread, `files` writes them, `room` bounds the folder; `reader` reads `rows`
back, `prices` and `estimate` make money of them, and `table` is the ledger as a table of Spark.

    ledger = Ledger("ledger", client="orders-api")
    ledger.meter("primary", "contoso.servicebus.windows.net", "orders", "send", 812)
    ledger.close(2.0)

    rows = read("ledger")
    operations = sum(row.billable_operations or 0 for row in rows)

`docs/ledger.md` explains every field. Metering never fails or delays a send, whatever happens to the ledger's disk.
"""

from pairbus.ledger.book import Ledger, Tally, tallied
from pairbus.ledger.reader import Rows, read
from pairbus.ledger.rows import SCHEMA, Cause, MeterKind, Row, SideName, billable_operations, operations_by_cause

__all__ = [
    "SCHEMA",
    "Cause",
    "Ledger",
    "MeterKind",
    "Row",
    "Rows",
    "SideName",
    "Tally",
    "billable_operations",
    "operations_by_cause",
    "read",
    "tallied",
]
