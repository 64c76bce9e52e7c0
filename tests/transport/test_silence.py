"""Silence is measured for each link: slow is not dead, and others' signs of life are not this link's."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from pairbus.amqp.link import ReceiverLink
from pairbus.amqp.message import Message
from pairbus.amqp.performatives import ACCEPTED_BYTES, Error
from pairbus.pairing.policy import Silence
from pairbus.transport import Carrier, ClientConnection, Refused, Sender, Timeout, connect
from tests.scripted import Delay, ScriptedEndpoint
from tests.transport.server import Script, Server
from tests.transport.silences import silent_peer

PAYLOAD = Message(data=[b"hello"]).encode()
SILENCE_S = 0.3


@asynccontextmanager
async def joined(script: Script) -> AsyncIterator[tuple[Server, ClientConnection, Sender]]:
    async with Server(script) as server, await connect(server.connection_string) as connection:
        yield server, connection, await connection.sender("q")


def link_of(server: Server, path: str) -> ReceiverLink:
    (link,) = [link for link in server.receivers() if link.context == path]
    return link


async def test_refusal_of_a_link_is_an_answer() -> None:
    """A caller that waits for its turn measures the silence since the last answer to an attach."""
    async with joined(Script(refuse={"no": Error("amqp:not-found", "gone")})) as (_, connection, _):
        began = asyncio.get_running_loop().time()
        with pytest.raises(Refused):
            await connection.sender("no")
        assert connection._answered_at >= began


async def test_a_peer_that_does_not_answer_is_silent() -> None:
    """The message was sent: whether it was stored is unknown."""
    async with joined(Script(outcome=None)) as (_, _, sender):
        began = time.monotonic()
        with silent_peer() as caught:
            await sender.send(PAYLOAD, timeout_s=30, silence_s=SILENCE_S)
        assert caught.value.outcome_unknown
        assert SILENCE_S <= time.monotonic() - began < 10, "the call's own limit is 30 s"


async def test_waiting_for_credit_is_silence_with_nothing_sent() -> None:
    """The peer owes the credit; sending elsewhere makes no duplicate."""
    async with joined(Script(credits={"q": 0})) as (server, _, sender):
        with silent_peer() as caught:
            await sender.send(PAYLOAD, timeout_s=30, silence_s=SILENCE_S)
        assert not caught.value.outcome_unknown
        link_of(server, "q").grant(5)
        server.flush()
        await sender.send(PAYLOAD, timeout_s=5)
        assert len(server.received) == 1, "no frame of the first send arrived"


async def test_the_deadline_of_the_call_comes_before_silence() -> None:
    """The deadline is the caller's own limit, with any peer, and says nothing about the peer."""
    async with joined(Script(outcome=None)) as (_, _, sender):
        with pytest.raises(Timeout) as caught:
            await sender.send(PAYLOAD, timeout_s=0.05, silence_s=30)
        assert not caught.value.silence.is_too_long


async def test_answers_on_the_link_are_signs_of_life() -> None:
    """A peer that works off a long line slowly answers the last one much later than the allowance."""
    async with joined(Script(outcome=None)) as (server, _, sender):
        sends = [sender.send_nowait(PAYLOAD, timeout_s=30, silence_s=1.0) for _ in range(8)]
        await server.until(lambda: len(server.received) == 8)
        for number in range(8):
            await asyncio.sleep(0.3)
            link_of(server, "q").settle(number, number, ACCEPTED_BYTES, 1)
            server.flush()
        await asyncio.gather(*sends)


async def test_signs_of_life_on_other_links_do_not_count() -> None:
    """One entity stalls while another takes everything on the same connection: only the first is silent."""
    async with joined(Script(outcome=None)) as (server, connection, sender):
        other = await connection.sender("other")
        stalled = asyncio.create_task(sender.send(PAYLOAD, timeout_s=30, silence_s=SILENCE_S))
        began, count = time.monotonic(), 0
        while not stalled.done():
            going = other.send_nowait(PAYLOAD, timeout_s=30, silence_s=SILENCE_S)
            await server.until(lambda: len([1 for path, _, _ in server.received if path == "other"]) > count)  # noqa: B023
            link_of(server, "other").settle(count, count, ACCEPTED_BYTES, 1)
            server.flush()
            await going
            count += 1
        with silent_peer():
            await stalled
        assert time.monotonic() - began < 10, "the call's own limit is 30 s"
        assert count > 10


async def test_bytes_that_leave_slowly_are_no_silence() -> None:
    """A large message on a thin line takes many times the allowance, and no answer comes meanwhile."""
    large = Message(data=[bytes(900_000)]).encode()
    async with joined(Script(rate=600_000)) as (server, _, sender):
        began = time.monotonic()
        waiting = asyncio.create_task(sender.send(large, timeout_s=30, silence_s=SILENCE_S))
        await asyncio.sleep(0)
        behind = asyncio.create_task(sender.send(PAYLOAD, timeout_s=30, silence_s=SILENCE_S))
        await asyncio.gather(waiting, behind)
        assert time.monotonic() - began > 3 * SILENCE_S
        assert len(server.received) == 2


async def test_a_peer_that_stops_reading_is_silent() -> None:
    """Bytes that do not leave are no progress; the message was not wholly sent, so the outcome is known."""
    large = Message(data=[bytes(20_000_000)]).encode()
    async with joined(Script()) as (server, _, sender):
        await sender.send(PAYLOAD)
        server.peers[0].transport.pause_reading()
        with silent_peer() as caught:
            await sender.send(large, timeout_s=30, silence_s=SILENCE_S)
        assert not caught.value.outcome_unknown
        server.peers[0].transport.resume_reading()


