"""A list that was split on its way to the backlog, and then something happens: each message is in one place."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.client.errors import PartlySent
from pairbus.pairing.events import BacklogQueueFailed, Diverted, Event, MaybeDuplicated
from tests.client.messages import id_of
from tests.client.world import Client, Stage, message
from tests.scripted.script import Accept, Delay, Detach, LoseAnswer, Reject
from tests.sdk.flavours import Flavour

FULL = Reject("amqp:resource-limit-exceeded")
FULL_LATER = Delay(1.0, FULL)
"The next queue refuses so late that the thread of events has healed the entity."
IDS = ["a", "b", "c", "d"]


def two_parts() -> list[Any]:
    """Make four messages that fit one batch of 256 KB as they are; only three of their copies for a backlog queue
    do.
    """
    return [message("x" * 65_490, message_id=one) for one in IDS]


def ids_of(payloads: list[bytes]) -> list[str]:
    return [id_of(payload) for payload in payloads]


def healed_when_a_queue_fails(stage: Stage, flavour: Flavour, path: str) -> Client:
    """A client that is failed over, and whose entity comes back as soon as a backlog queue goes."""
    events: list[Event] = []

    def heal(event: Event) -> None:
        events.append(event)
        if isinstance(event, BacklogQueueFailed):
            client.client.force_healthy(path)

    client = stage.client(flavour, on_event=heal)
    client.events = events
    client.client.force_failover(path)
    return client


async def test_what_the_backlog_has_stored_does_not_go_home_a_second_time(stage: Stage, flavour: Flavour) -> None:
    """The primary came back between two parts of a list: the rest goes there, and only the rest."""
    client = healed_when_a_queue_fails(stage, flavour, "orders")
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", FULL, times=1)
    stage.secondary.on("transfer", FULL_LATER)
    await client.sender("orders").send(two_parts())
    assert ids_of(stage.in_backlog()) == ["a", "b", "c"]
    assert ids_of(stage.primary.stored("orders")) == ["d"]
    assert client.diverted_ids == ["a", "b", "c"]
    assert client.client.counters["entities"]["orders"]["sent"] == 1


async def test_possible_copy_in_a_silent_backlog_queue_is_reported(stage: Stage, flavour: Flavour) -> None:
    """The copy has no mark, and may come home when the destination has forgotten the id of the message that went
    there directly.
    """
    client = healed_when_a_queue_fails(stage, flavour, "orders")
    stage.secondary.on("transfer", LoseAnswer())
    await client.sender("orders").send(message("x", message_id="a"))
    assert ids_of(stage.primary.stored("orders")) == ["a"] and set(ids_of(stage.in_backlog())) == {"a"}
    [told] = client.told(MaybeDuplicated)
    assert (told.path, told.message_id) == ("orders", "a")
    assert told.reason.endswith(" did not answer and may have stored it too")


async def test_possible_copy_is_reported_when_another_queue_accepts(stage: Stage, flavour: Flavour) -> None:
    client = stage.client(flavour)
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message("x", message_id="a"))
    stage.secondary.on("transfer", LoseAnswer(Detach()), times=1)
    await sender.send(message("x", message_id="b"))
    assert sorted(ids_of(stage.in_backlog())) == ["a", "b", "b"]
    assert [told.message_id for told in client.told(MaybeDuplicated)] == ["b"]


async def test_an_error_of_the_primary_tells_what_the_backlog_has_stored_before(stage: Stage, flavour: Flavour) -> None:
    """A caller who sends the whole list again would store a part of it twice."""
    client = healed_when_a_queue_fails(stage, flavour, "orders")
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", FULL, times=1)
    stage.secondary.on("transfer", FULL_LATER)
    stage.primary.on("transfer", Reject("amqp:not-found"))
    error = await client.sender("orders").error(two_parts())
    assert isinstance(error, PartlySent)
    assert (error.stored_ids, error.unsent_ids) == (["a", "b", "c"], ["d"])
    assert client.diverted_ids == ["a", "b", "c"]


@pytest.mark.parametrize("second_takes_it", [True, False])
async def test_every_part_is_told_with_the_queue_that_has_it(
    stage: Stage, flavour: Flavour, second_takes_it: bool
) -> None:
    """The journey of a diverted message can be read, also when the rest of its list found no place."""
    client = stage.client(flavour)
    client.client.force_failover("orders")
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", FULL, times=1 if second_takes_it else None)
    sender = client.sender("orders")
    if second_takes_it:
        await sender.send(two_parts())
    else:
        assert isinstance(await sender.error(two_parts()), PartlySent)
    for queue in stage.BACKLOG:
        told = [one for event in client.told(Diverted) if event.queue == queue for one in event.message_ids]
        assert told == ids_of(stage.secondary.stored(queue))


async def test_every_part_that_a_silent_backlog_queue_may_have_is_told(stage: Stage, flavour: Flavour) -> None:
    """The answer to the second part is lost, and to its repetition not; then that to the third, and another queue takes
    it: all of the second and third may come home twice."""
    client = stage.client(flavour, attempt_timeout=1)
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message("x", message_id="first"))
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", LoseAnswer(Detach()), times=1)
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", LoseAnswer(), times=1)
    await sender.send([message("x" * 65_490, message_id=one) for one in "abcdefghi"], timeout=20)
    stored = ids_of(stage.in_backlog())
    twice = sorted({one for one in stored if stored.count(one) > 1})
    assert len(twice) >= 6
    assert sorted(told.message_id for told in client.told(MaybeDuplicated)) == twice
