"""Destinations that fail, messages that cannot go, a pair of which one side is away."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Accepted, Error, Rejected
from pairbus.amqp.types import Symbol
from pairbus.auth.sas import SharedAccessKey
from pairbus.backlog.envelope import INVALID_ALIAS, NO_DESTINATION, UNDECODABLE, Envelope, wrap
from pairbus.broker import QueueDescription
from pairbus.pairing.events import (
    DeadLettered,
    DestinationSkipped,
    MaybeDuplicated,
    NotCompleted,
    PrimaryUnreachable,
    PumpPaused,
)
from pairbus.syphon import SyphonSettings, pump, receive
from pairbus.syphon.decide.dead_letter import MISSING, REFUSED
from pairbus.transport import Carrier, ConnectionLost
from tests.brokers import BrokerProcess
from tests.syphon.world import (
    BACKLOG,
    BILLS,
    DISABLED,
    ORDERS,
    QUICK,
    enable,
    message,
    numbers,
    pair,
    running,
    timed,
    until,
)
from tests.transport.server import Script, Server


class RefusesBatches(Script):
    """Takes every message, but never two at once, as partitioned entities do when keys differ."""

    def __init__(self, condition: str = "amqp:not-allowed") -> None:
        super().__init__()
        self._condition = condition

    def outcome_of(self, message_format: int) -> Any:
        return Rejected(error=Error(self._condition, "not as a batch")) if message_format else Accepted()


# ── blocked destinations ──


async def test_what_lies_behind_a_blocked_destination_moves_on() -> None:
    """Messages of the blocked destination stay locked, are told of once, and none of them is dead-lettered."""
    async with pair(ORDERS, DISABLED) as world:
        await world.divert("bills", [message(number) for number in range(300)])
        await world.divert("orders", [message(number) for number in range(300)])
        progress = await world.syphon().run_once()
        assert (progress.moved, progress.blocked, progress.dead_lettered) == (300, 300, 0)
        assert numbers(await world.arrived("orders", 300)) == list(range(300))
        assert world.waiting() == 300
        [told] = world.told(DestinationSkipped)
        assert told.path == "bills" and "disabled" in told.reason
        assert world.metered("receive") == 600


async def test_a_single_drain_counts_what_each_of_its_passes_left() -> None:
    """A pass ends after a minute, and the next one does not see messages that the first has locked."""
    now = 1000.0
    async with pair(ORDERS, DISABLED) as world:
        await world.divert("bills", [message(number) for number in range(5)])
        await world.divert("orders", [message(number) for number in range(500)])

        def hurry(namespace: str, kind: str) -> None:
            nonlocal now
            now += 61.0 if kind == "send" and now == 1000.0 else 0.0

        world.on_meter = hurry
        progress = await world.syphon(replace(QUICK, batch_max=10), clock=lambda: now).run_once()
        assert (progress.moved, progress.blocked) == (500, 5)
        assert len(world.told(DestinationSkipped)) == 1


async def test_a_destination_that_is_skipped_gets_another_chance_while_others_are_delivered() -> None:
    """After a quarter of a minute, however much there is for the others: it may have recovered long ago."""
    now = 1000.0
    async with pair(ORDERS, DISABLED) as world:
        for path, count in (("bills", 5), ("orders", 500), ("bills", 5)):
            await world.divert(path, [message(number) for number in range(count)])

        def hurry(namespace: str, kind: str) -> None:
            nonlocal now
            now += 16.0 if kind == "send" and now == 1000.0 else 0.0

        world.on_meter = hurry
        progress = await world.syphon(replace(QUICK, batch_max=10), clock=lambda: now).run_once()
        assert (progress.moved, progress.blocked) == (500, 10)
        assert len(world.told(DestinationSkipped)) == 2, "the destination was tried again"


async def test_what_a_single_drain_held_back_is_there_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages on links that were replaced are there too, and no message's delivery count has grown."""
    monkeypatch.setattr(pump, "HELD_MAX", 100)
    async with pair(ORDERS, DISABLED) as world:
        for number in range(250):
            await world.divert(("bills", "orders")[number % 2], [message(number)])
        await world.divert("bills", [message(number) for number in range(250, 500, 2)])
        assert (await world.syphon().run_once(wait_s=0.1)).blocked == 250
        assert world.metered("receive") == 375
        await enable(world)
        progress = await world.syphon().run_once(wait_s=0.1)
        assert (progress.moved, progress.blocked) == (250, 0)
        assert numbers(await world.arrived("bills", 250)) == list(range(0, 500, 2))


