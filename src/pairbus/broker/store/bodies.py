"""The bodies that rows share, read from the payloads' table; the last ones read are kept.

The subscriptions of a topic hand out the same payloads at about the same time, so each is read and checked once instead
of once for each subscription, and the messages of all of them hold the same bytes. A number is never given to a second
payload, and a payload never changes: a kept body cannot become wrong.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from pairbus.broker.store.read_failures import ReadFailures
from pairbus.broker.store.records import Bodies, payload_crc
from pairbus.broker.store.schema import READ_ERRORS, store_error
from pairbus.errors import StoreError

logger = logging.getLogger("pairbus.broker.store")

KEPT_BYTES_MAX = 4 << 20


class SharedBodies:
    """Intact bodies by the numbers of their payloads."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._failures = ReadFailures(connection, path, "payload")
        self._path = path
        self._kept: dict[int, bytes] = {}
        "Bodies in the order in which they were read."
        self._kept_bytes = 0

    def find(self, wanted: set[int], size_max: int) -> Bodies:
        """Return the wanted payloads that are there and intact, and those not looked at, because the others that were
        read have `size_max` bytes. StoreError: they cannot be read now."""
        kept = self._kept
        bodies = {payload: kept[payload] for payload in wanted if payload in kept}
        unread: set[int] = set()
        if len(bodies) < len(wanted):
            read, unread = self._read(wanted.difference(bodies), size_max)
            self._keep(read)
            bodies |= read
        return bodies, unread

    def _keep(self, bodies: dict[int, bytes]) -> None:
        kept = self._kept
        kept |= bodies
        self._kept_bytes += sum(map(len, bodies.values()))
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(kept.pop(next(iter(kept))))

    def _read(self, wanted: Iterable[int], size_max: int) -> tuple[dict[int, bytes], set[int]]:
        intact: dict[int, bytes] = {}
        unread: set[int] = set()
        left = size_max
        for first, last in _runs_of(sorted(wanted)):
            if left <= 0:
                unread.update(range(first, last + 1))
                continue
            try:
                bodies, end = self._read_run(first, last, left)
                self._failures.succeeded(range(first, end))
            except READ_ERRORS as error:
                bodies, end = self._read_one_by_one(range(first, last + 1), left)
                logger.error("%s: payloads were read one by one after an error: %s", self._path, error)
            intact |= bodies
            left -= sum(map(len, bodies.values()))
            unread.update(range(end, last + 1))
        return intact, unread

    def _read_one_by_one(self, numbers: range, size_max: int) -> tuple[dict[int, bytes], int]:
        intact: dict[int, bytes] = {}
        passing: StoreError | None = None
        is_any_lost = False
        left = size_max
        for payload in numbers:
            if left <= 0:
                return intact, payload
            try:
                bodies, _ = self._read_run(payload, payload, left)
                intact |= bodies
                left -= sum(map(len, bodies.values()))
                self._failures.succeeded([payload])
            except READ_ERRORS as error:
                if self._failures.is_lost(payload, error):
                    is_any_lost = True
                    logger.error("%s: the payload %d cannot be read: %s", self._path, payload, error)
                    continue
                passing = store_error(error, self._path)
                if not is_any_lost:  # as in reader.py
                    break
        if passing is not None:
            raise passing
        return intact, numbers.stop

    def _read_run(self, first: int, last: int, size_max: int) -> tuple[dict[int, bytes], int]:
        """Return (the intact bodies until they have `size_max` bytes, the first number that was not looked at)."""
        read = self._connection.execute(
            "SELECT id, topic, crc, body FROM payloads WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
        )
        intact: dict[int, bytes] = {}
        left = size_max
        for payload, topic_id, crc, body in read:
            if type(body) is bytes and type(topic_id) is int and payload_crc(payload, topic_id, body) == crc:
                intact[payload] = body
                left -= len(body)
                if left <= 0:
                    return intact, int(payload) + 1
        return intact, last + 1


def _runs_of(ordered: list[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of consecutive numbers; `ordered` ascends."""
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs
