"""Behaviour of a client without any options, and the namespace in which its receivers look."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpMessageHeader
from azure.servicebus.exceptions import ServiceBusError

import pairbus.aio
from pairbus import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions
from pairbus.client import client as aio_client
from pairbus.client.face import timeout_of
from pairbus.client.outgoing import outgoing_of
from pairbus.errors import ConfigError, PairingError
from pairbus.pairing.events import BacklogQueueBack
from pairbus.pairing.failover import State
from pairbus.pairing.options import PRIMARY_SHARE
from pairbus.syphon import SyphonSettings

NOBODY = "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"


def test_default_time_out_is_sixty_seconds_with_a_third_for_the_primary() -> None:
    """The caller of a web application waits no longer either."""
    assert timeout_of(None) == 60.0
    assert timeout_of(None) * PRIMARY_SHARE == 20.0
    assert timeout_of(2.5) == 2.5
    with pytest.raises(ValueError, match="greater than 0"):
        timeout_of(0)


def test_pump_polls_fifteen_minutes_for_up_to_a_hundred_messages() -> None:
    """Ten idle queues then cost 40 receives an hour."""
    settings = SyphonSettings.of(SendAvailabilityPairedNamespaceOptions())
    assert (settings.poll_s, settings.batch_max) == (15 * 60.0, 100)
    assert 10 * 3600 / settings.poll_s == 40


def test_a_session_and_its_state_are_the_primarys() -> None:
    """Application logic never talks to the secondary, which has no sessions of the application's."""
    primary, secondary = NOBODY.format(port=9), NOBODY.format(port=10)
    client = PairedServiceBusClient.from_connection_strings(primary, secondary)
    receiver = client.get_queue_receiver("orders", session_id="s1")
    assert receiver.fully_qualified_namespace == "127.0.0.1:9"
    assert receiver.session.session_id == "s1"
    subscription = client.get_subscription_receiver("events", "audit", session_id="s1")
    assert subscription.fully_qualified_namespace == "127.0.0.1:9"
    client.close()


def pair_of(primary: int, secondary: int) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_strings(NOBODY.format(port=primary), NOBODY.format(port=secondary))


def test_a_namespace_is_not_paired_with_itself() -> None:
    """An outage would take the namespace away together with its own backlog."""
    with pytest.raises(ValueError, match=r"the same namespace, 127\.0\.0\.1:9"):
        pair_of(9, 9)


def test_a_variable_that_was_not_set_is_told_by_name() -> None:
    """An environment variable that was not set arrives as None or as an empty text; the error names the argument."""
    with pytest.raises(ConfigError, match="a text is needed, not None"):
        PairedServiceBusClient.from_connection_strings(None, NOBODY.format(port=9))  # type: ignore[arg-type]
    client = pair_of(9, 10)
    calls: list[Any] = [client.get_queue_sender, client.get_topic_sender, client.force_failover, client.force_healthy]
    for call in calls:
        for missing in (None, ""):
            with pytest.raises(ValueError, match="Queue/Topic name is missing"):
                call(missing)
        with pytest.raises(TypeError, match="the name of a queue or topic must be a str, not int"):
            call(5)
    assert client.states() == {}
    client.close()


def test_a_sender_has_an_identifier_when_none_was_given() -> None:
    client = pair_of(9, 10)
    for given in (None, ""):
        assert client.get_queue_sender("orders", client_identifier=given).client_identifier.startswith("SBSender-")
    assert client.get_queue_sender("orders", client_identifier="mine").client_identifier == "mine"
    client.close()


def test_an_endless_time_out_is_a_long_one() -> None:
    assert 1e9 == timeout_of(float("inf")) < threading.TIMEOUT_MAX