async def test_a_pump_keeps_no_link_on_which_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has a thousand at most, and a drain may last for hours."""
    kept: list[int] = []
    close_unused = receive.Intake._close_unused

    async def counted(self: Any) -> None:
        await close_unused(self)
        kept.append(len(self._parked))

    monkeypatch.setattr(receive.Intake, "_close_unused", counted)
    async with pair(ORDERS, DISABLED) as world:
        await world.divert("orders", [message(number) for number in range(20)])
        await world.syphon().run_once(wait_s=0.1)
        assert kept and not any(kept)
        await world.divert("bills", [message(1)])
        await world.syphon().run_once(wait_s=0.1)
        assert any(kept)


async def test_messages_are_blocked_as_long_as_their_locks_last() -> None:
    """Though passes for other destinations do not see them."""
    now = 1000.0
    async with pair(ORDERS, DISABLED) as world, running(world.syphon(clock=lambda: now)) as syphon:
        await world.divert("bills", [message(number) for number in range(5)])
        await until(lambda: syphon.progress().blocked == 5)
        for number in range(2):
            await world.divert("orders", [message(number)])
            await until(lambda n=number: syphon.progress().moved == n + 1)  # type: ignore[misc]
            await until(lambda: syphon._pumps[0]._results is None)
            assert syphon.progress().blocked == 5
        now += 61.0
        await until(lambda: syphon.progress().blocked == 0)


@pytest.mark.slow
@pytest.mark.timed  # a completion that takes longer than its time-out is repeated, with another receive
async def test_ten_thousand_behind_ten_thousand_for_a_blocked_destination_are_delivered() -> None:
    """More than one link may leave unsettled, and more than one batch."""
    async with pair(ORDERS, DISABLED) as world:
        await world.divert("bills", [message(number) for number in range(10_000)])
        await world.divert("orders", [message(number) for number in range(10_000)])
        progress = await world.syphon().run_once()
        assert (progress.moved, progress.blocked) == (10_000, 10_000)
        assert sorted(numbers(await world.arrived("orders", 10_000))) == list(range(10_000))
        assert world.metered("receive") == 20_000  # each blocked message was received once, on whichever link


@pytest.mark.slow
async def test_a_blocked_message_is_received_once_for_each_lock() -> None:
    """The pump goes back to the queue more often than that."""
    async with pair(ORDERS, DISABLED, lock_s=2.0) as world:
        await world.divert("bills", [message(number) for number in range(50)])
        async with running(world.syphon()):
            began = time.monotonic()
            for number in range(12):  # work for other destinations keeps the pump coming back
                await world.divert("orders", [message(number)])
                await asyncio.sleep(0.4)
            locks = (time.monotonic() - began) / 2.0
        receives = world.metered("receive") - 12
        assert 50 <= receives <= 50 * (locks + 1)
        assert world.waiting() == 50
        await enable(world)
        async with running(world.syphon()):
            assert sorted(numbers(await world.arrived("bills", 50))) == list(range(50))


async def test_a_key_that_is_rotated_during_the_drain_pauses_and_resumes() -> None:
    """Unauthorized says nothing about a message: nothing is dead-lettered."""
    async with pair(ORDERS, lock_s=1.0) as world, running(world.syphon()):
        await world.divert("orders", [message(1)])
        assert len(await world.arrived("orders", 1)) == 1
        keys = world.home.keys._keys
        good = keys["RootManageSharedAccessKey"]
        keys[good.name] = SharedAccessKey(good.name, "another")
        await world.primary.drop()
        await world.divert("orders", [message(number) for number in range(2, 9)])
        await until(lambda: bool(world.told(DestinationSkipped)))
        assert "unauthorized" in world.told(DestinationSkipped)[0].reason.lower()
        await until(lambda: bool(world.told(PumpPaused)))
        keys[good.name] = good
        assert sorted(numbers(await world.arrived("orders", 7))) == list(range(2, 9))
        assert not world.told(DeadLettered)


async def test_messages_for_a_missing_destination_are_dead_lettered_late() -> None:
    """Fifteen minutes: it may be redeployed."""
    now = 1000.0
    async with pair(ORDERS) as world:
        await world.divert("gone", [message(1), message(2)])
        syphon = world.syphon(clock=lambda: now)
        progress = await syphon.run_once()
        assert (progress.blocked, progress.dead_lettered) == (2, 0)
        for number in (3, 4, 5):
            now += 300.0
            await world.divert("gone", [message(number)])
            assert (await syphon.run_once(wait_s=0.1)).dead_lettered == (5 if number == 5 else 0)
        letter, *_ = await world.dead_letters(5)
        assert letter.application_properties is not None
        assert letter.application_properties["DeadLetterReason"] == MISSING
        assert "'gone'" in letter.application_properties["DeadLetterErrorDescription"]
        assert letter.application_properties["x-ms-path"] == "gone"  # a re-drive finds the destination by this alias


async def test_a_destination_that_another_syphon_has_found_since_is_waited_for_anew() -> None:
    """One syphon saw the destination missing days ago, and has delivered nothing there itself."""
    now = 1000.0
    async with pair() as world:
        await world.divert("gone", [message(1)])
        syphon = world.syphon(clock=lambda: now)
        await syphon.run_once(wait_s=0.1)
        now += 3 * 86_400.0
        await world.divert("gone", [message(2)])
        assert (await syphon.run_once(wait_s=0.1)).dead_lettered == 0


async def test_a_destination_that_is_busy_is_left_alone_and_nothing_is_lost() -> None:
    """Ten seconds, as the service asks; until then not even tried."""
    now = 1000.0
    busy = Rejected(error=Error("com.microsoft:server-busy", "slow down"))
    async with pair(ORDERS) as world, Server(Script(outcome=busy)) as server:
        primary = Carrier(server.connection_string)
        await world.divert("orders", [message(1)])
        syphon = world.syphon(primary=primary, clock=lambda: now)
        await syphon.run_once()
        assert world.metered("send") == 1
        now += 9.9
        await world.divert("orders", [message(2)])
        await syphon.run_once()
        assert world.metered("send") == 1
        server.script.outcome = Script().outcome
        now += 0.1
        await world.divert("orders", [message(3)])
        assert (await syphon.run_once()).moved == 3
        await primary.close()


async def test_sessions_that_are_refused_as_busy_together_halve_the_budget_once() -> None:
    """Halving it once for each would slow down the other destinations for minutes."""
    busy = Rejected(error=Error("com.microsoft:server-busy", "slow down"))
    async with pair() as world, Server(Script(outcome=busy)) as server:
        primary = Carrier(server.connection_string)
        await world.divert("orders", [message(number, group_id=f"s{number}") for number in range(20)])
        syphon = world.syphon(replace(QUICK, max_messages_per_second=100.0), primary=primary, clock=lambda: 1000.0)
        await syphon.run_once(wait_s=0.1)
        assert len(server.received) == 20
        assert syphon._shared.budget.rate_per_s(1000.0) == 50.0
        await primary.close()


async def test_a_destination_without_credit_costs_one_time_out_and_nobody_else_anything() -> None:
    """Any number of sessions may wait for it: no message was sent there, and the connection still works."""
    async with pair() as world, Server(Script(credits={"stuck": 0})) as server:
        primary = Carrier(server.connection_string)
        await world.divert("stuck", [message(number, group_id=f"s{number}") for number in range(20)])
        await world.divert("orders", [message(number) for number in range(300)])
        connection = await primary.connection()
        syphon = world.syphon(replace(QUICK, send_timeout_s=0.5), primary=primary)
        assert await timed(syphon.run_once(wait_s=0.1)) < 8.0, "a time-out for each session takes 10 s"
        progress = syphon.progress()
        assert (progress.moved, progress.blocked, progress.errors) == (300, 20, 1)
        [told] = world.told(DestinationSkipped)
        assert (told.path, "no credit" in told.reason) == ("stuck", True)
        assert await primary.connection() is connection
        assert {address for address, _, _ in server.received} == {"orders"}
        await primary.close()


async def test_time_out_of_the_service_itself_does_not_cost_the_connection() -> None:
    """The destination answered: only silence shows that the connection may be dead."""
    outcome = Rejected(error=Error("com.microsoft:timeout", "its storage did not answer"))
    async with pair() as world, Server(Script(outcome=outcome)) as server:
        primary = Carrier(server.connection_string)
        await world.divert("orders", [message(1)])
        connection = await primary.connection()
        progress = await world.syphon(primary=primary).run_once(wait_s=0.1)
        assert (progress.moved, progress.blocked, progress.errors) == (0, 1, 1)
        assert [told.path for told in world.told(DestinationSkipped)] == ["orders"]
        assert await primary.connection() is connection and not world.told(PrimaryUnreachable)
        await primary.close()


async def test_what_waited_for_credit_until_its_lock_was_over_is_not_sent() -> None:
    """Another receiver may have the message by then."""
    now = 1000.0
    async with pair() as world, Server(Script(credits={"orders": 1})) as server:
        primary = Carrier(server.connection_string)
        await world.divert("orders", [message(number, group_id=f"s{number}") for number in range(5)])
        syphon = world.syphon(SyphonSettings(), primary=primary, clock=lambda: now)
        drained = asyncio.create_task(syphon.run_once(wait_s=0.1))
        await server.until(lambda: server.received)
        now += 61.0
        [link] = server.receivers()
        link.grant(100)
        server.flush()
        progress = await drained
        assert (len(server.received), progress.moved, progress.blocked) == (1, 1, 4)
        await primary.close()


async def test_a_destination_that_the_connection_string_does_not_cover_is_skipped() -> None:
    """With a key for one entity, the messages of that entity come home."""
    async with pair(ORDERS, BILLS) as world:
        await world.divert("bills", [message(1)])
        await world.divert("orders", [message(2)])
        primary = Carrier(f"{world.broker.connection_string('contoso')};EntityPath=orders")
        progress = await world.syphon(primary=primary).run_once(wait_s=0.1)
        assert (progress.moved, progress.blocked, progress.errors) == (1, 1, 1)
        assert "EntityPath" in world.told(DestinationSkipped)[0].reason
        await primary.close()


# ── messages that cannot go ──


async def test_messages_that_cannot_go_home_are_dead_lettered_with_a_reason() -> None:
    """A person reads the description: it names the fault, and the property or limit."""
    big = Message(properties=Properties(message_id="big"), data=[bytes(1_100_000)]).encode()
    no_path = message(2)
    wrong = Message.decode(message(3))
    wrong.application_properties = {"x-ms-path": "orders", "x-ms-sessionid": 5}
    async with pair(QueueDescription("orders"), backlog_message_kb=4096) as world:
        await world.put(
            BACKLOG, [wrap(message(1), Envelope("orders")), no_path, wrong.encode(), wrap(big, Envelope("orders"))]
        )
        await world.divert("orders", [message(4)])
        progress = await world.syphon().run_once()
        assert (progress.moved, progress.dead_lettered, progress.blocked) == (2, 3, 0)
        assert numbers(await world.arrived("orders", 2)) == [1, 4]
        told = {event.message_id: (event.reason, event.description) for event in world.told(DeadLettered)}
        assert {name: reason for name, (reason, _) in told.items()} == {
            "m2": NO_DESTINATION,
            "m3": INVALID_ALIAS,
            "big": REFUSED,
        }
        assert world.metered("send") == 2  # the link says how much it takes: a larger message is not sent
        letters = await world.dead_letters(3)
        found = {one.properties.message_id: one.application_properties for one in letters if one.properties}
        for name, (reason, description) in told.items():
            properties = found[name]
            assert properties is not None
            assert (properties["DeadLetterReason"], properties["DeadLetterErrorDescription"]) == (reason, description)


async def test_bytes_that_are_no_message_do_not_stop_the_pump() -> None:
    """Another broker may have accepted such bytes."""
    async with Server() as server, pair(ORDERS) as world:
        server.put(BACKLOG, b"\x00\x53", wrap(message(1), Envelope("orders")))
        world.secondary = Carrier(server.connection_string)
        progress = await world.syphon().run_once(wait_s=0.1)
        assert (progress.moved, progress.dead_lettered) == (1, 1)
        assert world.told(DeadLettered)[0].reason == UNDECODABLE
        await world.secondary.close()


async def test_a_destination_that_refuses_batches_gets_its_messages_one_by_one() -> None:
    """A batch that is refused says nothing about its messages; it is not tried a second time."""
    async with pair(ORDERS) as world, Server(RefusesBatches()) as server:
        primary = Carrier(server.connection_string)
        syphon = world.syphon(primary=primary)
        await world.divert("orders", [message(number) for number in range(5)])
        assert (await syphon.run_once()).moved == 5
        await world.divert("orders", [message(number) for number in range(5)])
        assert (await syphon.run_once()).moved == 10
        assert [message_format != 0 for _, _, message_format in server.received] == [True] + [False] * 10
        assert not world.told(DeadLettered)
        await primary.close()


async def test_batch_that_is_too_large_is_split() -> None:
    """The size was to blame, and not that it was a batch."""
    async with pair(ORDERS) as world, Server(RefusesBatches("amqp:link:message-size-exceeded")) as server:
        primary = Carrier(server.connection_string)
        syphon = world.syphon(primary=primary)
        for _ in range(2):
            await world.divert("orders", [message(number) for number in range(5)])
            await syphon.run_once(wait_s=0.1)
        assert syphon.progress().moved == 10
        assert [message_format != 0 for _, _, message_format in server.received] == ([True] + [False] * 5) * 2
        assert not world.told(DeadLettered)
        await primary.close()


# ── one side away ──


async def test_drain_resumes_when_the_primary_is_back() -> None:
    """Receiving more would only cost receives."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(number) for number in range(1000)])
        endpoint = world.primary.endpoint
        away = Carrier(replace(endpoint, port=1), connect_timeout_s=1.0)
        syphon = world.syphon(primary=away)
        async with running(syphon):
            await until(lambda: len(world.told(PrimaryUnreachable)) >= 2)
            assert world.metered("receive") <= 400
            away.endpoint = endpoint
            away._pool.connect = world.primary._pool.connect
            assert sorted(numbers(await world.arrived("orders", 1000))) == list(range(1000))
        assert not world.told(DeadLettered)
        await away.close()


