"""A mutating fuzzer of the core. A seed is a recorded conversation; one number replays a case.

    python -m tests.amqp.fuzz --count 1000000 --first 0        # cases 0 … 999999; what breaks goes to the corpus

The promise that is tested: whatever bytes arrive, in whatever pieces, `receive_data` gives events; at most one
ConnectionFailed and nothing behind it; an eager user who answers everything meets no exception; what the core writes is
what one end may say; and memory stays bounded. With atheris installed, `--atheris` lets coverage choose the bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import (
    AmqpEvent,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionOpened,
    Delivery,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
)
from pairbus.amqp.lifecycle import EndpointState
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.performatives import ACCEPTED_BYTES, Error, Source, Target
from pairbus.amqp.sasl import SaslClient, SaslServer
from tests.amqp.pair import StrictReader

CORPUS = Path(__file__).parent.parent / "corpus" / "amqp"
SETTINGS = ConnectionSettings(
    "fuzzed", max_frame_size=70_000, channel_max=15, handle_max=15, link_max=60, unsettled_max=50
)
SENT_MAX = 100
INTERESTING = (0, 1, 2, 7, 8, 127, 128, 255, 256, 511, 512, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
CONSTRUCTORS = bytes.fromhex("00404142434445505152535455566061707172737480818283849498a0a1a3b0b1b3c0c1d0d1e0f0")


class EagerUser:
    """Answers every event, so that a fuzzed peer gets deep into the core."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sent = 0

    def answer(self, event: AmqpEvent) -> None:
        if isinstance(event, ConnectionOpened):
            if self.connection.state is EndpointState.OFFERED:
                self.connection.open()
        elif isinstance(event, SessionBegun):
            if event.session.state is EndpointState.OFFERED:
                event.session.begin()
        elif isinstance(event, LinkAttached):
            self._on_attached(event)
        elif isinstance(event, LinkDetached):
            if event.link.state is EndpointState.CLOSE_ASKED:
                event.link.detach(closed=event.closed)
        elif isinstance(event, Delivery):
            if not event.settled:
                event.link.settle(event.delivery_id, event.delivery_id, ACCEPTED_BYTES, 1)
        elif isinstance(event, LinkFlow):
            self._on_flow(event.link)
        elif isinstance(event, Disposed) and not event.settled:
            for delivery in event.deliveries:
                event.session.settle_sent(delivery.delivery_id, delivery.delivery_id, ACCEPTED_BYTES)

    def _on_attached(self, event: LinkAttached) -> None:
        link, attach = event.link, event.attach
        if link.state not in (EndpointState.OFFERED, EndpointState.WITHDRAWN):
            return
        if attach.source is None and attach.target is None:
            link.refuse(Error("amqp:not-found", "no termini"))
            return
        link.attach(source=attach.source, target=attach.target, properties=attach.properties, max_message_size=100_000)
        if isinstance(link, ReceiverLink) and link.is_open:
            link.keep_credit(10)

    def _on_flow(self, link: SenderLink) -> None:
        while link.sendable and self.sent < SENT_MAX:
            self.sent += 1
            link.send(b"m" * (self.sent * 997 % 9000), self.sent.to_bytes(4, "big"), settled=self.sent % 3 == 0)
        if link.drain and link.is_open:
            link.drained()


def check(data: bytes, pieces: list[int], *, as_client: bool = False) -> list[AmqpEvent]:
    """Feed the bytes in pieces of the given sizes (the last is repeated) and assert the promise; the events."""
    connection = Connection(SETTINGS, SaslClient() if as_client else SaslServer())
    user, reader = EagerUser(connection), StrictReader()
    if as_client:
        connection.open()
        session = connection.new_session()
        session.begin()
        session.new_sender("to").attach(source=Source("a"), target=Target("b"))
        receiver = session.new_receiver("from")
        receiver.attach(source=Source("a"), target=Target("b"))
        receiver.grant(10)
    events: list[AmqpEvent] = []
    at, now = 0, 1.0
    sizes = iter(pieces)
    size = 1
    while at < len(data):
        size = next(sizes, size)
        heard = connection.receive_data(data[at : at + size], now)
        at += size
        now += 0.001
        events += heard
        for event in heard:
            user.answer(event)
        if connection.remote_open is not None:
            reader.max_frame_size = connection.remote_open.max_frame_size
        reader.read(connection.data_to_send())
    ends = [i for i, event in enumerate(events) if isinstance(event, ConnectionFailed | ConnectionClosed)]
    assert len(ends) <= 1 and ends in ([], [len(events) - 1]), events
    assert connection.is_over == bool(ends)
    assert 0 <= connection.partial_bytes <= 60 * 100_000
    assert connection.handle_timer(now + 1e6) == [] or not ends
    return events


