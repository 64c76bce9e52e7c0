"""A log at the default level ends with the state that holds: each return is told as loudly as what it ends."""

from __future__ import annotations

import logging

import pytest

from pairbus.client.event_outbox import EventOutbox
from pairbus.pairing import events as kinds
from pairbus.pairing.events import Event
from pairbus.telemetry.counters import Counters

ENDED_BY: list[tuple[Event, Event]] = [
    (kinds.Suspected("orders", "lost", 60.0), kinds.Recovered("orders", 3.0, 0, "a send")),
    (kinds.FailedOver("orders", 60.0, 4, "lost", False), kinds.Recovered("orders", 312.4, 40, "a ping")),
    (kinds.FailedOver("orders", 60.0, 4, "lost", False), kinds.PairingCleared("contoso")),
    (kinds.BacklogQueueFailed("b/0", "full", 60.0), kinds.BacklogQueueBack("b/0")),
    (kinds.PrimaryUnreachable("contoso", "refused", 3.0, 1.0), kinds.PrimaryReachable("contoso", 9.0)),
    (kinds.Unpaired("contoso", "fabrikam", "refused"), kinds.Paired("contoso", "fabrikam", 10)),
    (kinds.Spooled("orders", 1, 1), kinds.SpoolForwarded("orders", 1, "primary", 0, ("id",))),
]


@pytest.mark.parametrize(("trouble", "end"), ENDED_BY, ids=lambda event: type(event).__name__)
def test_the_last_warning_is_the_return(trouble: Event, end: Event, caplog: pytest.LogCaptureFixture) -> None:
    events = EventOutbox(Counters(lambda: 0), None, None)
    with caplog.at_level(logging.WARNING, logger="pairbus"):
        events.tell(trouble)
        events.tell(end)
    assert caplog.messages == [str(trouble), str(end)]


def test_pairing_at_the_start_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It ends no trouble; nor do forwarded messages while others wait in the spool."""
    events = EventOutbox(Counters(lambda: 0), None, None)
    with caplog.at_level(logging.WARNING, logger="pairbus"):
        events.tell(kinds.Paired("contoso", "fabrikam", 10))
        events.tell(kinds.SpoolForwarded("orders", 1, "primary", 5, ("id",)))
    assert caplog.messages == []


def test_followers_hear_events_in_order_although_a_listener_causes_one() -> None:
    """`on_event` of an asyncio client may force an entity, which tells an event while the first one is being told."""
    heard: list[str] = []

    def force(event: Event) -> None:
        if isinstance(event, kinds.Suspected):
            events.tell(kinds.FailedOver("orders", 0.0, 1, "lost", True))

    events = EventOutbox(Counters(lambda: 0), None, force)
    events.tell_followers = lambda line: heard.append(line["event"])
    events.tell(kinds.Suspected("orders", "lost", 60.0))
    assert heard == ["Suspected", "FailedOver"]