async def test_a_secondary_that_is_away_pauses_the_pump() -> None:
    """The pause is told at the first failure, and at every later one."""
    async with pair(ORDERS) as world:
        world.secondary = Carrier(replace(world.secondary.endpoint, port=1))
        async with running(world.syphon()):
            await until(lambda: len(world.told(PumpPaused)) >= 2)
        first, second = world.told(PumpPaused)[:2]
        assert (first.for_s, second.for_s) == (1.0, 2.0) and first.queue == BACKLOG
        with pytest.raises(ConnectionLost):
            await world.syphon().run_once()


BUSY = Error("com.microsoft:server-busy", "slow down")


@pytest.mark.parametrize(
    "script",
    [Script(refuse={BACKLOG: BUSY}), Script(cbs_status=503), Script(settlement=Rejected(error=BUSY))],
    ids=["link", "token", "settlement"],
)
async def test_a_secondary_that_is_busy_is_left_alone(script: Script) -> None:
    """The wait is ten seconds, as the service asks of every client; also after a pass that has moved messages."""
    async with pair(ORDERS) as world, Server(script) as server:
        server.put(BACKLOG, wrap(message(1), Envelope("orders")))
        world.secondary = Carrier(server.connection_string)
        async with running(world.syphon()):
            await until(lambda: bool(world.told(PumpPaused)))
        assert world.told(PumpPaused)[0].for_s == 10.0
        await world.secondary.close()


