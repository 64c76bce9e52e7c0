"""Decides what becomes of the messages of one received batch, before anything is sent.

`open_batch` restores the original messages and sorts them: those that go home, those of ordered senders, those that
are at home already and are only completed, and those that can never go home. `by_destination` and `waves` then say
which messages share a send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from pairbus.amqp.message import batch_envelope
from pairbus.backlog.envelope import Home, Spoiled, home_payload
from pairbus.backlog.filing import keys_of
from pairbus.pairing.options import TtlPolicy
from pairbus.syphon.decide.at_home import HomeIdentity, sequence_number_of
from pairbus.syphon.decide.destinations import key_of

if TYPE_CHECKING:
    from pairbus.transport import ReceivedMessage

CHUNK_BYTES_MAX = 1 << 20  # of one send, also when the destination would accept more
CHUNK_BYTES = 256 << 10  # of one send, when the destination does not tell its limit
_DATA_HEAD = 8  # bytes around a message in a batch

Opener = Callable[[bytes], Home | Spoiled]
"Turns a message as it was received into the one that goes home."


class Item(NamedTuple):
    """One message of a batch on its way home."""

    place: int
    "Delivery id of the message, unique on its link."
    home: Home
    payload: bytes
    "Payload to send."


class Opened(NamedTuple):
    """A batch whose messages were decoded and sorted."""

    items: list[Item]
    "Messages without order."
    lanes: list[Item]
    "Messages of senders that keep order."
    at_home: list[Item]
    "Messages that their destination has accepted before: they are only completed."
    spoiled: list[tuple[int, Spoiled]]
    "Place and reason of messages that cannot go home: they are dead-lettered."
    marked: list[Item]
    "Messages of `items` and `lanes` that say since when their destination is missing."
    locked_until_ms: int | None


def open_batch(
    received: Iterable[ReceivedMessage],
    opener: Opener,
    ttl_policy: TtlPolicy,
    now_ms: int,
    is_at_home: Callable[[HomeIdentity], bool] | None,
) -> Opened:
    """Decode and sort received messages. `is_at_home`: None when no message of the queue is known to be at home."""
    opened = Opened([], [], [], [], [], None)
    items, locked_until_ms, deducts = opened.items, None, ttl_policy == "deduct"
    for message in received:
        home = opener(message.payload)
        if isinstance(home, Spoiled):
            opened.spoiled.append((message.delivery_id, home))
            continue
        locked_until_ms = home.locked_until_ms or locked_until_ms
        item = Item(message.delivery_id, home, home.payload)
        if is_at_home is not None and is_at_home(identity_of(item, message)):
            opened.at_home.append(item)  # whatever became of its time to live, or of its destination, since then
            continue
        if deducts:
            payload = home_payload(home, ttl_policy, now_ms)
            if isinstance(payload, Spoiled):
                opened.spoiled.append((message.delivery_id, payload))
                continue
            item = item._replace(payload=payload)
        if home.missing_since_ms is not None:
            opened.marked.append(item)
        if home.sender is None:
            items.append(item)
        else:
            opened.lanes.append(item)
    return opened._replace(locked_until_ms=locked_until_ms)


def identity_of(item: Item, message: ReceivedMessage) -> HomeIdentity:
    return sequence_number_of(message.payload), item.home.message_id, item.home.enqueued_ms


# ── messages that share a send ──


def by_destination(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return the items of each destination, under its key, in the order of the queue."""
    groups: dict[str, list[Item]] = {}
    path = key = None
    for item in items:
        if item.home.path != path:
            path = item.home.path
            key = key_of(path)
        assert key is not None
        group = groups.get(key)
        if group is None:
            groups[key] = [item]
        else:
            group.append(item)
    return groups


Chunk = list[Item]
"Messages that are sent as one: all are accepted, or none."


def waves(items: list[Item], size_max: int, *, in_batches: bool) -> list[list[Chunk]]:
    """Plan the messages of one destination: the chunks of a wave go together, one wave after the other.

    A chunk has messages of one session and partition key, as the service demands. The second chunk of a lane waits for
    the first.
    """
    limit = min(size_max or CHUNK_BYTES, CHUNK_BYTES_MAX)
    plan: list[list[Chunk]] = [[]]
    last: dict[object, tuple[Chunk, int, int]] = {}
    for item in items:
        home = item.home
        lane = home.sender is not None
        key = (home.sender, home.session_id, keys_of(item.payload))
        chunk, size, wave_no = last.get(key, ([], limit, -1))
        size += len(item.payload) + _DATA_HEAD
        if in_batches and chunk and size <= limit:
            chunk.append(item)
            last[key] = chunk, size, wave_no
            continue
        wave_no = wave_no + 1 if lane else 0
        if wave_no == len(plan):
            plan.append([])
        chunk = [item]
        plan[wave_no].append(chunk)
        last[key] = chunk, len(batch_envelope(item.payload)) + len(item.payload) + _DATA_HEAD, wave_no
    return plan
