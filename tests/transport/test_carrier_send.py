"""One call sends: it finds or opens the link; a link that the service ended while idle costs no caller an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pairbus.amqp.performatives import Error
from pairbus.transport import Carrier, ConnectionLost, Refused, Timeout, connect
from pairbus.transport.carrier import pool as transport_pool
from pairbus.transport.links import patience as transport_patience
from pairbus.transport.tokens import cbs as transport_cbs
from tests.scripted import Delay, Detach, LoseAnswer, Reject, ScriptedEndpoint, Silent
from tests.scripted.script import Accept
from tests.transport.server import Script, Server
from tests.transport.silences import silent_peer


def body(text: str) -> bytes:
    return b"\x00\x53\x75\xa0" + bytes([len(text)]) + text.encode()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the awaited change sets no event
            await asyncio.sleep(0.01)


def attaches(endpoint: ScriptedEndpoint, path: str) -> int:
    """Return how often a link to the entity was attached."""
    return sum(occasion.step == "attach" and occasion.path == path for occasion in endpoint.steps)


async def test_sends_that_wait_for_a_link_keep_their_order() -> None:
    """The first sends of a client are begun before there is a connection; newcomers must not overtake them."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        endpoint.on("attach", Delay(0.05, Accept()))
        sends = [asyncio.create_task(carrier.send("orders", body(str(number)))) for number in range(50)]
        while not carrier._senders.links:  # noqa: ASYNC110 - the very turn of the loop in which the link is there
            await asyncio.sleep(0)
        sends += [asyncio.create_task(carrier.send("orders", body(str(number)))) for number in range(50, 100)]
        await asyncio.gather(*sends)
        assert endpoint.stored("orders") == [body(str(number)) for number in range(100)]
        assert (endpoint.open_connections, endpoint.link_count("orders")) == (1, 1)


async def test_paths_share_a_link_in_any_case_and_names_do_not() -> None:
    """Entities are compared without case; a sender's identifier is the name of its link."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        for path in ("orders", "Orders"):
            await carrier.send(path, body("a"))
        await carrier.send("orders", body("b"), name="till-7")
        assert sorted(link.name == "till-7" for link in server.receivers()) == [False, True]


@pytest.mark.parametrize("ended", ["link", "connection", "reset"])
async def test_an_idle_link_that_the_service_ended_is_attached_again(ended: str) -> None:
    """Azure ends links after ten minutes and connections after five: neither may divert anything."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        sender = await carrier.sender("orders")
        ends: dict[str, Callable[[], object]] = {
            "link": endpoint.close_idle_links,
            "connection": endpoint.close_connections,
            "reset": endpoint.reset,
        }
        ends[ended]()
        await until(lambda: sender.over is not None)
        await carrier.send("orders", body("2"))
        assert endpoint.stored("orders") == [body("1"), body("2")]


async def test_a_link_that_ends_before_its_waiting_send_left_is_attached_again() -> None:
    """A send without credit has not been transmitted: it may be sent elsewhere without a doubt."""
    server = Server(Script(credits={"orders": 0}))
    async with server, Carrier(server.connection_string) as carrier:
        await carrier.sender("orders")
        sending = asyncio.create_task(carrier.send("orders", body("1")))
        await asyncio.sleep(0.05)
        server.script.credits.clear()
        server.receivers()[0].detach(Error("amqp:link:detach-forced", "AmqpMessagePublisher.IdleTimerExpired"))
        server.flush()
        await asyncio.wait_for(sending, 5)
        assert [payload for _, payload, _ in server.received] == [body("1")]


async def test_the_new_attempt_tells_why_it_failed() -> None:
    """One new attempt is enough: a service that ends every link is not idle, it is broken."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        endpoint.on("attach", Reject("amqp:not-found", "no such entity"), path="orders")
        sender = await carrier.sender("orders")
        endpoint.close_idle_links()
        await until(lambda: sender.over is not None)
        with pytest.raises(Refused, match="amqp:not-found"):
            await carrier.send("orders", body("2"))


async def test_a_send_that_was_transmitted_is_never_repeated() -> None:
    """The outcome is unknown: whether to send again is the caller's decision."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        endpoint.on("transfer", LoseAnswer(Detach("amqp:link:detach-forced")), path="orders", times=1)
        with pytest.raises(Refused) as caught:
            await carrier.send("orders", body("2"))
        assert caught.value.outcome_unknown
        assert len(endpoint.received_by("orders")) == 2


async def test_a_rejected_message_is_not_sent_again() -> None:
    """A no is an answer."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        endpoint.on("transfer", Reject("com.microsoft:server-busy"), path="orders")
        with pytest.raises(Refused, match="server-busy"):
            await carrier.send("orders", body("1"))
        assert len(endpoint.received_by("orders")) == 1


async def test_the_callers_time_bounds_the_whole_call() -> None:
    """The call ends in time also while the opening continues for other callers."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        endpoint.on("attach", Delay(0.5, Accept()), path="orders")
        patient = asyncio.create_task(carrier.send("orders", body("patient")))
        with pytest.raises(Timeout) as caught:
            await carrier.send("orders", body("hasty"), timeout_s=0.05)
        assert not caught.value.outcome_unknown
        await patient
        assert endpoint.stored("orders") == [body("patient")], "a send that was given up is not transmitted later"


async def test_an_attach_without_an_answer_costs_one_silence() -> None:
    """A silent entity is found out within `connect_timeout_s`, however long the caller would wait."""
    async with ScriptedEndpoint() as endpoint:
        endpoint.on("attach", Silent(), path="orders")
        async with Carrier(endpoint.connection_string, connect_timeout_s=0.2) as carrier:
            with pytest.raises(Timeout, match="nothing was heard"):
                await asyncio.wait_for(carrier.send("orders", body("1"), timeout_s=60), 10)


# ── a fresh connection ──


async def test_fresh_moves_the_link_and_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry of one entity must not cost the sends of another anything."""
    monkeypatch.setattr(transport_pool, "FRESH_S", 0.0)
    monkeypatch.setattr(transport_pool, "LOOK_S", 0.02)
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        await carrier.send("bills", body("1"))
        bills, old = await carrier.sender("bills"), await carrier.connection()
        endpoint.on("transfer", Delay(0.3, Accept()), path="orders", times=1)
        slow = asyncio.create_task(carrier.send("orders", body("slow")))
        await until(lambda: len(endpoint.received_by("orders")) == 2)
        await carrier.send("orders", body("fresh"), fresh=True)
        assert endpoint.open_connections == 2
        assert await carrier.sender("bills") is bills and bills.over is None
        await slow
        await carrier.send("bills", body("2"))
        assert await carrier.connection() is not old, "new links go to the fresh connection"
        carrier.forget("bills")
        await until(lambda: endpoint.open_connections == 1)
        assert old.loss is not None
        await carrier.send("bills", body("3"))
        assert endpoint.open_connections == 1


async def test_sends_that_fail_together_share_one_fresh_connection() -> None:
    """Two hundred retries must not open two hundred connections."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        (await carrier.connection()).opened_at -= 60
        paths = [f"orders-{number % 20}" for number in range(200)]
        await asyncio.gather(*[carrier.send(path, body("x"), fresh=True) for path in paths])
        assert sum(step.step == "open" for step in endpoint.steps) == 2


async def test_retired_connections_that_are_still_used_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entity that fails for hours, beside ones that work, must not gather connections."""
    monkeypatch.setattr(transport_pool, "FRESH_S", 0.0)
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        for number in range(10):
            await carrier.send(f"healthy-{number}", body("x"))
            await carrier.send("orders", body("x"), fresh=True)
        assert endpoint.open_connections <= transport_pool.RETIRED_MAX + 1


async def test_fresh_after_a_loss_only_opens_anew() -> None:
    """A connection that is lost need not be retired."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        sender = await carrier.sender("orders")
        endpoint.reset()
        await until(lambda: sender.over is not None)
        await carrier.send("orders", body("2"), fresh=True)
        assert endpoint.open_connections == 1


# ── room ──


async def test_beyond_nine_hundred_tokens_there_is_a_second_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure refuses the 1001st token of a connection. All at once here, as at the start of an application."""
    monkeypatch.setattr(transport_cbs, "TOKENS_MAX", 90)
    async with Server(Script(tokens_max=100)) as server, Carrier(server.connection_string) as carrier:
        await asyncio.gather(*[carrier.send(f"queue-{number}", body("x")) for number in range(100)])
        assert sorted(len(peer.audiences) for peer in server.peers) == [10, 90]
        await carrier.management("queue-7")
        await carrier.receiver("queue-7")
        assert sorted(len(peer.audiences) for peer in server.peers) == [10, 90]


async def test_tokens_of_closed_links_count_until_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer does not forget a token with its link; a connection that is full of old ones is replaced."""
    monkeypatch.setattr(transport_cbs, "TOKENS_MAX", 4)
    monkeypatch.setattr(transport_pool, "LOOK_S", 0.02)
    server = Server(Script(tokens_max=5))
    async with server, Carrier(server.connection_string, senders_max=2) as carrier:
        for number in range(10):
            await carrier.send(f"queue-{number}", body("x"))
        assert len(server.received) == 10
        await server.until(lambda: len(server.peers) <= 2)