async def test_link_closed_as_busy_is_opened_after_a_pause() -> None:
    """The link may have been idle for any time."""
    now = 1000.0
    async with pair(ORDERS) as world, Server() as server:
        world.secondary = Carrier(server.connection_string)
        async with running(world.syphon(clock=lambda: now)):
            await server.until(lambda: [link for link in server.senders(BACKLOG) if link.credit])
            now += 300.0
            server.senders(BACKLOG)[0].detach(BUSY)
            server.flush()
            await until(lambda: bool(world.told(PumpPaused)))
        assert world.told(PumpPaused)[0].for_s == 10.0
        await world.secondary.close()


async def test_silent_primary_costs_one_time_out_then_a_fresh_connection(tmp_path: Path) -> None:
    """A stopped process keeps its sockets; its late answers are duplicates, and no message is lost."""
    with BrokerProcess(tmp_path / "home", namespaces=["contoso"], strict=True) as home:
        with home.admin("contoso") as admin:
            admin.create_queue("orders", requires_duplicate_detection=True)
        async with pair(lock_s=1.0) as world:
            moving = world.primary = Carrier(home.connection_string("contoso"), connect_timeout_s=1.0)
            async with running(world.syphon(replace(QUICK, send_timeout_s=1.0))):
                await world.divert("orders", [message(1)])
                assert len(await world.arrived("orders", 1)) == 1
                # Attempts of the syphon to open its own connection may fail for another second.
                world.primary = Carrier(home.connection_string("contoso"))
                os.kill(home.pid, signal.SIGSTOP)
                try:
                    await world.divert("orders", [message(number) for number in range(2, 30)])
                    await until(lambda: bool(world.told(PrimaryUnreachable)))
                finally:
                    os.kill(home.pid, signal.SIGCONT)
                assert sorted(numbers(await world.arrived("orders", 28))) == list(range(2, 30))
                await until(lambda: world.waiting() == 0)
            await moving.close()
            await world.primary.close()


