"""Idle time-outs both ways, on a clock that the test moves by hand."""

from __future__ import annotations

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import ConnectionFailed
from pairbus.amqp.frames import AMQP_HEADER, EMPTY_FRAME
from pairbus.amqp.performatives import Open
from pairbus.amqp.sasl import SaslServer
from tests.amqp.pair import Pair
from tests.amqp.test_endings import raw


def opened(client_ms: int, server_ms: int) -> Pair:
    pair = Pair(client={"idle_time_out_ms": client_ms}, server={"idle_time_out_ms": server_ms})
    pair.begin()
    return pair


def test_empty_frame_is_sent_at_half_the_idle_timeout() -> None:
    """Half, because the sign needs time to travel; an empty frame is all it takes (2.4.5)."""
    pair = opened(10_000, 0)
    start = pair.now
    assert pair.server.next_timer() == start + 5.0
    assert pair.server.handle_timer(start + 4.9) == [] and not pair.server.has_output
    assert pair.server.handle_timer(start + 5.0) == []
    assert pair.server.data_to_send() == EMPTY_FRAME
    assert pair.server.next_timer() == start + 10.0


def test_an_end_that_speaks_anyway_gives_no_extra_sign() -> None:
    """Any frame is a sign of life; output that waits to be written will be one."""
    pair = opened(10_000, 0)
    pair.server.sessions[0].send_flow()
    pair.server.handle_timer(pair.now + 6.0)
    assert EMPTY_FRAME not in pair.server.data_to_send()[-8:]
    assert pair.server.next_timer() == pair.now + 11.0


def test_silent_peer_is_given_up_after_one_and_a_half_timeouts() -> None:
    """The peer is not given up at the advertised time, which a peer under load may miss by a little."""
    pair = opened(0, 10_000)
    start = pair.now
    assert pair.server.next_timer() == start + 15.0
    assert pair.server.handle_timer(start + 14.9) == []
    (failed,) = pair.server.handle_timer(start + 15.0)
    assert isinstance(failed, ConnectionFailed) and failed.error.condition == "amqp:resource-limit-exceeded"
    assert pair.server.is_over and pair.server.next_timer() is None
    assert pair.server.handle_timer(start + 99.0) == []
    pair.server_speaks()
    assert [type(event).__name__ for event in pair.at_client][-1] == "ConnectionClosed"


def test_an_empty_frame_keeps_the_connection() -> None:
    """Ten minutes of nothing but signs of life in both directions."""
    pair = opened(10_000, 10_000)
    for _ in range(120):
        pair.now += 5.0
        assert pair.client.handle_timer(pair.now) == pair.server.handle_timer(pair.now) == []
        pair.pump()
    assert pair.client.is_open and pair.server.is_open


def test_bytes_of_no_length_are_no_sign_of_life() -> None:
    """A transport that calls with nothing must not keep a dead peer."""
    pair = opened(0, 10_000)
    pair.server.receive_data(b"", pair.now + 14.0)
    assert pair.server.handle_timer(pair.now + 15.0)


def test_the_clock_starts_with_the_first_call_that_tells_the_time() -> None:
    """A monotonic clock may stand anywhere; a fresh connection is not late."""
    connection = Connection(ConnectionSettings("s", idle_time_out_ms=10_000), SaslServer())
    assert connection.next_timer() == 0.0
    assert connection.handle_timer(1e9) == []
    assert connection.next_timer() == 1e9 + 15.0
    assert connection.handle_timer(1e9 + 15.0)


def test_no_sign_of_life_before_our_open_or_behind_our_close() -> None:
    """Before open and after close no frame is allowed, not even an empty one."""
    server = Connection(ConnectionSettings("s", idle_time_out_ms=0), SaslServer())
    server.receive_data(AMQP_HEADER + raw((0, Open("c", idle_time_out=1000))), 1.0)
    server.data_to_send()
    assert server.next_timer() is None and server.handle_timer(100.0) == [] and not server.has_output
    server.open()
    server.data_to_send()
    assert server.next_timer() is not None
    server.close()
    server.data_to_send()
    assert server.next_timer() is None and server.handle_timer(200.0) == [] and not server.has_output


def test_neither_end_wants_signs() -> None:
    """No time-outs, no timers."""
    pair = opened(0, 0)
    assert pair.client.next_timer() is None and pair.server.next_timer() is None
    assert pair.server.handle_timer(1e9) == []


@pytest.mark.parametrize("idle_ms", [1, 19])
def test_a_peer_that_wants_more_signs_than_is_sane_is_refused(idle_ms: int) -> None:
    """Thousands of frames a second for an idle connection would be an attack (2.4.5 says to close)."""
    server = Connection(ConnectionSettings("s"), SaslServer())
    (failed,) = server.receive_data(AMQP_HEADER + raw((0, Open("c", idle_time_out=idle_ms))), 1.0)
    assert isinstance(failed, ConnectionFailed) and "idle-time-out" in failed.error.description