async def test_a_connection_that_takes_no_more_tokens_is_full() -> None:
    """The peer may allow fewer tokens than we count."""
    async with Server(Script(tokens_max=3)) as server, Carrier(server.connection_string) as carrier:
        for number in range(5):
            await carrier.send(f"queue-{number}", body("x"))
        assert len(server.peers) == 2


@pytest.mark.parametrize("handle_max", [3, 255])
async def test_a_peer_with_few_channels_gets_more_connections(handle_max: int) -> None:
    """Every link has a session of its own; when they are used up, that is no refusal of the entity."""
    script = Script(channel_max=15, handle_max=handle_max, credit=1, max_frame_size=512)
    async with Server(script) as server, Carrier(server.connection_string) as carrier:
        await asyncio.gather(*[carrier.send(f"queue-{number}", body("x")) for number in range(40)])
        assert len(server.received) == 40
        assert len(server.peers) == 3
        for number in range(40):
            await carrier.send(f"queue-{number}", body("y"))
        assert len(server.peers) == 3


async def test_close_ends_every_connection_and_leaves_no_task() -> None:
    """Retired ones, too."""
    async with Server() as server:
        carrier = Carrier(server.connection_string)
        await carrier.send("orders", body("1"))
        await carrier.send("bills", body("1"))
        (await carrier.connection()).opened_at -= 60
        await carrier.send("orders", body("2"), fresh=True)
        assert len(server.peers) == 2
        await carrier.close()
        await server.until(lambda: not server.peers)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        with pytest.raises(ConnectionLost, match="closed"):
            await carrier.send("orders", body("3"))
        with pytest.raises(ConnectionLost, match="closed"):
            await carrier.management("orders")


async def test_management_is_opened_beside_the_sends() -> None:
    """Scheduling needs the same connection, token and clocks."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        management = await carrier.management("orders")
        assert await carrier.management("orders") is management
        assert len(server.peers) == 1 and len(server.tokens) == 1
        many = await asyncio.gather(*[carrier.management(f"queue-{number}") for number in range(20)])
        assert all(each.over is None for each in many)


async def test_a_direct_connection_is_as_before() -> None:
    """The carrier is a convenience: `connect` gives one connection, and no second one behind it."""
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("orders", name="till-7")
        await sender.send(body("1"))
        assert sender.name == "till-7"


async def test_a_link_that_fell_silent_is_used_by_no_later_send() -> None:
    """The peer may have lost its end of one link only. Pings open links of their own, so they cannot notice it."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"))
        silent = await carrier.sender("orders")
        endpoint.on("transfer", Silent(), path="orders", times=2)
        slow = asyncio.create_task(carrier.send("orders", body("2"), silence_s=2.0))
        with silent_peer():
            await carrier.send("orders", body("3"), silence_s=0.2)
        assert silent.over is None and not slow.done(), "the send of another caller has its own time"
        await carrier.send("orders", body("4"), silence_s=5.0)
        assert await carrier.sender("orders") is not silent
        with silent_peer():
            await slow
        await until(lambda: silent.over is not None)


async def test_link_that_is_silent_on_its_first_send_is_replaced() -> None:
    """The send for which a link is opened can be the one that the peer leaves unanswered."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        endpoint.on("transfer", Silent(), path="orders", times=1)
        with silent_peer():
            await carrier.send("orders", body("1"), silence_s=0.2)
        await carrier.send("orders", body("2"))
        assert attaches(endpoint, "orders") == 2


@pytest.mark.parametrize("owed", ["answer", "credit"])
async def test_silent_link_is_replaced_when_only_time_outs_end_its_sends(
    owed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without another place gives the peer all of its time: no send ends by silence. One short time-out says
    nothing about the peer, several without a frame in between do."""
    monkeypatch.setattr(transport_patience, "LINK_SILENCE_S", 1.0)
    server = Server(Script(credits={"orders": 0}) if owed == "credit" else Script(outcome=None))
    async with server, Carrier(server.connection_string) as carrier:
        silent = await carrier.sender("orders")
        if owed == "credit":
            server.script = Script()  # for later links: this one has no credit, and gets none

        async def time_out(timeout_s: float) -> None:
            with pytest.raises(Timeout) as caught:
                await carrier.send("orders", body("1"), timeout_s=timeout_s, silence_s=60.0)
            assert not caught.value.silence.is_too_long

        await time_out(0.2)
        assert await carrier.sender("orders") is silent
        async with asyncio.timeout(20):
            while await carrier.sender("orders") is silent:
                await time_out(0.4)
        server.script = Script()
        await carrier.send("orders", body("2"))
        assert await carrier.sender("orders") is not silent