@pytest.mark.parametrize(
    ("word", "is_plain", "is_told"),
    [
        *((word, True, True) for word in ("1", "true", "Yes", "ON", " 1 ")),
        *((word, False, False) for word in ("", "0", "false", "No", "OFF")),
        *((word, False, True) for word in ("ture", "2", "disabled")),
    ],
)
def test_the_environment_turns_pairing_off_in_the_usual_words(
    word: str, is_plain: bool, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A word that nobody knows leaves it on, and is told by name: an operator must not believe that it was heard."""
    monkeypatch.setenv("PAIRBUS_DISABLED", word)
    client = pair_of(9, 10)
    assert ("plain" in repr(client)) == is_plain
    told = [record.getMessage() for record in caplog.records if f"PAIRBUS_DISABLED={word}" in record.getMessage()]
    assert len(told) == is_told
    assert is_plain or all("it must be one of 1, true, yes, on, 0, false, no, off" in text for text in told)
    client.close()


def test_a_client_that_is_not_paired_cannot_be_failed_over_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state would say failed over while sends go to the primary."""
    monkeypatch.setenv("PAIRBUS_DISABLED", "1")
    client = pair_of(9, 10)
    with pytest.raises(PairingError, match="is not paired"):
        client.force_failover("orders")
    assert client.states() == {}
    client.close()


def test_a_client_that_sent_nothing_starts_no_thread() -> None:
    """Looking at it, and calls that have nothing to do, need no engine."""
    client = pair_of(9, 10)
    sender = client.get_queue_sender("orders")
    sender.send_messages([])
    assert sender.schedule_messages([], datetime.now(UTC)) == []
    sender.cancel_scheduled_messages([])
    assert client.states() == {"orders": State.HEALTHY}
    assert re.fullmatch(r"<PairedSender orders HEALTHY for \d+\.\ds>", repr(sender))
    assert client._life.thread is None
    client.close()


def test_private_attributes_are_not_looked_for_in_the_sdks_client() -> None:
    """Copying and debugging ask for such names, also before there is a client of the primary to ask."""
    client = pair_of(9, 10)
    assert client.fully_qualified_namespace == "127.0.0.1:9"
    with pytest.raises(AttributeError, match="_unheard_of"):
        client._unheard_of  # noqa: B018 - to look is the test
    with pytest.raises(AttributeError, match="_primary"):
        PairedServiceBusClient.__new__(PairedServiceBusClient).fully_qualified_namespace  # noqa: B018
    client.close()


def test_a_side_is_faulted_once() -> None:
    """The first reason counts, and is told once."""
    client = pair_of(9, 10)
    assert client._state.fault("secondary", "first")
    assert not client._state.fault("secondary", "second")
    assert client._state.side_states.reason == "first"
    client.close()


async def test_events_of_a_closed_client_end_at_once() -> None:
    client = pairbus.aio.PairedServiceBusClient.from_connection_strings(NOBODY.format(port=9), NOBODY.format(port=10))
    await client.close()
    async with asyncio.timeout(5):
        assert [event async for event in client.events()] == []


async def test_a_reader_of_events_far_behind_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; a reader that has gone is forgotten."""
    assert aio_client.EVENTS_MAX == 10_000
    monkeypatch.setattr(aio_client, "EVENTS_MAX", 3)
    client = pairbus.aio.PairedServiceBusClient.from_connection_strings(NOBODY.format(port=9), NOBODY.format(port=10))
    events = client.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)  # the reader listens from here on
    for number in range(10):
        client._state.events.tell(BacklogQueueBack(str(number)))
    heard = [await first, await anext(events), await anext(events)]
    assert [event.queue for event in heard if isinstance(event, BacklogQueueBack)] == ["7", "8", "9"]
    await events.aclose()  # type: ignore[attr-defined]
    assert client._state.events.listeners == []
    await client.close()


async def test_a_forked_client_that_knows_its_queues_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred workers that start at once would otherwise list the queues of the secondary a hundred times."""
    ends = NOBODY.format(port=9), NOBODY.format(port=10)
    client = pairbus.aio.PairedServiceBusClient.from_connection_strings(*ends, create_backlog_queues=False)
    await client.pair()
    client._after_fork()
    assert not client._state.is_paired

    async def provision(*args: object) -> list[str]:
        raise AssertionError("nobody is asked")

    monkeypatch.setattr("pairbus.client.engine.provision", provision)
    await client.pair()
    assert client._state.is_paired and len(client._state.pair.rotation.queues) == 10
    await client.close()


def test_time_to_live_that_is_over_is_refused_before_diverting() -> None:
    """A deadline minus now, for example: a backlog message with it could only be dead-lettered."""
    message = ServiceBusMessage("x", message_id="m")
    message.raw_amqp_message.header = AmqpMessageHeader(time_to_live=-1000)
    with pytest.raises(ServiceBusError):
        outgoing_of(message)
