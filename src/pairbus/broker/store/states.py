"""Rows of session states: (n, entity_id, updated_ms, session_id, head_crc, state_crc, state).

`head_crc` covers all columns but the state and is seeded with n, so that the list of states is read and checked without
the states, which are the last column.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from pairbus.broker.store import SetSessionState, StateRow
from pairbus.errors import StoreError

HEAD_COLUMNS = "n, entity_id, updated_ms, session_id, head_crc"
_HEAD = struct.Struct("<qqq")


def head_crc(n: int, entity_id: int, updated_ms: int, session_id: bytes) -> int:
    return crc32(session_id, crc32(_HEAD.pack(n, entity_id, updated_ms)))


def carry_out(connection: sqlite3.Connection, op: SetSessionState) -> None:
    """Write one state, or delete it."""
    if op.state is None:
        connection.execute("DELETE FROM states WHERE n = ?", (op.n,))
        return
    crc = head_crc(op.n, op.entity_id, op.updated_ms, op.session_id.encode())
    connection.execute(
        "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?, ?)",
        (op.n, op.entity_id, op.updated_ms, op.session_id, crc, crc32(op.state), op.state),
    )


def row_of(n: Any, entity_id: Any, updated_ms: Any, session_id: Any, crc: Any, size: Any) -> StateRow | None:
    """Return the row as it was read; None: it is damaged."""
    try:
        if head_crc(n, entity_id, updated_ms, session_id) != crc:
            return None
        return StateRow(n, entity_id, session_id.decode(), updated_ms, int(size))
    except (TypeError, ValueError, struct.error):
        return None


def rows(connection: sqlite3.Connection, damaged: list[int]) -> Iterator[StateRow]:
    """Yield the states whose heads are intact; the numbers of the others go into `damaged`."""
    for columns in connection.execute(f"SELECT {HEAD_COLUMNS}, length(state) FROM states ORDER BY n"):
        row = row_of(*columns)
        if row is None:
            damaged.append(columns[0])
        else:
            yield row


def load(connection: sqlite3.Connection, n: int) -> bytes | None:
    """Return the state in a row; None: there is no such row. StoreError: it is damaged."""
    for expected, state in connection.execute("SELECT state_crc, state FROM states WHERE n = ?", (n,)):
        if type(state) is not bytes or crc32(state) != expected:
            raise StoreError(f"The state of a session is damaged (row {n}).")
        return state
    return None
