"""A client scripted frame by frame that declares and discharges transactions, beside a broker in this process."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.events import Delivery, Disposed, SettlementAnswered
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from pairbus.amqp.session import Session
from pairbus.amqp.types import Symbol
from pairbus.broker.entities.queue import Queue
from pairbus.broker.strict import LENIENT, Strictness
from tests.broker.strict_world import Client, message


class TransactionClient(Client):
    """A client with one session, and a link to the coordinator on it."""

    work: Session
    commands: SenderLink

    def __init__(self, strictness: Strictness = LENIENT) -> None:
        super().__init__(strictness)
        self._tag = 0

    async def start(self, *paths: str, **settings: Any) -> TransactionClient:
        """Open the connection, and make queues."""
        await self.open()
        for path in paths:
            await self.queue(path, **settings)
        self.work = await self.session()
        self.commands = await self.coordinator(self.work)
        return self

    async def coordinator(self, session: Session, name: str = "coordinator") -> SenderLink:
        link = session.new_sender(name)
        link.attach(source=Source(address="client"), target=Coordinator())
        await self.turn()
        return link

    def tag(self) -> bytes:
        self._tag += 1
        return b"%d" % self._tag

    async def outcome_of(self, link: SenderLink, payload: bytes, txn_id: bytes | None = None, form: int = 0) -> Any:
        """Send a message and give its state: an outcome, or a transactional state."""
        self.events.clear()
        if txn_id is None:
            delivery_id = link.send(payload, self.tag(), message_format=form)
        else:
            delivery_id = link.send_in(txn_id, payload, self.tag(), message_format=form)
        await self.turn()
        for disposed in self.all_events(Disposed):
            for delivery in disposed.deliveries:
                if delivery.delivery_id == delivery_id:
                    return disposed.state
        raise AssertionError("the broker has not answered")

    async def command(self, command: Declare | Discharge, link: SenderLink | None = None) -> Any:
        body = b"\x00\x53\x77" + command.encode()
        return await self.outcome_of(link or self.commands, body)

    async def declare(self, link: SenderLink | None = None) -> bytes:
        state = await self.command(Declare(), link)
        assert isinstance(state, Declared), state
        return state.txn_id

    async def discharge(self, txn_id: bytes, *, fail: bool = False) -> Any:
        """End the transaction; None: it is done, otherwise the condition of the error."""
        return condition_of(await self.command(Discharge(txn_id, fail)))

    async def send(self, link: SenderLink, text: str, txn_id: bytes, **properties: Any) -> Any:
        """Send in a transaction; None: provisionally accepted, otherwise the condition of the error."""
        state = await self.outcome_of(link, message(text, **properties), txn_id)
        if isinstance(state, TransactionalState):
            assert state.txn_id == txn_id
        return condition_of(state)

    async def via(self, path: str, destination: str) -> SenderLink:
        link = self.work.new_sender(f"via {path}")
        properties = {Symbol("com.microsoft:transfer-destination-address"): destination}
        link.attach(source=Source(address="client"), target=Target(address=path), properties=properties)
        await self.turn()
        return link

    async def receive(self, path: str, count: int, name: str = "from") -> tuple[ReceiverLink, list[Delivery]]:
        """Attach a receiver, and give `count` deliveries."""
        self.events.clear()
        link = await self.receiver(self.work, path, count, name)
        deliveries = [each for each in self.all_events(Delivery) if each.link is link]
        assert len(deliveries) == count
        return link, deliveries

    async def settle(self, delivery: Delivery, state: Any, txn_id: bytes | None, *, settled: bool = False) -> Any:
        """Settle a delivery, and give the broker's answer: (its state, whether it has settled); None: no answer."""
        self.events.clear()
        whole = state if txn_id is None else TransactionalState(txn_id, state)
        link, delivery_id = delivery.link, delivery.delivery_id
        link.settle(delivery_id, delivery_id, whole.encode(), 0, settled=settled)
        await self.turn()
        answers = [each for each in self.all_events(SettlementAnswered) if each.first <= delivery_id <= each.last]
        return (answers[-1].state, answers[-1].settled) if answers else None

    async def request(self, path: str, operation: str, body: dict[str, Any], txn_id: bytes | None) -> Message:
        """Make a request to `$management`, and give the answer."""
        address = f"{path}/$management"
        answers = self.work.new_receiver(f"answers {self.tag()!r}")
        answers.attach(source=Source(address=address), target=Target(address=answers.name))
        answers.grant(10)
        requests = await self.sender(self.work, address, f"requests {self.tag()!r}")
        asked = Message(
            properties=Properties(message_id="1", reply_to=answers.name),
            application_properties={"operation": f"com.microsoft:{operation}"},
            value=body,
            has_value=True,
        )
        self.events.clear()
        if txn_id is None:
            requests.send(asked.encode(), self.tag())
        else:
            requests.send_in(txn_id, asked.encode(), self.tag())
        await self.turn()
        [answer] = [each for each in self.all_events(Delivery) if each.link is answers]
        return Message.decode(answer.payload)

    def box_of(self, path: str) -> Queue:
        queue = self.namespace.queue(path)
        assert queue is not None
        return queue

    def count(self, path: str) -> int:
        return self.box_of(path).active_count


def condition_of(state: Any) -> str | None:
    """The condition of a refusal; None: accepted, also provisionally."""
    if isinstance(state, TransactionalState):
        state = state.outcome
    if isinstance(state, Rejected):
        assert state.error is not None
        return state.error.condition
    assert isinstance(state, Accepted), state
    return None