# ── stopping, polling ──


async def test_stop_ends_idle_pumps_at_once_and_hanging_ones_later() -> None:
    """Closing a client takes five seconds at the most."""
    async with pair(ORDERS) as world:
        async with running(world.syphon()) as idle:
            await until(lambda: idle._pumps[0]._intake.link is not None)
            assert await timed(idle.stop()) < 1.5
        async with Server(Script(outcome=None)) as server:
            silent = Carrier(server.connection_string)
            await world.divert("orders", [message(1)])
            syphon = world.syphon(SyphonSettings(send_timeout_s=60.0), primary=silent)
            async with running(syphon):
                await until(lambda: bool(world.metered("receive")))
                assert 0.4 < await timed(syphon.stop(grace_s=0.5)) < 3.0
            await silent.close()
        assert world.waiting() == 1


async def test_what_was_fetched_ahead_goes_back_at_once() -> None:
    """Another syphon need not wait for locks to run out, also not of messages that were on their way."""
    async with pair(ORDERS) as world, Server(Script(outcome=None)) as server:
        silent = Carrier(server.connection_string)
        await world.divert("orders", [message(number) for number in range(1000)])
        syphon = world.syphon(SyphonSettings(send_timeout_s=60.0), primary=silent)
        async with running(syphon):
            await until(lambda: world.metered("receive") > 0)
            await syphon.stop(grace_s=0.1)
        assert world.metered("receive") == 200  # one half was being sent, the other half was received ahead
        assert (await world.syphon().run_once()).moved == 1000
        await silent.close()


