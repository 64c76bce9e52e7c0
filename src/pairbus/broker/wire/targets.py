"""The entity and the box that an address names, and whether a client can send there or receive from there."""

from __future__ import annotations

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.broker.boxes.box import Box
from pairbus.broker.catalog import Catalog
from pairbus.broker.description.common import forwards_to
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.management import RequestTarget
from pairbus.broker.refusal import Refusal, dead_letters_take_no_sends, entity_not_found
from pairbus.broker.wire.address import LinkAddress

SESSION_REQUIRED = (
    "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
)
NO_SESSIONS = "A sessionful message receiver cannot be created on an entity that does not require sessions."


def find_target(catalog: Catalog, address: LinkAddress, host: str) -> RequestTarget:
    """Look up the entity and the box that the address names, or raise the Refusal. `host`: as the client calls it."""
    entity = catalog.find(address.entity)
    if entity is None or isinstance(entity, Rule):
        raise entity_not_found(f"sb://{host}/{address.text}")
    if isinstance(entity, Topic):
        if address.is_dead_letter or address.is_transfer_dead_letter:
            raise Refusal(NOT_ALLOWED, f"The topic '{entity.path}' has no dead-letter queue; its subscriptions have.")
        return RequestTarget(entity, None)
    assert isinstance(entity, Queue | Subscription)
    box = entity.dead if address.is_dead_letter else entity.transfer if address.is_transfer_dead_letter else entity.main
    return RequestTarget(entity, box)


def destination_of(target: RequestTarget) -> Queue | Topic:
    """Return the entity when a client can send to it now, or raise the Refusal."""
    entity = target.entity
    if isinstance(entity, Subscription):
        raise Refusal(
            NOT_ALLOWED,
            f"Messages cannot be sent to the subscription '{entity.path}';"
            f" send to its topic '{entity.description.topic}'.",
        )
    if isinstance(entity, Queue) and target.box is not entity.main:
        raise dead_letters_take_no_sends(entity.path)
    entity.check_send()
    return entity


def source_of(target: RequestTarget, *, wants_session: bool = False) -> tuple[Queue | Subscription, Box]:
    """Return the entity and its box when a client can receive from it now, or raise the Refusal."""
    entity, box = _received_from(target)
    entity.check_receive()
    forward_to = forwards_to(entity.description, "forward_to")
    if forward_to is not None and box is entity.main:
        raise Refusal(
            NOT_ALLOWED, f"Messages cannot be received from '{entity.path}', which forwards them to '{forward_to}'."
        )
    _check_session(box, wants_session)
    return entity, box


def box_of(target: RequestTarget) -> tuple[Queue | Subscription, Box]:
    """Return the entity and its box, whose locks a client can settle without a session, or raise the Refusal."""
    entity, box = _received_from(target)
    _check_session(box, False)
    return entity, box


def _check_session(box: Box, wants_session: bool) -> None:
    if wants_session != (box.sessions is not None):
        raise Refusal(NOT_ALLOWED, NO_SESSIONS if wants_session else SESSION_REQUIRED)


def _received_from(target: RequestTarget) -> tuple[Queue | Subscription, Box]:
    entity = target.entity
    if isinstance(entity, Topic):
        raise Refusal(
            NOT_ALLOWED,
            f"Messages cannot be received from the topic '{entity.path}';"
            f" receive from a subscription, '{entity.path}/Subscriptions/<name>'.",
        )
    assert target.box is not None
    return entity, target.box