async def test_silent_link_is_replaced_when_callers_cancel_their_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with a time limit of its own (`asyncio.timeout`) never lets a send end by silence."""
    monkeypatch.setattr(transport_patience, "LINK_SILENCE_S", 0.5)
    async with Server(Script(outcome=None)) as server, Carrier(server.connection_string) as carrier:
        silent = await carrier.sender("orders")
        async with asyncio.timeout(10):
            while await carrier.sender("orders") is silent:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await carrier.send("orders", body("1"), silence_s=0.4)


async def test_slow_answers_keep_a_link_whose_sends_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes too late for its caller is a sign of life all the same."""
    monkeypatch.setattr(transport_patience, "LINK_SILENCE_S", 1.5)
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        slow = await carrier.sender("orders")
        endpoint.on("transfer", Delay(0.5, Accept()), path="orders")
        for number in range(40):  # for longer than a link may be silent
            with pytest.raises(Timeout):
                await carrier.send("orders", body(str(number)), timeout_s=0.05)
        assert await carrier.sender("orders") is slow


async def test_send_in_the_line_of_a_silent_link_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer may give credit after all; the patience of one caller does not decide for another."""
    monkeypatch.setattr(transport_pool, "LOOK_S", 0.02)
    server = Server(Script(credits={"orders": 0}))
    async with server, Carrier(server.connection_string) as carrier:
        silent = await carrier.sender("orders")
        patient = asyncio.create_task(carrier.send("orders", body("patient")))
        with silent_peer():
            await carrier.send("orders", body("hasty"), silence_s=0.1)
        (link,) = server.receivers()
        assert await carrier.sender("orders") is not silent
        await asyncio.sleep(0.1)  # some looks at links that were left
        link.grant(1)
        server.flush()
        await patient
        await until(lambda: silent.over is not None)


@pytest.mark.parametrize("unanswered", ["_on_attach", "_on_request"])
async def test_connection_on_which_no_link_opens_gets_no_further_links(
    unanswered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may keep a connection, with its heartbeats, and answer no attach or token on it: a new connection is
    then the only way on. Links that are open go on, and the connection ends with the last of them."""
    monkeypatch.setattr(transport_pool, "LOOK_S", 0.02)
    async with Server() as server, Carrier(server.connection_string, connect_timeout_s=0.2) as carrier:
        await carrier.send("orders", body("1"))
        old, orders = server.peers[0], await carrier.sender("orders")
        monkeypatch.setattr(old, unanswered, lambda event: None)
        with silent_peer():
            await carrier.send("bills", body("1"))
        await carrier.send("bills", body("2"))
        await carrier.send("orders", body("2"))
        assert await carrier.sender("orders") is orders and orders.over is None
        await (await carrier.management("orders")).peek(1, 1)
        await (await carrier.receiver("orders")).close()
        assert len(server.peers) == 2
        carrier.forget("orders")
        await server.until(lambda: old not in server.peers)
        assert [payload for _, payload, _ in server.received] == [body("1"), body("2"), body("2")]


async def fall_silent_often(endpoint: ScriptedEndpoint, carrier: Carrier) -> None:
    """Let the entity `orders` leave its attaches unanswered until it has cost as many connections as it may."""
    endpoint.on("attach", Silent(), path="orders")
    for number in range(transport_pool.SILENT_MAX + 1):
        await carrier.send(f"healthy-{number}", body("x"))
        with silent_peer():
            await carrier.send("orders", body("x"))


