"""Limits that end a session and leave its connection alone: too many transfers for the window, too many links."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import Delivery, SessionBegun, SessionEnded
from pairbus.amqp.frames import AMQP_HEADER
from pairbus.amqp.performatives import Attach, Begin, End, Flow, Transfer
from pairbus.amqp.sasl import SaslServer
from tests.amqp.pair import StrictReader, answer_as_server
from tests.amqp.test_endings import ATTACH, BEGIN, OPEN, kinds, raw, said


def serving(**settings: Any) -> tuple[Connection, StrictReader]:
    """A server with one session and one link of its peer, and a reader of all that it says from now on."""
    server, reader = Connection(ConnectionSettings("s", **settings), SaslServer()), StrictReader()
    for event in server.receive_data(AMQP_HEADER + raw(OPEN, BEGIN, ATTACH), 1.0):
        answer_as_server(server, event)
    reader.read(server.data_to_send())
    reader.frames.clear()
    return server, reader


def transfers(first: int, count: int) -> bytes:
    return raw(*[(0, Transfer(0, number, b"t", 0, settled=True)) for number in range(first, first + count)])


@pytest.mark.parametrize(("count", "renewals"), [(5, 0), (6, 1), (9, 1)])
def test_checked_window_is_renewed_after_the_read(count: int, renewals: int) -> None:
    """At a third, and once, however many transfers came in one read: the peer cannot have seen a flow in between."""
    server, reader = serving(incoming_window=9, checks_window=True)
    events = server.receive_data(transfers(0, count), 2.0)
    assert kinds(events) == ["Delivery"] * count
    reader.read(server.data_to_send())
    assert [flow.incoming_window for flow in said(reader, Flow)] == [9] * renewals
    assert kinds(server.receive_data(transfers(count, 3), 3.0)) == ["Delivery"] * 3


def test_transfer_beyond_the_window_ends_its_session_alone() -> None:
    """As Azure does it. Transfers that were under way are ignored, and the connection serves other sessions."""
    server, reader = serving(incoming_window=9, checks_window=True)
    session = server.sessions[0]
    events = server.receive_data(transfers(0, 12), 2.0)
    assert len([event for event in events if isinstance(event, Delivery)]) == 9
    assert events[9:] == [SessionEnded(session, None)]
    reader.read(server.data_to_send())
    [end] = said(reader, End)
    assert end.error is not None and end.error.condition == "amqp:session:window-violation"
    assert said(reader, Flow) == [], "a session that has ended renews nothing"
    assert server.receive_data(transfers(12, 2), 3.0) == []
    (begun,) = server.receive_data(raw((1, Begin(None, 0, 1, 1))), 4.0)
    assert isinstance(begun, SessionBegun) and server.is_open


def test_one_link_too_many_ends_its_session_alone() -> None:
    """The limit of a session is another than the one of the connection, which would end the connection."""
    server, reader = serving(session_link_max=2)
    session = server.sessions[0]
    attaches = [(0, Attach(f"l{handle}", handle, False, initial_delivery_count=0)) for handle in (1, 2)]
    events = server.receive_data(raw(*attaches), 2.0)
    assert kinds(events) == ["LinkAttached", "SessionEnded"]
    reader.read(server.data_to_send())
    [end] = said(reader, End)
    assert end.error is not None and end.error.condition == "amqp:resource-limit-exceeded"
    assert "2 links" in (end.error.description or "")
    assert session.is_over and server.is_open
