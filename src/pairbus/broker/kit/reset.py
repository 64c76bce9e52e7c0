"""Reset: every entity of a namespace is empty, in one commit.

Emptying an entity message by message would take long when it holds many, and a kill in between would leave half of
them. Instead an empty entity takes its place: same name and settings, new id. One commit describes all the new ones and
drops all the old ones; the rows of these go step by step as after a deletion (entities/sweep.py).

    written    PutEntity and DropEntity of every entity, in one group
    committed  the empty entities are in the catalog, links lead to them; the old ones take nothing more
    barrier    sends and settlements that met the old entities have been answered; they happened before the reset, and
               the highest sequence number that they got is written.
               A send that waited for another one with its message id goes on in the empty entity
    swept      the rows of the old entities are deleted; after a kill the next start goes on with it

When the commit fails, no entity has changed.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from pairbus.amqp.link import Link
from pairbus.broker.boxes.box import Box
from pairbus.broker.catalog import Catalog
from pairbus.broker.catalog_writer import CatalogWriter
from pairbus.broker.description import path_key
from pairbus.broker.entities.entity import Entity, EntityDescription
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.store import Delete, DropEntity, Insert, PutEntity, Store, StoredMessage, box_of
from pairbus.broker.wire.inlet import Inlet
from pairbus.broker.wire.link_handler import EntityLink, end_of
from pairbus.broker.wire.outlet import Outlet
from pairbus.broker.wire.session_links import Applicant
from pairbus.errors import ConfigError

EntityFate = Literal["keep", "delete"]
"Choice of a reset: keep the entities, or delete them."


class ResetHooks(Protocol):
    """Part of the namespace in a reset."""

    def make(self, entity_id: int, description: EntityDescription, last_seq: int = 0) -> Entity: ...
    def replaced(self, before: Entity, after: Entity) -> None: ...
    def deleted(self, entity: Entity) -> None: ...


def checked_entities(value: object) -> EntityFate:
    """Return `keep` or `delete`; ConfigError for every other value."""
    for known in get_args(EntityFate):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f"entities must be one of {', '.join(get_args(EntityFate))}, not {value!r}")


async def empty_all(catalog: Catalog, writer: CatalogWriter, store: Store, hooks: ResetHooks) -> None:
    """Put an empty entity in the place of each one; StoreError: no entity has changed."""
    async with writer.all_turns():
        holders = [(holder, writer.next_id()) for holder in catalog.holders()]
        stored = [_write(store, holder, new_id) for holder, new_id in holders]
        await writer.commit()
        for (holder, new_id), last_seq in zip(holders, stored, strict=True):
            hooks.replaced(holder, _replace(catalog, holder, new_id, hooks))
            if holder.last_seq > last_seq:  # the old entity took sends until the commit
                _keep_number(store, new_id, holder.last_seq)
        await writer.barrier()
        for holder, _ in holders:
            hooks.deleted(holder)


def _write(store: Store, holder: Entity, new_id: int) -> int:
    """Write the empty entity and the drop of the old one; return the highest sequence number that was written."""
    store.write(PutEntity(new_id, holder.description.to_json()))
    if holder.last_seq:
        _keep_number(store, new_id, holder.last_seq)
    store.write(DropEntity(holder.entity_id))
    return holder.last_seq


def _keep_number(store: Store, entity_id: int, last_seq: int) -> None:
    """Write the highest sequence number, as that of a row that the same commit deletes again: numbers never repeat."""
    last = StoredMessage(last_seq, b"", n=store.number())
    store.write(Insert(box_of(entity_id), [last]))
    store.write(Delete(box_of(entity_id), [last.n]))


def _replace(catalog: Catalog, before: Entity, new_id: int, hooks: ResetHooks) -> Entity:
    """Put an empty entity into the catalog. A topic comes before its subscriptions."""
    after = hooks.make(new_id, before.description, last_seq=before.last_seq)
    match before, after:
        case Queue(), Queue():
            catalog.queues[path_key(before.path)] = after
            before.give_way(after)
        case Topic(), Topic():
            for subscription in before.subscriptions.values():
                after.index.add(subscription)
            catalog.topics[path_key(before.path)] = after
            before.give_way(after)
        case Subscription(), Subscription():
            for rule in before.rules.values():
                after.put_rule(rule)
            catalog.topic(before.description.topic).index.add(after)
            before.close()
    return after


def relink(link: Link, before: Entity, after: Entity, now_ms: int) -> Inlet | Outlet | Applicant | None:
    """Lead a link to the empty entity; None: it led elsewhere. A receiver keeps its session, without messages."""
    end = end_of(link)
    if not isinstance(end, EntityLink) or end.entity is not before:
        return None
    if isinstance(end, Inlet):
        assert isinstance(after, Queue | Topic)
        end.entity = after
        return end
    assert isinstance(end, Outlet | Applicant)
    assert isinstance(before, Queue | Subscription) and isinstance(after, Queue | Subscription)
    end.lead_to(after, box_like(end.box, before, after))
    if isinstance(end, Outlet) and end.hold is not None and after.sessions is not None:
        end.hold = after.sessions.accept(end.hold.session.id, end, now_ms)
    return end


def box_like(box: Box, before: Queue | Subscription, after: Queue | Subscription) -> Box:
    """Return the box of the new entity that is what `box` was in the old one."""
    if box is before.main:
        return after.main
    return after.dead if box is before.dead else after.transfer