async def test_an_idle_queue_costs_one_receive_for_each_poll() -> None:
    """Ten queues, forty polls an hour: 28 800 in thirty days, as the bill must show."""
    async with pair(ORDERS, backlogs=2) as world:
        settings = replace(QUICK, poll_s=0.5)
        async with running(world.syphon(settings, queues=(BACKLOG, f"{BACKLOG[:-1]}1"))):
            await until(lambda: world.metered("empty receive") >= 4)
            assert world.metered("empty receive") == 4
        assert world.metered("empty receive") == 6  # the two polls that the stop ended count as empty too
        assert world.metered("receive") == 0


async def test_link_reopened_within_a_poll_is_no_new_receive() -> None:
    """The service closes idle links after ten minutes; a poll has fifteen."""
    async with pair(ORDERS) as world:
        async with running(world.syphon(replace(QUICK, poll_s=2.5))) as syphon:
            await until(lambda: syphon._pumps[0]._intake.link is not None)
            await asyncio.sleep(1.2)
            await world.secondary.drop()
            await until(lambda: world.metered("empty receive") == 1)
            assert not world.told(PumpPaused)
        assert syphon.progress().errors == 0


async def test_lost_lock_ends_the_pass_and_messages_come_again() -> None:
    """Messages at home are not sent again. Most of the thousand were not sent at all."""
    lost = Rejected(error=Error("com.microsoft:message-lock-lost", "too late", {Symbol("x"): 1}))
    async with pair(ORDERS) as world, Server(Script(settlement=lost)) as server:
        server.put(BACKLOG, *[wrap(message(number), Envelope("orders")) for number in range(1000)])
        world.secondary = Carrier(server.connection_string)
        syphon = world.syphon()
        progress = await syphon.run_once(wait_s=0.1)
        assert progress.errors >= 1
        count = world.home.queue_info("orders").active
        assert 0 < count <= 300
        assert numbers(await world.arrived("orders", count)) == list(range(count))
        assert {type(event) for event in world.events} == {NotCompleted}  # moved, not completed in the backlog queue
        await world.secondary.close()


async def test_duplicate_that_the_syphon_may_have_made_is_told() -> None:
    """A send got no answer, and the message goes again after the time for which the destination remembers its id."""
    async with pair(ORDERS, lock_s=1.0) as world, Server(Script(outcome=None)) as server:
        silent = Carrier(server.connection_string)
        settings = replace(QUICK, send_timeout_s=0.3, duplicate_detection_window_s=0.2, retry_interval_s=0.2)
        await world.divert("orders", [message(1)])
        async with running(world.syphon(settings, primary=silent)):
            await until(lambda: bool(world.told(DestinationSkipped)))
            server.script.outcome = Accepted()
            await world.divert("orders", [message(2)])
            await until(lambda: world.waiting() == 0)
        [told] = world.told(MaybeDuplicated)
        assert (told.path, told.message_id) == ("orders", "m1") and told.reason.startswith("it came home after")
        await silent.close()
