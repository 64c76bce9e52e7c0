"""Entries for tests: numbered messages that can be told apart by their bodies."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Symbol
from pairbus.spool import Spool, SpoolEntry

ALL = 1_000_000


def encoded(number: int, *, session_id: str | None = None, partition_key: str | None = None, size: int = 10) -> bytes:
    properties = Properties(message_id=f"m{number}", group_id=session_id)
    annotations = None if partition_key is None else {Symbol("x-opt-partition-key"): partition_key}
    return Message(properties=properties, annotations=annotations, data=[b"%0*d" % (size, number)]).encode()


def number_of(payload: bytes) -> int:
    return int(Message.decode(payload).data[0][-10:])


def entry(number: int, path: str = "orders", **settings: Any) -> SpoolEntry:
    return SpoolEntry(path, encoded(number, **settings), f"m{number}", spooled_ms=1_000 + number)


def entries(numbers: range, path: str = "orders", **settings: Any) -> list[SpoolEntry]:
    return [entry(number, path, **settings) for number in numbers]


def waiting(spool: Spool, path: str = "orders") -> list[int]:
    """Numbers of the messages that wait for the path, in the order in which they would go."""
    return [number_of(found.payload) for _, found in spool.next_batch(path, ALL, ALL * 1000)]
