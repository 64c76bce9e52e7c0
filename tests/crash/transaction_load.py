"""Clients that move messages from one queue to two others in transactions, until the broker dies, and note the answers.

Each message that leaves `arrivals` in a transaction has one receipt in `bills` and one in `letters`, whose ids name the
transaction too. So a half of a transaction, a doubled one and a lost one can be told from what is left in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import ConnectionClosed, Delivery, Disposed, LinkAttached, SessionBegun
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.sasl import SaslClient
from pairbus.amqp.session import Session

ARRIVALS, BILLS, LETTERS = "arrivals", "bills", "letters"
QUEUES = (ARRIVALS, BILLS, LETTERS)
MOVED_MAX = 6  # messages of one transaction
FUEL = 10  # new messages in one go


@dataclass(slots=True)
class Attempt:
    """One transaction, as its client knows it."""

    ids: list[str]
    "Ids of the messages that it moves."
    is_commit: bool
    answer: Any = None
    "State that answered the discharge; None: the broker died before."

    @property
    def is_committed(self) -> bool | None:
        """True: it must be there. False: it must not. None: nobody knows."""
        return None if self.answer is None else self.is_commit and isinstance(self.answer, Accepted)


@dataclass(slots=True)
class Oracle:
    """Everything that was asked for, over all lives of the broker."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    "Ids of messages that were accepted in `arrivals`."

    def faults(self, left: dict[str, Counter[str]]) -> list[str]:
        """Compare with the ids that were found in each queue in the end."""
        wrong = []
        receipts: Counter[str] = Counter()
        for name, attempt in self.attempts.items():
            wanted = {f"{name} {message_id}" for message_id in attempt.ids}
            there = {queue: [each for each in wanted if left[queue][each]] for queue in (BILLS, LETTERS)}
            count = sum(map(len, there.values()))
            if count not in (0, 2 * len(wanted)):
                wrong.append(f"half a transaction: {name} has {count} of {2 * len(wanted)} receipts")
            if attempt.is_committed is not None and attempt.is_committed is not (count > 0):
                wrong.append(f"{name} was answered {attempt.answer} and has {count} receipts")
            receipts.update(each.split(" ")[1] for each in there[BILLS])
        for queue, ids in left.items():
            wrong += [f"{each} is {count} times in {queue}" for each, count in ids.items() if count > 1]
        for message_id in self.accepted:
            places = receipts[message_id] + left[ARRIVALS][message_id]
            if places != 1:
                wrong.append(f"{message_id} is in {places} places")
        return wrong


class Wire:
    """One connection with one session."""

    def __init__(self) -> None:
        self.core = Connection(ConnectionSettings("client"), SaslClient("PLAIN", b""))
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._attached: dict[str, asyncio.Future[None]] = {}
        self._begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tag = 0
        self.session: Session

    async def open(self, port: int, key_name: str, key: str) -> Wire:
        login = b"\0" + key_name.encode() + b"\0" + key.encode()
        self.core = Connection(ConnectionSettings("client"), SaslClient("PLAIN", login))
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._task = asyncio.create_task(self._read())
        self.core.open()
        self.session = self.core.new_session()
        self.session.begin()
        self.flush()
        await self._begun
        return self

    def flush(self) -> None:
        if self.core.has_output:
            self._writer.write(self.core.data_to_send())

    async def _read(self) -> None:
        with suppress(OSError):
            while data := await self._reader.read(1 << 16):
                for event in self.core.receive_data(data, 0.0):
                    self._on_event(event)
                self.flush()
        self._end()

    def _on_event(self, event: Any) -> None:
        match event:
            case SessionBegun():
                self._begun.set_result(None)
            case LinkAttached():
                self._attached[event.link.name].set_result(None)
            case Delivery():
                self.deliveries.put_nowait(event)
            case Disposed():
                for delivery in event.deliveries:
                    self._answers.pop(delivery.delivery_id).set_result(event.state)
            case ConnectionClosed():
                self._end()

    def _end(self) -> None:
        for future in (*self._answers.values(), *self._attached.values(), self._begun):
            if not future.done():
                future.set_exception(ConnectionError("the broker has died"))
                future.exception()  # those that nobody waits for are not reported

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()

    async def attach(self, link: Any, **termini: Any) -> Any:
        future = self._attached[link.name] = asyncio.get_running_loop().create_future()
        link.attach(**termini)
        self.flush()
        await future
        return link

    async def sender(self, path: str) -> SenderLink:
        link = self.session.new_sender(path)
        target = Coordinator() if path == "coordinator" else Target(address=path)
        await self.attach(link, source=Source(address="client"), target=target)
        return link

    async def receiver(self, path: str, credit: int) -> ReceiverLink:
        link = self.session.new_receiver(f"from {path}")
        await self.attach(link, source=Source(address=path), target=Target(address="client"))
        link.grant(credit)
        self.flush()
        return link

    def send(self, link: SenderLink, payload: bytes, txn_id: bytes | None = None) -> asyncio.Future[Any]:
        """Send, and give the future of the answer."""
        self._tag += 1
        tag = b"%d" % self._tag
        delivery_id = link.send(payload, tag) if txn_id is None else link.send_in(txn_id, payload, tag)
        future = self._answers[delivery_id] = asyncio.get_running_loop().create_future()
        if self._task.done():
            self._end()
        return future

    def command(self, link: SenderLink, command: Declare | Discharge) -> asyncio.Future[Any]:
        future = self.send(link, b"\x00\x53\x77" + command.encode())
        self.flush()
        return future


