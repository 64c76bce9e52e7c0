"""What the client needed of the core and the core did not give."""

from __future__ import annotations

from typing import Any

from pairbus.amqp.connection import Connection, Settings
from pairbus.amqp.events import (
    ConnectionOpened,
    Delivery,
    Disposed,
    Event,
    LinkAttached,
    SessionBegun,
    SettlementAnswered,
)
from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.performatives import ACCEPTED_BYTES, Accepted, Source, Target
from pairbus.amqp.sasl import SaslClient, SaslServer


class Pair:
    """A client that receives and a server that sends, joined by nothing but bytes."""

    def __init__(self) -> None:
        self.client = Connection(Settings("client"), SaslClient())
        self.server = Connection(Settings("server"), SaslServer())
        self.told: list[Event] = []
        "What the client's core told."
        self.client.open()
        self.exchange()
        session = self.client.new_session()
        session.begin()
        self.receiver: ReceiverLink = session.new_receiver("link")
        self.receiver.attach(source=Source(address="q"), target=Target(address="here"))
        self.sender: Any = None
        self.exchange()
        self.receiver.grant(10)
        self.exchange()

    def exchange(self) -> list[Event]:
        """Pass bytes until neither end has any; what the server was told."""
        server_told: list[Event] = []
        while self.client.has_output or self.server.has_output:
            for event in self.server.receive_data(self.client.data_to_send(), 0.0):
                server_told.append(event)
                if isinstance(event, ConnectionOpened):
                    self.server.open()
                elif isinstance(event, SessionBegun):
                    event.session.begin()
                elif isinstance(event, LinkAttached):
                    assert isinstance(event.link, SenderLink)
                    self.sender = event.link
                    event.link.attach(source=event.attach.source, target=event.attach.target)
            self.told += self.client.receive_data(self.server.data_to_send(), 0.0)
        return server_told


def test_the_answer_to_an_unsettled_settlement_reaches_the_receiver() -> None:
    """Whoever must know that a message is really gone asks, and waits for the sender's word."""
    pair = Pair()
    for n in range(3):
        pair.sender.send(b"\x00\x53\x77\x40", bytes([n]))
    pair.exchange()
    deliveries = [event for event in pair.told if isinstance(event, Delivery)]
    assert len(deliveries) == 3
    pair.receiver.settle(0, 2, ACCEPTED_BYTES, 3, settled=False)
    (asked,) = [event for event in pair.exchange() if isinstance(event, Disposed)]
    assert not asked.settled
    pair.told.clear()
    pair.sender.session.settle_sent(0, 2, ACCEPTED_BYTES)
    pair.exchange()
    assert pair.told == [SettlementAnswered(pair.receiver.session, 0, 2, True, Accepted())]
    assert pair.receiver.unsettled == 0


def test_a_sending_peers_word_is_nobodys_event_when_nobody_asked() -> None:
    """A receiver that settles at once waits for nothing, and is not bothered with echoes."""
    pair = Pair()
    pair.sender.send(b"\x00\x53\x77\x40", b"tag")
    pair.exchange()
    pair.receiver.settle(0, 0, ACCEPTED_BYTES, 1)
    pair.exchange()
    pair.told.clear()
    pair.sender.session.settle_sent(0, 0, ACCEPTED_BYTES)
    pair.exchange()
    assert pair.told == []
