"""Who may send and receive over HTTP."""

from __future__ import annotations

import time

import pytest

from pairbus.auth.sas import sign
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY
from tests.rest.world import HttpWorld

SEND = ("POST", "orders/messages")
LOCK = ("POST", "orders/messages/head?timeout=0")
TAKE = ("DELETE", "orders/messages/head?timeout=0")


async def status(world: HttpWorld, request: tuple[str, str], token: str) -> int:
    body = b"x" if request == SEND else None
    return (await world.ask(*request, body, token=token)).status


@pytest.mark.parametrize("scope", ["", "orders", "orders/messages", "ORDERS/Messages/"])
async def test_token_of_a_queues_key_opens_what_the_key_may(world: HttpWorld, scope: str) -> None:
    """Clients sign for the namespace, the queue, or the address of the request; a key of the queue for the last two."""
    assert await status(world, SEND, world.token(scope)) == 201
    if scope:
        assert await status(world, SEND, world.token(scope, "writer", "write")) == 201
        assert await status(world, LOCK, world.token(scope, "writer", "write")) == 401
        assert await status(world, SEND, world.token(scope, "reader", "second")) == 401
    assert await status(world, TAKE, world.token("orders", "reader", "second")) == 200


async def test_token_for_an_address_opens_this_address(world: HttpWorld) -> None:
    """One for the head opens no other request, and one for a locked message settles this one only."""
    await world.send("orders")
    head = world.token("orders/messages/head")
    assert await status(world, SEND, head) == 401
    location = (await world.ask(*LOCK, token=head)).headers["Location"]
    path = location.removeprefix(world.url(""))
    assert (await world.ask("DELETE", location, token=head)).status == 401
    assert (await world.ask("DELETE", location, token=world.token(f"{path[:-1]}0"))).status == 401
    assert (await world.ask("DELETE", location, token=world.token(path))).status == 200


@pytest.mark.parametrize(
    "scope", ["other", "other/messages", "orders/messages/head/more", "order", "orders/$management"]
)
async def test_token_for_elsewhere_is_refused(world: HttpWorld, scope: str) -> None:
    """Path segments are compared as a whole."""
    assert await status(world, TAKE, world.token(scope)) == 401
    assert await status(world, SEND, world.token(scope)) == 401


async def test_wrong_tokens_are_refused_with_the_xml_of_an_error(world: HttpWorld) -> None:
    """None of them tells whether there is such a queue."""
    old = sign(world.url("orders"), ROOT_KEY_NAME, WELL_KNOWN_KEY, int(time.time()) - 3600)
    for token in ("nonsense", "Bearer eyJhbGciOiJub25lIn0.e30.", old, world.token("orders", ROOT_KEY_NAME, "wrong")):
        for path in ("orders/messages", "absent/messages"):
            answer = await world.ask("POST", path, b"x", token=token)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "SharedAccessSignature")
            assert answer.body.startswith(b"<Error><Code>401</Code><Detail>SubCode=40100. ")
    async with world.session.post(world.url("orders/messages"), data=b"x") as without:
        assert without.status == 401
    assert world.waiting() == 0


async def test_key_of_a_topic_opens_its_subscriptions(world: HttpWorld) -> None:
    """A token for the subscription too, and for its dead letters."""
    await world.send("events")
    for scope in ("events", "events/subscriptions/audit", "events/Subscriptions/audit/messages/head"):
        answer = await world.ask("POST", "events/subscriptions/audit/messages/head?timeout=5", token=world.token(scope))
        assert answer.status == 201
        assert (await world.ask("PUT", answer.headers["Location"])).status == 200
