"""`pairbus message tail`: following an entity while its namespace comes and goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message
from pairbus.amqp.types import Long, Symbol
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.cli.messages.output import Format, Output
from pairbus.cli.messages.tail import follow
from pairbus.errors import ConfigError
from pairbus.explorer import Address, Choice, encoded, pages
from pairbus.transport import Carrier, Endpoint


class Shown(Output):
    """Printer that keeps the bodies of messages."""

    def __init__(self) -> None:
        super().__init__(Format.jsonl, live=True)
        self.bodies: asyncio.Queue[str] = asyncio.Queue()

    def add(self, shown: list[dict[str, Any]]) -> None:
        for one in shown:
            self.bodies.put_nowait(one["body"])


async def test_tail_goes_on_when_the_namespace_is_restarted(tmp_path: Path) -> None:
    """A tail runs until Ctrl-C, and its user must not miss the messages that come after a restart."""
    queues = (QueueDescription("orders"),)

    def broker(port: int) -> Broker:
        return Broker([NamespaceOptions("contoso", port, queues)], data=tmp_path / "data", meter=tmp_path / "meter")

    shown = Shown()
    async with broker(0) as first:
        endpoint = Endpoint.parse(first.connection_string("contoso"))
        carrier = Carrier(endpoint)
        tail = asyncio.create_task(follow(carrier, Address("orders"), Choice(), shown, 0, 0.01))
        await _until_peeked(first, 2)  # the look for the end of the queue, and the first look for messages
    tried = asyncio.Event()

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        tried.set()

    assert endpoint.port is not None
    async with asyncio.timeout(30):
        async with await asyncio.start_server(close, "127.0.0.1", endpoint.port):
            await tried.wait()  # the tail has met a port without a namespace
        async with broker(endpoint.port), Carrier(endpoint) as sender:
            await sender.send("orders", encoded({"body": "after"}))
            getting = asyncio.create_task(shown.bodies.get())
            await asyncio.wait([getting, tail], return_when=asyncio.FIRST_COMPLETED)
            assert not tail.done(), f"the tail ended: {tail.exception()!r}"
            assert await getting == "after"
            tail.cancel()
            await asyncio.wait([tail])
            await carrier.close()


@pytest.mark.parametrize("begins_empty", [True, False])
async def test_tail_of_a_partitioned_entity_is_refused(monkeypatch: pytest.MonkeyPatch, begins_empty: bool) -> None:
    """Sequence numbers are in no order there: new messages would be missed in silence."""
    number = (3 << 48) + 5
    message = Message(annotations={Symbol("x-opt-sequence-number"): Long(number)}, data=[b"x"]).encode()
    looks = 0

    async def peeked(carrier: Any, address: Any, asked: int, *rest: Any, **options: Any) -> list[bytes]:
        nonlocal looks
        looks += 1
        return [message] if asked <= number and not (begins_empty and looks == 1) else []

    monkeypatch.setattr(pages, "_page", peeked)
    carrier: Any = None
    with pytest.raises(ConfigError, match="orders is partitioned"):
        await asyncio.wait_for(follow(carrier, Address("orders"), Choice(), Shown(), 0, 0.01), 10)


async def _until_peeked(broker: Broker, count: int) -> None:
    meter = broker.namespace("contoso").meter
    assert meter is not None
    async with asyncio.timeout(20):
        while sum(sums[0] for (_, kind, _), sums in meter.totals.items() if kind == "peek") < count:  # noqa: ASYNC110 - the meter sets no event
            await asyncio.sleep(0.005)