async def test_a_blocked_loop_is_not_the_peers_silence() -> None:
    """The answer lies in the socket when the loop runs again: it is read before silence is judged."""
    async with joined(Script(outcome=None)) as (server, _, sender):
        going = sender.send_nowait(PAYLOAD, timeout_s=30, silence_s=SILENCE_S)
        brief = sender.send_nowait(PAYLOAD, timeout_s=SILENCE_S, silence_s=30)
        await server.until(lambda: len(server.received) == 2)
        link_of(server, "q").settle(0, 1, ACCEPTED_BYTES, 2)
        server.flush()  # the answer is on its way, and is not read before the loop is blocked
        time.sleep(3 * SILENCE_S)  # noqa: ASYNC251
        await asyncio.gather(going, brief)


async def test_time_in_which_this_process_did_not_run_is_given_back() -> None:
    """A peer that answers a moment after the process was stopped and continued has been silent for that moment only."""
    async with joined(Script(outcome=None)) as (server, _, sender):
        going = sender.send_nowait(PAYLOAD, timeout_s=30, silence_s=SILENCE_S)
        await server.until(lambda: server.received)
        time.sleep(4 * SILENCE_S)  # noqa: ASYNC251
        await asyncio.sleep(SILENCE_S / 2)
        assert not going.done()
        link_of(server, "q").settle(0, 0, ACCEPTED_BYTES, 1)
        server.flush()
        await going


async def test_silence_ends_one_send_and_the_others_go_on() -> None:
    """Each send has an allowance of its own; one timer looks after all of them."""
    async with joined(Script(outcome=None)) as (server, _, sender):
        patient = sender.send_nowait(PAYLOAD, timeout_s=30)
        with silent_peer():
            await sender.send(PAYLOAD, timeout_s=30, silence_s=SILENCE_S / 3)
        assert sender.in_flight == 1
        link_of(server, "q").settle(0, 1, ACCEPTED_BYTES, 2)
        server.flush()
        await patient


@pytest.fixture
def mute() -> Iterator[str]:
    """A namespace whose machine accepts connections, and that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield (
            f"Endpoint=sb://127.0.0.1:{listening.getsockname()[1]};SharedAccessKeyName=k;SharedAccessKey=c2VuZA==;"
            "UseDevelopmentEmulator=true"
        )


async def given_up(carrier: Carrier, timeout_s: float, opening_s: float = math.inf) -> Silence:
    """Return the silence that a send meets on a peer that does not answer."""
    with pytest.raises(Timeout) as caught:
        await carrier.send("q", PAYLOAD, timeout_s=timeout_s, opening_s=opening_s)
    return caught.value.silence


async def test_a_caller_with_little_time_measures_the_silence_of_an_opening(mute: str) -> None:
    """The opening goes on for three seconds. A caller that has one second must not take its own deadline for life."""
    async with Carrier(mute) as carrier:
        silence = await given_up(carrier, 30, opening_s=SILENCE_S)
        assert silence.is_too_long and silence.lasted_s < 2.5
        assert (await given_up(carrier, SILENCE_S)).lasted_s >= SILENCE_S, "also at its deadline"


async def test_a_later_caller_knows_the_silence_before_it(mute: str) -> None:
    """Each of them has little time; the opening that they share has been silent for all of it."""
    async with Carrier(mute) as carrier:
        await given_up(carrier, 0.4)
        silence = await given_up(carrier, 0.1)
        assert silence.lasted_s >= 0.4


async def test_a_request_with_little_time_measures_the_silence_of_its_opening(mute: str) -> None:
    async with Carrier(mute) as carrier:
        with pytest.raises(Timeout) as caught:
            await carrier.management("q", 30, opening_s=SILENCE_S)
        assert caught.value.silence.is_too_long


async def test_time_in_a_credential_is_not_the_peers_silence() -> None:
    """The caller's time is over before the peer is asked for anything."""

    class Slow:
        async def get_token(self, *scopes: str) -> object:
            await asyncio.sleep(60)
            raise AssertionError

    async with Server() as server, Carrier(server.connection_string, credential=Slow()) as carrier:
        await carrier.connection()
        assert (await given_up(carrier, 1.0, opening_s=SILENCE_S)).lasted_s == 0.0


async def test_a_peer_that_answers_step_by_step_is_heard() -> None:
    """An opening that takes longer than the caller has, and whose every step is answered in time."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        steps: tuple[Literal["open", "token", "attach"], ...] = ("open", "token", "attach")
        for step in steps:
            endpoint.on(step, Delay(0.4))
        silence = await given_up(carrier, 1.0, opening_s=0.7)
        assert silence.lasted_s < 0.7 and not silence.is_too_long


async def test_the_token_and_the_attach_are_steps_that_are_awaited() -> None:
    """The connection is open; the peer leaves a token, or an attach, unanswered."""
    for script in (Script(cbs_status=None), Script(answers_attach=False)):
        async with Server(script) as server, Carrier(server.connection_string) as carrier:
            await carrier.connection()
            assert (await given_up(carrier, 30, opening_s=SILENCE_S)).is_too_long


async def test_equal_limits_of_silence_and_time_are_judged_by_the_silence() -> None:
    """Which of two timers fires first must not decide whether the peer was silent."""
    async with joined(Script(outcome=None)) as (_, _, sender):
        with pytest.raises(Timeout) as caught:
            await sender.send(PAYLOAD, timeout_s=SILENCE_S, silence_s=SILENCE_S * 0.84)
        assert caught.value.silence.is_too_long
