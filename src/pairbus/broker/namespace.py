"""One namespace: its entities, their receivers, and work that falls due. All code here runs on the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from pairbus.amqp.errors import CONNECTION_FORCED
from pairbus.amqp.link import Link
from pairbus.auth.sas import KeyRing
from pairbus.broker.admin import D, QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.boxes.box import Box
from pairbus.broker.boxes.payloads import Payloads
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.catalog import (
    Catalog,
    CatalogEntity,
    boxes_of,
    queue_info,
    subscription_info,
    topic_info,
)
from pairbus.broker.catalog_writer import CatalogWriter
from pairbus.broker.description import (
    AnyDescription,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    description_from_json,
    path_key,
)
from pairbus.broker.description.common import forwards_to
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.entity import Entity, EntityDescription, NamespaceParts
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.entities.subscription import Rule, Subscription
from pairbus.broker.entities.sweep import Remains, Sweeper
from pairbus.broker.entities.topic import Topic
from pairbus.broker.forward import BoxForwarder
from pairbus.broker.kit.clock import NamespaceClock
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.kit.reset import EntityFate, checked_entities, empty_all, relink
from pairbus.broker.monitoring.changes import Changes
from pairbus.broker.monitoring.health import Health
from pairbus.broker.monitoring.meter import NamespaceMeter
from pairbus.broker.outages import NamespaceFaults
from pairbus.broker.refusal import SERVER_BUSY, Refusal, entity_not_found
from pairbus.broker.rest.waiting import WaitingRequest, WaitingRequests
from pairbus.broker.store import IndexRow, RecoveredEntity, Store, entity_of
from pairbus.broker.strict import LENIENT, Strictness
from pairbus.broker.timetable import Timetable
from pairbus.broker.wire.dispatch import Dispatcher
from pairbus.broker.wire.inlet import Inlet
from pairbus.broker.wire.link_handler import EntityLink, end_of
from pairbus.broker.wire.outlet import Outlet
from pairbus.broker.wire.peer import Peer
from pairbus.broker.wire.requests import AnswerTurns
from pairbus.broker.wire.session_links import Applicant, SessionDispatcher
from pairbus.broker.wire.strangers import StrangersLog
from pairbus.errors import EntityNotFound, InvalidDescription, StoreError

logger = logging.getLogger("pairbus.broker")

_CLASSES: dict[type, Any] = {
    QueueDescription: Queue,
    TopicDescription: Topic,
    SubscriptionDescription: Subscription,
}
MANY_ENTITIES = 1000
SWEEP_PAUSE_S = 1.0  # before the rows of deleted entities are tried again


class Namespace:
    """The entities of one namespace on one store. `now_ms` is the only clock of the entities (see kit/clock.py).

    `steady_ms`: a clock that nobody can set; None: nobody sets `now_ms` either.
    """

    def __init__(  # noqa: PLR0913 - the parts of a namespace
        self,
        name: str,
        store: Store,
        keys: KeyRing,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        meter: NamespaceMeter | None = None,
        strictness: Strictness = LENIENT,
        operations_per_s: float | None = None,
        recorder: Recorder | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.name = name
        self.budget = budget or MemoryBudget()
        "Bytes that the namespaces of this process may have in memory."
        self.strictness = strictness
        self.store = store
        self.keys = keys
        self.real_ms = now_ms
        "Machine's clock."
        self.changes = Changes()
        self.clock = NamespaceClock(now_ms, self._catch_up, steady_ms=steady_ms or now_ms, stepped=self._stepped)
        self.now_ms = self.clock.now_ms
        self.meter = meter
        self.recorder = recorder
        "Recorder of accepted messages, for tests; None: there is none."
        self.strangers = StrangersLog(name, loop)
        self.peers: set[Peer] = set()
        self.links: set[Link] = set()
        "Links to entities; they are told when their queue is deleted or disabled."
        self.waiting_requests = WaitingRequests(
            self.budget,
            now_ms=self.now_ms,
            dispatcher_of=lambda box: self._dispatchers.get(box),
            add=self._await_message,
        )
        "Requests over HTTP that wait for a message."
        self._loop = loop
        self.answer_turns = AnswerTurns(loop)
        self.faults = NamespaceFaults(self, loop, operations_per_s=operations_per_s)
        "Faults that are switched on."
        self.catalog = Catalog()
        self._writer = CatalogWriter(name, self.catalog, store, self, loop=loop, now_ms=self.now_ms)
        self._health = Health(store, loop)
        self._dispatchers: dict[Box, Dispatcher | SessionDispatcher] = {}
        self._forwarders: dict[Box, BoxForwarder] = {}
        self._timetable = Timetable(
            name,
            self.catalog,
            self._writer,
            loop=loop,
            now_ms=self.now_ms,
            used_ms=self._used_ms,
            is_forwarding=self._is_forwarding,
        )
        self._is_stopping = False
        self._has_frozen = False
        "True when the entities found at the start are kept out of garbage collection."
        self._payloads = Payloads(self.budget.index.share())
        self._parts = NamespaceParts(store, self._payloads, self.budget, self._on_ready)
        self._sweeper = Sweeper(store, self._payloads, retry_later=lambda step: loop.call_later(SWEEP_PAUSE_S, step))

    def __repr__(self) -> str:
        counts = f"queues={len(self.catalog.queues)} topics={len(self.catalog.topics)} peers={len(self.peers)}"
        return f"<Namespace {self.name} {counts}>"

    # ── life ──

    def recover(self) -> list[str]:
        """Read the contents of the store; return one sentence for each damage."""
        # No object made here becomes garbage. Repeated collections would take as long as the rest, and later, with
        # thousands of entities, each collection would hold every client up for most of a second.
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            damage = self._recover()
            if len(self.catalog.queues) + len(self.catalog.topics) >= MANY_ENTITIES:
                self._has_frozen = True
                gc.freeze()
        finally:
            if is_collecting:
                gc.enable()
        return damage

    def _recover(self) -> list[str]:
        recovered = self.store.recover()
        self._writer.last_id = recovered.last_entity_id
        damage = recovered.damage  # reading the index adds damage
        readable: list[tuple[RecoveredEntity, AnyDescription]] = []
        for each in recovered.entities:
            try:
                readable.append((each, description_from_json(each.description)))
            except (ValueError, TypeError, InvalidDescription) as error:
                damage.append(f"entity {each.entity_id}: its description cannot be read ({error}); it is left alone")
        entities = {each.entity_id: self._recovered(each, description) for each, description in readable}
        damage += self._recover_rows(entities, recovered.dropped)
        # Topics before their subscriptions, subscriptions before their rules; each kind in the order of creation.
        for kind in (QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription):
            for each, description in readable:
                if isinstance(description, kind):
                    try:
                        self._writer.add(entities[each.entity_id])
                    except EntityNotFound as error:
                        damage.append(f"{kind.KIND} '{description.path}': {error}; it is left alone")
        return damage

    def _recovered(self, recovered: RecoveredEntity, description: AnyDescription) -> CatalogEntity:
        if isinstance(description, RuleDescription):
            return Rule(recovered.entity_id, description)
        return self.make(recovered.entity_id, description, last_seq=recovered.last_seq)

    def _recover_rows(self, entities: Mapping[int, CatalogEntity], dropped: Iterable[int]) -> list[str]:
        """Give every row of the index to its entity, and the rows of dropped entities to the sweeper."""
        self._payloads.recover(self.store.payloads())
        holders = {number: entity for number, entity in entities.items() if not isinstance(entity, Rule)}
        remains: dict[int, list[IndexRow]] = {entity_id: [] for entity_id in dropped}
        takers: dict[int, Callable[[IndexRow], bool]] = {}
        incomplete = 0
        for row in self.store.index():
            if (take := takers.get(row[1])) is not None:
                incomplete += not take(row)
                continue
            entity_id = entity_of(row.box)
            holder = holders.get(entity_id)
            if holder is not None:
                takers[row.box] = take = holder.taker(row.box)
                incomplete += not take(row)
            elif entity_id in remains:
                remains[entity_id].append(row)
        states: dict[int, list[int]] = {entity_id: [] for entity_id in remains}
        for state in self.store.session_states():
            holder = holders.get(state.entity_id)
            if isinstance(holder, Queue | Subscription) and holder.sessions is not None:
                holder.sessions.recover_state(state)
            elif state.entity_id in states:
                states[state.entity_id].append(state.n)
        for holder in holders.values():
            holder.recovered(self.now_ms())
        for entity_id, rows in remains.items():
            self._sweeper.recover(entity_id, rows, states[entity_id])
        if incomplete:
            return [f"{self.name}: {incomplete} messages are not served because their payloads are missing"]
        return []

    async def close(self) -> None:
        """Finish the commits under way and answer them, tell every client, release the store.

        Work that falls due from now on is left to the next start, which finds it in the store.
        """
        self._is_stopping = True
        self.changes.close()
        self.faults.close()
        if self._has_frozen:
            gc.unfreeze()
        self._sweeper.stop()
        self._timetable.stop()
        for holder in self.catalog.holders():
            holder.stop()
        for forwarder in self._forwarders.values():
            forwarder.stop()
        for peer in self.peers:
            peer.stop_reading()
        # Messages that receive-and-delete has already deleted still leave with the commits below; no more are taken.
        for dispatcher in self._dispatchers.values():
            dispatcher.outlets.clear()
        self.waiting_requests.close(Refusal(SERVER_BUSY, "The broker is shutting down."))
        try:
            await self._writer.commit()
        except StoreError as error:
            logger.error("%s: the last commit failed, its senders have been told: %s", self.name, error)
        for peer in list(self.peers):
            peer.close(CONNECTION_FORCED, "The broker is shutting down.")
        await self.store.close()
        for holder in self.catalog.holders():
            holder.leave_budget()  # other namespaces of the process go on with the same budget
        self._payloads.leave_budget()

    def _stepped(self, step_ms: int) -> None:
        """Shift all that lasts, because the machine's clock was set."""
        logger.warning("%s: the machine's clock was set by %+.1f s; locks go on", self.name, step_ms / 1000)
        for holder in self.catalog.holders():
            holder.shift(step_ms)
            self.changed(holder)
        for peer in self.peers:
            peer.transactions.shift(step_ms)

    async def trouble(self) -> str | None:
        """Return why messages cannot be stored now; None when they can."""
        return await self._health.trouble()

    # ── queues ──

    def queue(self, path: str) -> Queue | None:
        return self.catalog.queues.get(path_key(path))

    def wake(self, box: Box, outlet: Outlet | None = None) -> None:
        """Wake the receivers of the box, or this one: there may be a message. A box of a deleted queue has none."""
        dispatcher = self._dispatchers.get(box)
        if dispatcher is not None:
            dispatcher.wake(outlet)

    def wake_later(self, box: Box) -> None:
        dispatcher = self._dispatchers.get(box)
        if dispatcher is not None:
            dispatcher.wake_later()

    def listen(self, outlet: Outlet) -> None:
        if not self._is_stopping:
            self._dispatcher(outlet.entity, outlet.box).add(outlet)

    def _await_message(self, request: WaitingRequest) -> None:
        """Put a request over HTTP into the line of its box, which has no sessions."""
        dispatcher = self._dispatcher(request.entity, request.box)
        assert isinstance(dispatcher, Dispatcher)
        dispatcher.add(request)

    def apply(self, applicant: Applicant) -> None:
        """Take the application of a link for a session."""
        dispatcher = self._dispatcher(applicant.entity, applicant.box)
        if not self._is_stopping and isinstance(dispatcher, SessionDispatcher):
            dispatcher.apply(applicant)

    def stop_applying(self, applicant: Applicant) -> None:
        dispatcher = self._dispatchers.get(applicant.box)
        if isinstance(dispatcher, SessionDispatcher):
            dispatcher.stop_applying(applicant)

    def stop_listening(self, outlet: Outlet) -> None:
        dispatcher = self._dispatchers.get(outlet.box)
        if dispatcher is not None:
            dispatcher.remove(outlet)
            outlet.entity.touch(self.now_ms())  # where the receiver waited until now

    def make(self, entity_id: int, description: EntityDescription, last_seq: int = 0) -> Entity:
        """Make the object of an entity that holds messages."""
        holder: Entity = _CLASSES[type(description)](
            entity_id, description, self._parts, now_ms=self.now_ms(), last_seq=last_seq
        )
        if isinstance(holder, Destination):
            holder.recorder = self.recorder
        if isinstance(description, SubscriptionDescription) and isinstance(holder, Subscription) and holder.sessions:
            topic = description.topic  # by its name: a reset makes another topic
            holder.sessions.check_quota = lambda: self.catalog.topic(topic).check_quota()
        return holder

    def _on_ready(self, holder: Entity, box: Box) -> None:
        self.wake(box)
        if isinstance(holder, Receivable) and box is holder.dead:
            self.changes.note()
        self.changed(holder)
        if box in self._forwarders:
            self._forwarders[box].wake()

    def _forward(self, holder: Entity) -> None:
        """Make the forwarders that the settings of the entity ask for, and stop the others."""
        if not isinstance(holder, Receivable):
            return
        settings = holder.description
        for box, setting in ((holder.main, "forward_to"), (holder.dead, "forward_dead_lettered_to")):
            path = forwards_to(settings, setting)
            forwarder = self._forwarders.get(box)
            if forwarder is not None and forwarder.path != path:
                self._forwarders.pop(box).stop()
            if path is not None and box not in self._forwarders:
                self._forwarders[box] = BoxForwarder(
                    holder,
                    box,
                    path,
                    self.store,
                    find=self._destination,
                    loop=self._loop,
                    now_ms=self.now_ms,
                    moving=self.budget.moving.share(),
                )
            if path is not None:
                self._forwarders[box].wake()

    def _destination(self, path: str) -> Queue | Topic | None:
        key = path_key(path)
        return self.catalog.queues.get(key) or self.catalog.topics.get(key)

    def _dispatcher(self, receivable: Receivable, box: Box) -> Dispatcher | SessionDispatcher:
        """Return the dispatcher of a box; it is made when the first receiver comes."""
        dispatcher = self._dispatchers.get(box)
        if dispatcher is None:
            kind = Dispatcher if box.sessions is None else SessionDispatcher
            dispatcher = self._dispatchers[box] = kind(
                receivable,
                box,
                loop=self._loop,
                now_ms=self.now_ms,
                on_locked=self.changed,
                faults=self.faults,
                is_metered=self.meter is not None,
            )
        return dispatcher

    def _forget(self, holder: Entity) -> None:
        self._timetable.forget(holder)
        for box in boxes_of(holder):
            self._dispatchers.pop(box, None)
            forwarder = self._forwarders.pop(box, None)
            if forwarder is not None:
                forwarder.stop()

    # ── administration ──

    async def create(self, description: D) -> D:
        return await self._writer.create(description)

    async def create_subscription(
        self, description: SubscriptionDescription, rules: Sequence[RuleDescription]
    ) -> SubscriptionDescription:
        """Create a subscription with these rules instead of `$Default`."""
        return await self._writer.create_subscription(description, rules)

    def plan(self, paths: Iterable[str]) -> None:
        """Name the queues and topics that are about to be created, so that entities may forward to them already."""
        self._writer.planned = frozenset(map(path_key, paths))

    async def update(self, description: D) -> D:
        return await self._writer.update(description)

    async def delete(self, path: str) -> None:
        """Delete the entity of any kind that the path names."""
        await self._writer.delete(path)

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        return await self.create(description)

    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        return await self.update(description)

    async def delete_queue(self, path: str) -> None:
        await self.delete(self.catalog.queue(path).path)

    def queue_info(self, path: str) -> QueueInfo:
        return queue_info(self.catalog.queue(path))

    def topic_info(self, path: str) -> TopicInfo:
        return topic_info(self.catalog.topic(path))

    def subscription_info(self, topic: str, name: str) -> SubscriptionInfo:
        return subscription_info(self.catalog.subscription(topic, name))

    def rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        return self.catalog.rule(topic, subscription, name).description

    def queue_infos(self) -> list[QueueInfo]:
        return self.catalog.queue_infos()

    def topic_infos(self) -> list[TopicInfo]:
        return self.catalog.topic_infos()

    def queue_keys(self) -> list[str]:
        return self.catalog.queue_keys()

    def topic_keys(self) -> list[str]:
        return self.catalog.topic_keys()

    def subscription_keys(self, topic: str) -> list[str]:
        return self.catalog.subscription_keys(topic)

    def rule_keys(self, topic: str, subscription: str) -> list[str]:
        return self.catalog.rule_keys(topic, subscription)

    def rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        return self.catalog.rules(topic, subscription)

    # ── changes, as the administration tells of them ──

    def added(self, entity: CatalogEntity) -> None:
        """Note that the entity is stored and in the catalog."""
        self.changes.note()
        if isinstance(entity, Rule):
            rule = entity.description
            self.catalog.subscription(rule.topic, rule.subscription).touch(self.now_ms())  # a use of the subscription
        else:
            self.changed(entity)
            self._forward(entity)
        self._share_keys(entity)

    def updated(self, entity: CatalogEntity) -> None:
        """Note that the entity has new settings."""
        self._share_keys(entity)
        if not isinstance(entity, Rule):
            self._detach_disabled(entity)
            self.changed(entity)
            self._forward(entity)
            for box in boxes_of(entity):
                self.wake(box)

    def removed(self, entity: CatalogEntity) -> None:
        """Note that the entity is out of the catalog; its deletion is about to be written."""
        self.changes.note()
        if isinstance(entity, Queue | Topic):
            self.keys.set_entity_keys(path_key(entity.path), ())
        if not isinstance(entity, Rule):
            self._forget(entity)
            self._detach(entity, entity_not_found(entity.path))

    def deleted(self, entity: CatalogEntity) -> None:
        """Note that the deletion is durable: the rows of the entity are deleted step by step."""
        self._sweeper.add(Remains(entity.entity_id, []) if isinstance(entity, Rule) else entity.remains())

    def replaced(self, before: Entity, after: Entity) -> None:
        """Lead links to an empty entity that has replaced another one in the catalog."""
        self._forget(before)
        moved = [relink(link, before, after, self.now_ms()) for link in self.links]
        for end in moved:
            if isinstance(end, Outlet):
                self.listen(end)
        self.waiting_requests.lead(before, after)
        for end in moved:
            if isinstance(end, Applicant):
                self.apply(end)
        self.added(after)

    async def reset(self, entities: EntityFate = "keep") -> None:
        """End all faults, and empty every entity or delete all of them; the reset is durable when the call returns.

        Links to entities that are kept go on; messages that they hold are gone, and so are their locks.
        """
        is_delete = checked_entities(entities) == "delete"
        self.faults.clear()  # first: a send that a fault holds back happens before the reset, and no disk is full
        if is_delete:
            await self._writer.delete_all()
        else:
            work = empty_all(self.catalog, self._writer, self.store, self)
            await self._writer.to_its_end(work)
        if self.recorder is not None:  # the empty entities may have accepted messages since the commit
            self.recorder.keep_only({holder.entity_id for holder in self.catalog.holders()})

    def _share_keys(self, entity: CatalogEntity) -> None:
        if isinstance(entity, Queue | Topic):
            keys = [rule.as_key() for rule in entity.description.authorization]
            self.keys.set_entity_keys(path_key(entity.path), keys)

    def in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work that no caller awaits to its end."""
        self._writer.to_its_end(work)

    # ── links ──

    def _detach(self, holder: Entity, refusal: Refusal, *, senders: bool = True) -> None:
        """End the links to an entity, and the requests that wait there; without `senders` only receivers."""
        self.waiting_requests.turn_away(holder, refusal)
        for link in list(self.links):
            end = end_of(link)
            if isinstance(end, EntityLink) and end.entity is holder and (senders or not isinstance(end, Inlet)):
                end.end(refusal)

    def _detach_disabled(self, holder: Entity) -> None:
        """Detach the receivers of an entity that was switched off. A sender is told in the answer to its send, because
        the Python SDK reads a detach as a lost connection, whatever its condition."""
        if isinstance(holder, Topic):
            return
        try:
            holder.check_receive()
        except Refusal as refusal:
            self._detach(holder, refusal, senders=False)

    # ── time ──

    async def _catch_up(self) -> None:
        """Do the work that has fallen due after the clock was moved."""
        self.changes.note()
        await self._timetable.catch_up()

    def changed(self, holder: Entity) -> None:
        """Note that the next due time of the entity may have changed."""
        self._timetable.changed(holder)

    def run_due(self) -> None:
        """Do the work that has fallen due by now in every entity."""
        self._timetable.run_due()

    def _is_forwarding(self) -> bool:
        return any(forwarder.is_working for forwarder in self._forwarders.values())

    def _used_ms(self, holder: Entity) -> int:
        """Return when the entity was last used in a way that it cannot see itself; 0: never.

        A receiver that waits uses it now, although no message moves. Every use of a subscription is a use of its topic.
        """
        if isinstance(holder, Topic):
            used = [max(each.accessed_ms, self._used_ms(each)) for each in holder.subscriptions.values()]
            return max(used, default=0)
        dispatchers = [self._dispatchers[box] for box in boxes_of(holder) if box in self._dispatchers]
        return self.now_ms() if any(dispatcher.has_waiting_receiver for dispatcher in dispatchers) else 0