async def test_silent_entity_does_not_keep_others_on_a_connection_on_which_no_link_opens() -> None:
    """The silent entity has cost as many connections as it may. Any of them may be the one that opens no links."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string, connect_timeout_s=0.5) as carrier:
        await fall_silent_often(endpoint, carrier)
        last = max(occasion.connection for occasion in endpoint.steps)
        endpoint.on("attach", Silent(), when=lambda occasion: occasion.connection == last)
        await carrier.send("bills", body("x"))
        await carrier.send("invoices", body("x"))


async def test_fresh_connection_is_opened_beside_those_that_a_silent_entity_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first retry of a failed send is on a fresh connection, whatever other entities do."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string, connect_timeout_s=0.5) as carrier:
        await fall_silent_often(endpoint, carrier)
        last = max(occasion.connection for occasion in endpoint.steps)
        monkeypatch.setattr(transport_pool, "FRESH_S", 0.0)
        await carrier.send("healthy-0", body("x"), fresh=True)
        assert endpoint.steps[-1].connection == last + 1


async def test_carrier_is_connected_while_a_silent_connection_is_replaced() -> None:
    """A syphon takes a primary for lost when its carrier is not connected, although sends are accepted there."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string, connect_timeout_s=1.5) as carrier:
        await carrier.send("healthy", body("x"))
        endpoint.on("attach", Silent(), path="orders")
        with silent_peer():
            await carrier.sender("orders")
        endpoint.on("open", Delay(0.7))
        opening = asyncio.create_task(carrier.sender("bills"))
        await until(lambda: sum(step.step == "open" for step in endpoint.steps) == 2)
        await carrier.send("healthy", body("x"))
        assert not opening.done() and carrier.is_connected
        await opening
        endpoint.close_connections()
        await until(lambda: not carrier.is_connected)


async def test_refused_link_shows_that_its_connection_is_not_silent() -> None:
    """A refusal is an answer: the healthy links of the connection need no second one beside it."""
    async with ScriptedEndpoint() as endpoint, await connect(endpoint.connection_string, silence_s=0.5) as connection:
        endpoint.on("attach", Silent(), path="orders")
        endpoint.on("attach", Reject(), path="bills")
        with silent_peer():
            await connection.sender("orders")
        assert connection.is_silent
        with pytest.raises(Refused):
            await connection.sender("bills")
        assert not connection.is_silent


@pytest.mark.parametrize("step", ["attach", "put-token"])
async def test_management_moves_from_a_connection_on_which_no_link_opens(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests have links of their own. The silence is noticed also when the caller had less time."""
    async with Server() as server, Carrier(server.connection_string, connect_timeout_s=0.2) as carrier:
        await carrier.send("orders", body("1"))
        monkeypatch.setattr(server.peers[0], "_on_attach" if step == "attach" else "_on_request", lambda event: None)
        with pytest.raises(Timeout):
            await carrier.management("bills", timeout_s=0.05)
        with silent_peer():
            await carrier.management("bills")
        await (await carrier.management("bills")).peek(1, 1)
        assert len(server.peers) == 2


async def test_silent_entity_beside_healthy_ones_gathers_few_connections() -> None:
    """One entity that answers no attach cannot be told from a connection on which no link opens."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string, connect_timeout_s=0.5) as carrier:
        endpoint.on("attach", Silent(), path="orders")
        count = transport_pool.SILENT_MAX + 3  # more than the entity may cost
        for number in range(count):
            await carrier.send(f"healthy-{number}", body("x"))
            with silent_peer():
                await carrier.send("orders", body("x"))
        assert endpoint.open_connections <= transport_pool.SILENT_MAX + 1
        senders = [await carrier.sender(f"healthy-{number}") for number in range(count)]
        assert all(sender.over is None for sender in senders)
        assert endpoint.link_count("healthy-0") == 1, "no link of another entity was opened again"


@pytest.mark.parametrize("name", [None, "till-7"])
async def test_forgetting_a_link_leaves_sends_in_flight_on_it_alone(name: str | None) -> None:
    """A caller that wants a new link must not make the outcome of other callers' sends unknown. The peer would end a
    link when another one is attached under its name."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        await carrier.send("orders", body("1"), name=name)
        before = await carrier.sender("orders", name=name)
        endpoint.on("transfer", Delay(0.3, Accept()), path="orders", times=1)
        sending = asyncio.create_task(carrier.send("orders", body("2"), name=name))
        await until(lambda: before.in_flight == 1)
        carrier.forget("orders", name)
        beside = await carrier.sender("orders", name=name)
        assert beside is not before and beside.name != before.name
        await sending
        await until(lambda: before.over is not None)
        if name is not None:
            assert before.name == name and beside.name.startswith(name)
            carrier.forget("orders", name)
            assert (await carrier.sender("orders", name=name)).name == name, "the name is free again"


async def test_openings_at_the_same_time_leave_one_link() -> None:
    """After a loss one caller may open the link anew while another one retries on a fresh connection."""
    async with ScriptedEndpoint() as endpoint, Carrier(endpoint.connection_string) as carrier:
        endpoint.on("attach", Delay(0.1, Accept()))
        await asyncio.gather(carrier.send("orders", body("1")), carrier.send("orders", body("2"), fresh=True))
        await until(lambda: endpoint.link_count("orders") == 1)
        assert sorted(endpoint.stored("orders")) == [body("1"), body("2")]
