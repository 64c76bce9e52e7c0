"""Reads that end at a number of bytes: whatever the sizes, at most one message is read beyond the limit."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from pairbus.broker.store import Insert, InsertPayload, StoredMessage, box_of
from pairbus.broker.store.records import messages_of, pack_rows
from tests.store.common import Opened, commit

BOX = box_of(1)
MB = 1 << 20


async def insert(opened: Opened, messages: list[StoredMessage], *payloads: InsertPayload) -> None:
    assert await commit(opened.store, *payloads, Insert(BOX, messages)) is None


async def test_read_of_mixed_sizes_ends_at_its_bytes(opened: Opened) -> None:
    """A mean says nothing about the next message: 200 small ones stand before ten of 400 KB."""
    small = [StoredMessage(n, b"x", n=n) for n in range(1, 201)]
    large = [StoredMessage(n, b"x" * 400_000, n=n) for n in range(201, 211)]
    await insert(opened, small + large)
    wanted = list(range(1, 211))
    seen: list[int] = []
    while wanted:
        messages, damaged, rest = opened.store.load(BOX, wanted, MB)
        assert not damaged and messages
        assert sum(message.size for message in messages[:-1]) < MB
        seen += [message.n for message in messages]
        assert seen + rest == list(range(1, 211))
        wanted = rest


async def test_read_of_far_numbers_ends_at_its_bytes(opened: Opened) -> None:
    """Numbers that are no range are read by another statement."""
    await insert(opened, [StoredMessage(n, b"x" * 400_000, n=n) for n in range(10, 210, 20)])
    messages, _, rest = opened.store.load(BOX, range(10, 210, 20), MB)
    assert ([message.n for message in messages], rest) == ([10, 30, 50], list(range(70, 210, 20)))


async def test_read_of_shared_payloads_ends_at_their_bytes(opened: Opened) -> None:
    """The rows of copies are small; their payloads need not be."""
    payloads = [InsertPayload(n, 1, b"x" * 400_000) for n in range(1, 9)]
    # The first message has the last payload: it is read all the same.
    copies = [StoredMessage(n, b"x" * 400_000, n=n, payload=109 - n) for n in range(101, 109)]
    await insert(opened, copies, *payloads)
    wanted = list(range(101, 109))
    while wanted:
        messages, damaged, rest = opened.store.load(BOX, wanted, MB)
        assert not damaged and 1 <= len(messages) <= 8 and all(len(message.body) == 400_000 for message in messages)
        assert [message.n for message in messages] + rest == wanted
        wanted = rest


async def test_heads_are_read_without_bodies_and_know_the_size(opened: Opened) -> None:
    """A move needs no body: 256 messages of any size cost their heads."""
    await insert(opened, [StoredMessage(n, b"x" * 400_000, n=n, annotations=b"a" * n) for n in range(1, 9)])
    messages, _, rest = opened.store.load(BOX, range(1, 9), MB, with_bodies=False)
    assert [(message.body, message.size, message.is_whole) for message in messages] == [
        (b"", 400_000 + n, False) for n in range(1, 9)
    ]
    assert rest == []


def test_damaged_payload_of_the_first_message_ends_no_read() -> None:
    """The payload of a later message took the size of the whole read. A read that never ends would stop the broker."""
    first, second = StoredMessage(1, b"", n=100, payload=50), StoredMessage(2, b"", n=101, payload=20)
    packed = pack_rows(4, [first, second])
    rows: list[Any] = [tuple(packed[at : at + 6]) for at in (0, 6)]

    def payloads(wanted: Set[int]) -> tuple[dict[int, bytes], set[int]]:
        return ({}, set()) if wanted == {50} else ({20: b"large"}, {50})

    messages, damaged, rest = messages_of(4, rows, payloads)
    assert (messages, damaged, rest) == ([], [100], [101])
