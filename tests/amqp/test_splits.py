"""Any split of a byte stream gives the same events: TCP promises bytes, not pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import AmqpEvent, ConnectionClosed, ConnectionFailed, Delivery, Disposed
from pairbus.amqp.performatives import Source, Target
from pairbus.amqp.sasl import SaslServer
from tests.amqp.fuzz import CORPUS
from tests.amqp.pair import Pair
from tests.amqp.record import ObligingUser

RECORDED = sorted(path.stem for path in CORPUS.glob("*.client"))


def turns(data: bytes) -> list[int]:
    """Return the places at which the client must have waited for the server: a disposition speaks of a delivery that
    was heard before."""
    at, found = 0, []
    while at < len(data):
        if data[at + 8 : at + 11] == b"\x00\x53\x15":
            found.append(at)
        at += 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
    return found


def hear(data: bytes, cuts: list[int]) -> list[str]:
    """Every event, as text, of a server that hears the bytes cut at these positions (and at the turns)."""
    connection, user = Connection(ConnectionSettings("server"), SaslServer()), ObligingUser()
    events: list[AmqpEvent] = []
    for start, end in pairwise([0, *sorted([*cuts, *turns(data)]), len(data)]):
        heard = connection.receive_data(data[start:end], 1.0)
        events += heard
        for event in heard:
            user.answer(connection, event)
        connection.data_to_send()
    return [describe(event) for event in events]


def describe(event: AmqpEvent) -> str:
    details: list[Any] = []
    if isinstance(event, Delivery):
        details = [event.delivery_id, event.tag, event.message_format, event.settled, event.payload]
    elif isinstance(event, Disposed):
        details = [event.state, event.settled, [delivery.delivery_id for delivery in event.deliveries]]
    elif isinstance(event, ConnectionFailed | ConnectionClosed):
        details = [event.error]
    return f"{type(event).__name__} {details}"


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_conversation_is_understood_whole(name: str) -> None:
    """Bytes of the genuine SDKs, in one piece: they close the connection and nothing fails."""
    events = hear((CORPUS / f"{name}.client").read_bytes(), [])
    assert events[-1] == "ConnectionClosed [None]"
    assert not [event for event in events if event.startswith("ConnectionFailed")]
    kinds = [event.split()[0] for event in events]
    assert kinds[:2] == ["ConnectionOpened", "SessionBegun"]
    assert (
        kinds.count("Delivery") == {"python-send": 4, "python-receive": 1, "python-refused": 1, "javascript": 5}[name]
    )


@pytest.mark.parametrize("name", RECORDED)
def test_every_single_cut_of_a_recorded_conversation_changes_nothing(name: str) -> None:
    """The stream is cut at each byte that is no payload: up to the large message, and in its last bytes."""
    data = (CORPUS / f"{name}.client").read_bytes()
    expected = hear(data, [])
    near = range(1, min(len(data), 2200), 7 if len(data) > 5000 else 1)
    for cut in [*near, *range(max(len(data) - 150, 1), len(data))]:
        assert hear(data, [cut]) == expected, f"cut at {cut}"


@pytest.mark.parametrize("name", RECORDED)
def test_byte_by_byte_a_recorded_conversation_is_the_same(name: str) -> None:
    """The slowest peer there is."""
    data = (CORPUS / f"{name}.client").read_bytes()
    assert hear(data, list(range(1, len(data)))) == hear(data, [])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_any_cuts_of_a_recorded_conversation_change_nothing(name: str, draw: st.DataObject) -> None:
    """The stream is cut at many random places at once."""
    data = (CORPUS / f"{name}.client").read_bytes()
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=30))
    assert hear(data, cuts) == hear(data, [])


steps = st.lists(
    st.sampled_from(["send", "send large", "send settled", "flow", "attach", "detach", "begin", "end", "silence"]),
    min_size=1,
    max_size=12,
)


def converse(script: list[str]) -> bytes:
    """Return the bytes that a client of our own writes when it follows the script."""
    pair = Pair(client={"max_frame_size": 4096}, server={"max_frame_size": 4096})
    said = bytearray()
    original = pair.client.data_to_send

    def data_to_send() -> bytes:
        data = original()
        said.extend(data)
        return data

    pair.client.data_to_send = data_to_send  # type: ignore[method-assign]
    links = [pair.sender()[0]]
    for number, step in enumerate(script):
        link = links[-1]
        if step.startswith("send") and link.sendable:
            payload = b"p" * (9000 if step == "send large" else 40)
            link.send(payload, str(number).encode(), settled=step == "send settled")
        elif step == "flow":
            link.session.send_flow(echo=True)
        elif step == "attach":
            new = link.session.new_sender(f"l{number}")
            new.attach(source=Source("a"), target=Target("b"))
            pair.pump()
            links.append(new)
        elif step == "detach" and len(links) > 1:
            links.pop().detach()
        elif step == "begin":
            links.append(pair.sender(pair.begin(), f"l{number}")[0])
        elif step == "end" and len(links) > 1:
            session = links[-1].session
            links = [other for other in links if other.session is not session] or [links[0]]
            if session is not links[0].session:
                session.end()
        elif step == "silence":
            pair.client.write(b"\x00\x00\x00\x08\x02\x00\x00\x00")
        pair.pump()
    pair.client.close()
    pair.pump()
    return bytes(said)


@settings(max_examples=60, deadline=None)
@given(steps, st.data())
def test_any_cuts_of_a_generated_conversation_change_nothing(script: list[str], draw: st.DataObject) -> None:
    """Sends, flows, new and ended links and sessions in any order, cut anywhere."""
    data = converse(script)
    whole = hear(data, [])
    assert not whole[-1].startswith("ConnectionFailed")
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))
    assert hear(data, cuts) == whole
