"""The SQL statements of a commit, in a few fixed sizes, so that prepared statements are reused.

Inserts are split into powers of two; where a row can be repeated or left empty without effect (updates, moves, deletes)
the list is padded instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

MAX_ROWS = 256  # rows of one statement
RUN_LENGTH = 32
"Number of consecutive numbers from which a range has a statement of its own."


def power_of_two_parts(count: int) -> Iterator[int]:
    """Yield powers of two whose sum is count, the largest first, none above MAX_ROWS."""
    size = MAX_ROWS
    while count:
        while size > count:
            size //= 2
        yield size
        count -= size


def padded_size(count: int) -> int:
    return max(4, 1 << (count - 1).bit_length())


def runs_of(seqs: Collection[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return (long runs of consecutive numbers, every other number)."""
    ordered = sorted(seqs)
    if ordered[-1] - ordered[0] + 1 == len(ordered):
        return [(ordered[0], ordered[-1])], []
    runs: list[tuple[int, int]] = []
    others: list[int] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end < len(ordered) and ordered[end] == ordered[end - 1] + 1:
            continue
        if end - start >= RUN_LENGTH:
            runs.append((ordered[start], ordered[end - 1]))
        else:
            others += ordered[start:end]
        start = end
    return runs, others


@lru_cache(maxsize=512)
def insert_sql(table: str, columns: str, width: int, rows: int, verb: str) -> str:
    row = f"({','.join('?' * width)})"
    return f"{verb} INTO {table} ({columns}) VALUES {','.join([row] * rows)}"


@lru_cache(maxsize=64)
def update_sql(rows: int) -> str:
    return (
        "UPDATE messages SET box = new.column2, head = new.column3, head_crc = new.column4 "
        f"FROM (VALUES {','.join(['(?,?,?,?)'] * rows)}) AS new WHERE n = new.column1"
    )


@lru_cache(maxsize=64)
def move_sql(rows: int) -> str:
    return (
        "INSERT INTO messages SELECT new.column2, new.column3, new.column4, new.column5, old.body_crc, old.body "
        f"FROM (VALUES {','.join(['(?,?,?,?,?)'] * rows)}) AS new CROSS JOIN messages AS old ON old.n = new.column1"
    )


@lru_cache(maxsize=64)
def delete_sql(table: str, key: str, rows: int) -> str:
    return f"DELETE FROM {table} WHERE {key} IN ({','.join('?' * rows)})"
