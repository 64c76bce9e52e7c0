"""Verification of a backup: every row against its checksum, and the number of messages of each entity."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from pairbus.broker.store.backup import Contents
from pairbus.broker.store.progress import PacedTelling
from pairbus.broker.store.records import payload_crc
from pairbus.broker.store.recovery import Recovery, box_name, some_of
from pairbus.broker.store.schema import READ_ERRORS, open_for_reading, store_error
from pairbus.broker.store.structure import check
from pairbus.errors import StoreDamaged


@dataclass(frozen=True, slots=True)
class Verified:
    contents: Contents
    entities: int
    damage: list[str]
    "One sentence for each part that does not match; empty when the copy is intact."


def verify(path: Path, progress: Callable[[str], None] | None = None) -> Verified:
    """Read a whole store that nobody else uses. StoreError: it cannot be read."""
    connection = open_for_reading(path)
    try:
        check(connection, path)
        recovery = Recovery(connection, path, PacedTelling(progress))
        entities = recovery.recover()
        messages = sum(1 for _ in recovery.index())
        for entity in entities:
            recovery.remembered(entity.entity_id)
        for _ in recovery.session_states():
            pass
        damage = [*recovery.damage, *_damaged_bodies(connection, path)]
        return Verified(Contents(recovery.totals.commits, messages), len(entities), damage)
    except StoreDamaged:  # its text is about a store to be salvaged, and this is a copy
        return Verified(Contents(0, 0), 0, [f"{path}: its structure is damaged."])
    except READ_ERRORS as error:
        raise store_error(error, path) from error
    finally:
        connection.close()


def _damaged_bodies(connection: sqlite3.Connection, path: Path) -> list[str]:
    """Compare what the start of a broker leaves for later: bodies, payloads and the states of sessions."""
    by_box: dict[object, list[int]] = {}
    for n, box, crc, body in connection.execute("SELECT n, box, body_crc, body FROM messages"):
        if type(body) is not bytes or crc32(body) != crc:
            by_box.setdefault(box, []).append(n)
    damage = [
        f"{path}: {len(numbers)} bodies of {box_name(box) if type(box) is int else 'an unknown entity'} are damaged"
        f" (rows {some_of(numbers)})."
        for box, numbers in by_box.items()
    ]
    payloads = [
        payload
        for payload, topic, crc, body in connection.execute("SELECT id, topic, crc, body FROM payloads")
        if type(topic) is not int or type(body) is not bytes or payload_crc(payload, topic, body) != crc
    ]
    if payloads:
        damage.append(f"{path}: {len(payloads)} bodies that messages share are damaged (payloads {some_of(payloads)}).")
    states = [
        n
        for n, crc, state in connection.execute("SELECT n, state_crc, state FROM states")
        if type(state) is not bytes or crc32(state) != crc
    ]
    if states:
        damage.append(f"{path}: {len(states)} states of sessions are damaged (rows {some_of(states)}).")
    return damage