# ── cases ──


@cache
def seeds() -> list[tuple[str, list[bytes]]]:
    """The recorded conversations as lists of protocol headers and frames."""
    return [(path.suffix, _cut(path.read_bytes())) for path in sorted(CORPUS.glob("*.[cs][le][ir][ev]*"))]


def _cut(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size = 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
        parts.append(data[at : at + size])
        at += size
    return parts


def case(number: int) -> tuple[bytes, list[int], bool]:
    """(bytes, sizes of the pieces, is the fuzzed end a client?) of one case."""
    rng = random.Random(number)
    suffix, seed = rng.choice(seeds())
    parts = list(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _mutate(parts, rng)
    data = b"".join(parts)
    kind = rng.random()
    pieces = [len(data)] if kind < 0.6 else [rng.randint(1, 3000) for _ in range(300)]
    return data, pieces or [1], suffix == ".server"


def _mutate(parts: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(parts)) if parts else 0
    kind = rng.randrange(10)
    if not parts or kind == 0:  # insert a frame of another recorded conversation
        parts.insert(at, rng.choice(rng.choice(seeds())[1]))
    elif kind == 1:
        parts.pop(at)
    elif kind == 2:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    elif kind == 3:
        other = rng.randrange(len(parts))
        parts[at], parts[other] = parts[other], parts[at]
    elif kind == 4:  # bytes on the wire, size field included
        parts[at] = _scramble(parts[at], rng, 0)
    elif kind == 5:
        parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
    elif kind == 6:
        parts[at] = _resized(parts[at][:6] + bytes((0, rng.randrange(4))) + parts[at][8:])
    else:  # change the first bytes of the body, with a correct size field
        parts[at] = _resized(_scramble(parts[at], rng, 8))


def _scramble(part: bytes, rng: random.Random, start: int) -> bytes:
    raw = bytearray(part)
    for _ in range(rng.choice((1, 1, 2, 5))):
        raw += bytes(max(0, start + 1 - len(raw)))
        at = rng.randrange(start, min(len(raw), start + 200))
        kind = rng.randrange(6)
        if kind == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[at] = rng.choice(CONSTRUCTORS)
        elif kind == 2:
            raw[at : at + 4] = rng.choice(INTERESTING).to_bytes(4, "big")
        elif kind == 3:
            del raw[at : at + rng.randint(1, 8)]
        elif kind == 4:
            raw[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            raw[at] = rng.randrange(256)
    return bytes(raw)


def _resized(part: bytes) -> bytes:
    return part if part[:4] == b"AMQP" or len(part) < 8 else len(part).to_bytes(4, "big") + part[4:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args()
    if options.atheris:
        return _run_atheris()
    broken = 0
    for number in range(options.first, options.first + options.count):
        data, pieces, as_client = case(number)
        try:
            check(data, pieces, as_client=as_client)
        except Exception as error:  # any exception is a finding: it is saved, counted and sets the exit code
            broken += 1
            name = f"broke-{hashlib.sha256(data).hexdigest()[:12]}.{'to-client' if as_client else 'to-server'}"
            (CORPUS / name).write_bytes(data)
            print(f"case {number}: {type(error).__name__} {error!s:.100} → {name}")
    print(f"{options.count} cases, {broken} broken")
    return 1 if broken else 0


def _run_atheris() -> int:
    atheris: Any = importlib.import_module("atheris")

    def one(data: bytes) -> None:
        check(data[1:], [len(data)], as_client=bool(data[:1] > b"\x7f"))

    atheris.Setup([sys.argv[0], str(CORPUS)], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
