"""Receivers that wait for a session: their token, and the end of a wait."""

from __future__ import annotations

import time

import pytest

from pairbus.amqp.connection import Connection, ConnectionSettings
from pairbus.amqp.events import Delivery
from pairbus.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Modified,
    Source,
    Target,
    Transfer,
)
from pairbus.amqp.types import Symbol
from pairbus.auth.sas import LISTEN, Grant
from pairbus.broker.entities.draft import Draft
from pairbus.broker.strict import LENIENT
from pairbus.broker.wire import outlet
from pairbus.broker.wire.session_links import SESSION_FILTER
from tests.broker.strict_world import Client, message


async def waiting_client() -> Client:
    """Give a client that waits for the next session of a queue, with a token for an hour."""
    client = Client(LENIENT)
    client.core = Connection(ConnectionSettings("client"), None)
    await client.open()
    await client.queue("talks", requires_session=True)
    session = await client.session()
    client.peer.grants.put("talks", Grant(frozenset({LISTEN}), int(time.time()) + 3600, "talks"))
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): None})
    session.new_receiver("from").attach(source=source, target=Target(address="client"))
    await client.turn()
    assert client.all(Attach) == []
    return client


def end_tokens(client: Client) -> None:
    client.namespace.real_ms = lambda: (int(time.time()) + 7200) * 1000


async def test_receiver_that_waits_for_a_session_ends_with_its_token() -> None:
    """It has no link yet that could be detached: its attach is refused."""
    client = await waiting_client()
    end_tokens(client)
    client.peer.grants.drop_expired(client.namespace.real_ms() / 1000)
    client.peer._drop_unauthorised_links()
    await client.turn()
    (detach,) = client.all(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:unauthorized-access"


async def test_session_is_not_granted_after_the_token_has_ended() -> None:
    """A message may come before the next look at the tokens."""
    client = await waiting_client()
    end_tokens(client)
    queue = client.namespace.catalog.queues["talks"]
    queue.send([Draft(b"", message_id="one", session_id="a")], client.namespace.now_ms(), lambda refusal: None)
    await client.turn()
    (detach,) = client.all(Detach)
    assert detach.error is not None and detach.error.condition == "amqp:unauthorized-access"
    assert client.all(Transfer) == []


async def test_link_of_a_lost_session_is_detached_after_a_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that waits exactly as long as the lock lasts ends its wait without an error. A message that comes in
    that time is for the next holder of the session.
    """
    monkeypatch.setattr(outlet, "LOST_SESSION_GRACE_S", 3600.0)
    client = await Client(LENIENT).open()
    await client.queue("talks", requires_session=True, lock_duration_ms=5_000)
    session = await client.session()
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): "a"})
    link = session.new_receiver("from")
    link.attach(source=source, target=Target(address="client"))
    link.grant(1)
    await client.turn()
    queue, now_ms = client.namespace.catalog.queues["talks"], client.namespace.now_ms()
    queue.run_due(now_ms + 5_000)
    queue.send([Draft(b"", message_id="one", session_id="a")], now_ms, lambda refusal: None)
    await client.turn()
    assert not client.all(Detach) and not client.all(Transfer)
    session.new_receiver("next").attach(source=source, target=Target(address="client"))
    await client.turn()
    assert client.all(Attach)[-1].source is not None, "another receiver may have the session"


@pytest.mark.parametrize("state", [Accepted(), Modified(True, False)], ids=["complete", "abandon"])
async def test_settlement_in_the_grace_names_the_lost_session(state: Accepted | Modified) -> None:
    """The SDKs then raise the error that tells the application to accept the session again."""
    client = await Client(LENIENT).open()
    await client.queue("talks", requires_session=True, lock_duration_ms=5_000)
    session = await client.session()
    (await client.sender(session, "talks")).send(message("one", group_id="a"), b"1")
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): "a"})
    link = session.new_receiver("from")
    link.attach(source=source, target=Target(address="client"))
    link.grant(1)
    await client.turn()
    (delivery,) = client.all_events(Delivery)
    client.namespace.catalog.queues["talks"].run_due(client.namespace.now_ms() + 5_000)
    link.settle(delivery.delivery_id, delivery.delivery_id, state.encode(), 1, settled=False)
    await client.turn()
    answer = client.all(Disposition)[-1]
    assert answer.state.error.condition == "com.microsoft:session-lock-lost"


async def test_lost_session_is_told_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlet, "LOST_SESSION_GRACE_S", 0.01)
    client = await Client(LENIENT).open()
    await client.queue("talks", requires_session=True, lock_duration_ms=5_000)
    session = await client.session()
    source = Source(address="talks", filter={Symbol(SESSION_FILTER): "a"})
    session.new_receiver("from").attach(source=source, target=Target(address="client"))
    await client.turn()
    client.namespace.catalog.queues["talks"].run_due(client.namespace.now_ms() + 5_000)
    detach = await client.until(Detach)
    assert detach.error is not None and detach.error.condition == "com.microsoft:session-lock-lost"
