"""What every operation on either namespace cost, and what happened on the way: append-only JSON lines.

    ledger = Ledger("ledger", client="orders-api")
    ledger.meter("primary", "contoso.servicebus.windows.net", "orders", "send", 812)
    ledger.close(2.0)

    rows = read("ledger")
    operations = sum(row.billable_operations or 0 for row in rows)

`docs/ledger.md` has every field. Metering never fails or delays a send, whatever happens to its disk.
"""

from pairbus.ledger.book import Ledger, Tally, tallied
from pairbus.ledger.reader import Rows, read
from pairbus.ledger.rows import SCHEMA, Cause, MeterKind, Row, Side, billable_operations

__all__ = [
    "SCHEMA",
    "Cause",
    "Ledger",
    "MeterKind",
    "Row",
    "Rows",
    "Side",
    "Tally",
    "billable_operations",
    "read",
    "tallied",
]