def payload(message_id: str) -> bytes:
    return Message(properties=Properties(message_id=message_id), data=[message_id.encode()]).encode()


class TransactionLoad:
    """All clients of one test. Every random choice comes from `source`, except the faults of the broker."""

    def __init__(self, oracle: Oracle, source: random.Random) -> None:
        self.oracle = oracle
        self._source = source
        self._last_id = self._last_transaction = 0

    async def round(self, wires: list[Wire]) -> None:
        """Use the broker until every connection is lost."""
        await asyncio.gather(*[self._until_lost(wire) for wire in wires])

    async def _until_lost(self, wire: Wire) -> None:
        try:
            await self._move(wire)
        except ConnectionError:
            pass
        finally:
            await wire.close()

    async def _move(self, wire: Wire) -> None:
        commands = await wire.sender("coordinator")
        arrivals, bills, letters = [await wire.sender(path) for path in QUEUES]
        receiver = await wire.receiver(ARRIVALS, 0)
        while True:
            await self._fill(wire, arrivals)
            receiver.grant(self._source.randint(1, MOVED_MAX))
            wire.flush()
            taken = [await self._next(wire)]
            while not wire.deliveries.empty():
                taken.append(wire.deliveries.get_nowait())
            await self._transaction(wire, commands, (bills, letters), taken)

    async def _next(self, wire: Wire) -> Delivery:
        while True:
            with suppress(TimeoutError):
                return await asyncio.wait_for(wire.deliveries.get(), 0.2)
            if wire._task.done():
                raise ConnectionError("the broker has died")

    async def _fill(self, wire: Wire, link: SenderLink) -> None:
        answers = {}
        for _ in range(self._source.randint(1, FUEL)):
            self._last_id += 1
            message_id = f"m{self._last_id}"
            answers[message_id] = wire.send(link, payload(message_id))
        wire.flush()
        for message_id, answer in answers.items():
            assert isinstance(await answer, Accepted)
            self.oracle.accepted.add(message_id)

    async def _transaction(
        self, wire: Wire, commands: SenderLink, receipts: tuple[SenderLink, ...], taken: list[Delivery]
    ) -> None:
        declared = await wire.command(commands, Declare())
        assert isinstance(declared, Declared), declared
        self._last_transaction += 1
        name, txn_id = f"t{self._last_transaction}", declared.txn_id
        ids = [str(Message.decode(each.payload).body.decode()) for each in taken]
        attempt = self.oracle.attempts[name] = Attempt(ids, self._source.random() < 0.85)
        state = TransactionalState(txn_id, Accepted()).encode()
        answers = []
        for delivery, message_id in zip(taken, ids, strict=True):
            delivery.link.settle(delivery.delivery_id, delivery.delivery_id, state, 0, settled=False)
            answers += [wire.send(link, payload(f"{name} {message_id}"), txn_id) for link in receipts]
        discharged = wire.command(commands, Discharge(txn_id, not attempt.is_commit))
        for answer in answers:
            assert isinstance(await answer, TransactionalState)
        attempt.answer = await discharged
        if not attempt.is_commit:  # give the messages back
            for delivery in taken:
                delivery.link.settle(delivery.delivery_id, delivery.delivery_id, b"\x00\x53\x26\x45", 1)
            wire.flush()
