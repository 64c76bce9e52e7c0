"""One namespace: its queues, their receivers, and what falls due. Everything here runs on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from pairbus.amqp.errors import CONNECTION_FORCED
from pairbus.amqp.link import Link
from pairbus.broker.admin import QueueInfo
from pairbus.broker.box import Box
from pairbus.broker.description import QueueDescription, path_key
from pairbus.broker.dispatch import Dispatcher
from pairbus.broker.due import Agenda
from pairbus.broker.health import Health
from pairbus.broker.inlet import Inlet
from pairbus.broker.meter import Meter
from pairbus.broker.outlet import Outlet
from pairbus.broker.payloads import Payloads
from pairbus.broker.peer import Peer
from pairbus.broker.queue import Queue
from pairbus.broker.refusal import Refusal, entity_not_found
from pairbus.broker.store import DropEntity, IndexRow, PutEntity, Store, entity_of
from pairbus.broker.sweep import Sweeper
from pairbus.errors import EntityExists, EntityNotFound, InvalidDescription, StoreError
from pairbus.sas import KeyRing

logger = logging.getLogger("pairbus.broker")

_T = TypeVar("_T")

SWEEP_PAUSE_S = 1.0  # before the rows of deleted entities are tried again
IMMUTABLE = ("requires_session", "requires_duplicate_detection", "enable_partitioning")


class Namespace:
    """The entities of one namespace on one store. `now_ms` is the only clock."""

    def __init__(
        self,
        name: str,
        store: Store,
        keys: KeyRing,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        meter: Meter | None = None,
    ) -> None:
        self.name = name
        self.store = store
        self.keys = keys
        self.now_ms = now_ms
        self.meter = meter
        self.peers: set[Peer] = set()
        self.links: set[Link] = set()
        "Links to entities; they are told when their queue is deleted or disabled."
        self._loop = loop
        self._health = Health(store, loop)
        self._queues: dict[str, Queue] = {}
        self._changing: set[str] = set()
        "Paths of queues whose creation or deletion is being committed: neither there nor free."
        self._dispatchers: dict[Box, Dispatcher] = {}
        self._agenda: Agenda[Queue] = Agenda()
        self._changed: set[Queue] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._last_queue_id = 0
        self._is_stopping = False
        self._changes: set[asyncio.Task[Any]] = set()
        "Queues that are being created, updated or deleted."
        self._payloads = Payloads()
        self._sweeper = Sweeper(store, self._payloads, retry_later=lambda step: loop.call_later(SWEEP_PAUSE_S, step))

    def __repr__(self) -> str:
        return f"<Namespace {self.name} queues={len(self._queues)} peers={len(self.peers)}>"

    # ── life ──

    def recover(self) -> list[str]:
        """Read what the store holds; one sentence for everything that is damaged."""
        recovered = self.store.recover()
        self._last_queue_id = recovered.last_entity_id
        damage = recovered.damage  # reading the index adds to it
        queues: dict[int, Queue] = {}
        for found in recovered.entities:
            try:
                description = QueueDescription.from_json(found.description)
            except (ValueError, TypeError) as error:
                damage.append(f"entity {found.entity_id}: its description cannot be read ({error}); it is left alone")
                continue
            queues[found.entity_id] = self._make(found.entity_id, description, last_seq=found.last_seq)
        self._payloads.recover(self.store.payloads())
        remains: dict[int, list[IndexRow]] = {entity_id: [] for entity_id in recovered.dropped}
        incomplete = 0
        for row in self.store.index():
            entity_id = entity_of(row.box)
            queue = queues.get(entity_id)
            if queue is not None:
                incomplete += not queue.recover(row)
            elif entity_id in remains:
                remains[entity_id].append(row)
        if incomplete:
            damage.append(f"{self.name}: {incomplete} messages are not served because their payloads are missing")
        for queue in queues.values():
            queue.recovered(self.now_ms())
            self._add(queue)
        for entity_id, rows in remains.items():
            self._sweeper.recover(entity_id, rows)
        return damage

    async def close(self) -> None:
        """Finish what is being committed and say so, tell every client, release the store.

        What falls due from now on is left to the next start, which finds it in the store.
        """
        self._is_stopping = True
        self._sweeper.stop()
        if self._timer is not None:
            self._timer.cancel()
        for queue in self._queues.values():
            queue.stop()
        for peer in self.peers:
            peer.stop_reading()
        # What receive-and-delete has already deleted still leaves with the commits below; nothing more is taken.
        for dispatcher in self._dispatchers.values():
            dispatcher.outlets.clear()
        try:
            await self._commit()
        except StoreError as error:
            logger.error("%s: the last commit failed, its senders have been told: %s", self.name, error)
        for peer in list(self.peers):
            peer.close(CONNECTION_FORCED, "The broker is shutting down.")
        await self.store.close()

    async def trouble(self) -> str | None:
        """Why messages cannot be stored at this moment; None when they can."""
        return await self._health.trouble()

    # ── queues ──

    def queue(self, path: str) -> Queue | None:
        return self._queues.get(path_key(path))

    def wake(self, box: Box) -> None:
        """Receivers of the box may get something now. A box whose queue is deleted has nobody to wake."""
        dispatcher = self._dispatchers.get(box)
        if dispatcher is not None:
            dispatcher.wake()

    def wake_later(self, box: Box) -> None:
        dispatcher = self._dispatchers.get(box)
        if dispatcher is not None:
            dispatcher.wake_later()

    def listen(self, outlet: Outlet) -> None:
        if not self._is_stopping:
            self._dispatchers[outlet.box].add(outlet)

    def stop_listening(self, outlet: Outlet) -> None:
        dispatcher = self._dispatchers.get(outlet.box)
        if dispatcher is not None:
            dispatcher.remove(outlet)

    def _make(self, queue_id: int, description: QueueDescription, last_seq: int = 0) -> Queue:
        return Queue(
            queue_id,
            description,
            self.store,
            self._payloads,
            now_ms=self.now_ms(),
            last_seq=last_seq,
            on_ready=self._on_ready,
        )

    def _add(self, queue: Queue) -> None:
        self._queues[path_key(queue.path)] = queue
        for box in (queue.main, queue.dead):
            self._dispatchers[box] = Dispatcher(
                queue,
                box,
                loop=self._loop,
                now_ms=self.now_ms,
                on_locked=self.changed,
                is_metered=self.meter is not None,
            )
        self.changed(queue)

    def _remove(self, queue: Queue) -> None:
        self._queues.pop(path_key(queue.path), None)
        self._agenda.set(queue, None)
        self._changed.discard(queue)
        for box in (queue.main, queue.dead):
            self._dispatchers.pop(box, None)

    def _on_ready(self, box: Box) -> None:
        dispatcher = self._dispatchers.get(box)
        if dispatcher is not None:
            dispatcher.wake()
            self.changed(dispatcher.queue)

    # ── administration ──

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        return await self._to_its_end(self._create_queue(description))

    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        return await self._to_its_end(self._update_queue(description))

    async def delete_queue(self, path: str) -> None:
        await self._to_its_end(self._delete_queue(path))

    def _to_its_end(self, change: Coroutine[Any, Any, _T]) -> asyncio.Future[_T]:
        """A change goes on when whoever asked for it is cancelled: what is written must be in memory as well."""
        task = self._loop.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return asyncio.shield(task)

    async def _create_queue(self, description: QueueDescription) -> QueueDescription:
        now_ms = self.now_ms()
        description = replace(description.checked(), created_ms=now_ms, updated_ms=now_ms)
        key = path_key(description.path)
        if key in self._queues or key in self._changing:
            raise EntityExists(f"queue '{description.path}' exists already")
        self._last_queue_id += 1
        queue_id = self._last_queue_id
        self._changing.add(key)
        try:
            self.store.write(PutEntity(queue_id, description.to_json()))
            await self._commit()
        finally:
            self._changing.discard(key)
        self._add(self._make(queue_id, description))
        logger.info("%s: queue '%s' created", self.name, description.path)
        return description

    async def _update_queue(self, description: QueueDescription) -> QueueDescription:
        queue = self._required(description.path)
        current = queue.description
        for name in IMMUTABLE:
            if getattr(description, name) != getattr(current, name):
                raise InvalidDescription(f"{name} of '{current.path}' cannot be changed after creation")
        description = replace(
            description.checked(), path=current.path, created_ms=current.created_ms, updated_ms=self.now_ms()
        )
        self.store.write(PutEntity(queue.queue_id, description.to_json()))
        await self._commit()
        queue.update(description, self.now_ms())
        self._detach_disabled(queue)
        self.changed(queue)
        for box in (queue.main, queue.dead):
            self.wake(box)
        logger.info("%s: queue '%s' updated, status %s", self.name, description.path, description.status)
        return description

    async def _delete_queue(self, path: str) -> None:
        queue = self._required(path)
        key = path_key(queue.path)
        self._remove(queue)
        self._changing.add(key)
        self._detach(queue, entity_not_found(queue.path))
        queue.close()
        self.store.write(DropEntity(queue.queue_id))
        try:
            await self._commit()
        except StoreError:
            self._add(queue)
            queue.reopen(self.now_ms())
            raise
        finally:
            self._changing.discard(key)
        numbers, ends = queue.remains()
        self._sweeper.add(queue.queue_id, numbers, ends, queue.size_bytes)
        logger.info("%s: queue '%s' deleted", self.name, queue.path)

    def queue_info(self, path: str) -> QueueInfo:
        return _info(self._required(path))

    def queue_infos(self) -> list[QueueInfo]:
        return [_info(queue) for _, queue in sorted(self._queues.items())]

    def _required(self, path: str) -> Queue:
        queue = self.queue(path)
        if queue is None:
            raise EntityNotFound(f"queue '{path}' does not exist")
        return queue

    async def _commit(self) -> None:
        """Wait until everything written so far is durable."""
        committed: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if committed.cancelled():
                return
            if error is None:
                committed.set_result(None)
            else:
                committed.set_exception(error)

        self.store.after_commit(done)
        await committed

    # ── links ──

    def _detach(self, queue: Queue, refusal: Refusal, kinds: tuple[type, ...] = (Inlet, Outlet)) -> None:
        for link in list(self.links):
            context = link.context
            if isinstance(context, Inlet | Outlet) and context.queue is queue and isinstance(context, kinds):
                context.peer.detach(link, refusal)

    def _detach_disabled(self, queue: Queue) -> None:
        """Receivers of a queue that was switched off must hear of it; a sender hears it as the answer to its send,
        because the Python SDK reads a detach as a lost connection, whatever its condition."""
        try:
            queue.check_receive()
        except Refusal as refusal:
            self._detach(queue, refusal, (Outlet,))

    # ── time ──

    def changed(self, queue: Queue) -> None:
        """The next time at which the queue has something to do may have moved."""
        if queue.closed or self._is_stopping:
            return
        if not self._changed:
            self._loop.call_soon(self._arm)
        self._changed.add(queue)

    def _arm(self) -> None:
        if self._is_stopping:
            return
        for queue in self._changed:
            times = [at for at in (queue.next_due_ms(), queue.idle_until_ms) if at is not None]
            self._agenda.set(queue, min(times, default=None))
        self._changed.clear()
        at_ms = self._agenda.next_ms()
        if at_ms is None or (self._timer_ms is not None and self._timer_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._loop.call_later(max(at_ms - self.now_ms(), 0) / 1000, self.run_due)

    def run_due(self) -> None:
        """Do what has fallen due by now in every queue, and set the timer for the rest."""
        self._timer = self._timer_ms = None
        now_ms = self.now_ms()
        for queue in self._agenda.pop_due(now_ms):
            if queue.idle_until_ms is not None and queue.idle_until_ms <= now_ms:
                if not self._is_listened_to(queue):
                    self._to_its_end(self._delete_idle(queue))
                    continue
                queue.touch(now_ms)
            queue.run_due(now_ms)
            self.changed(queue)
        if not self._changed:
            self._loop.call_soon(self._arm)

    def _is_listened_to(self, queue: Queue) -> bool:
        """A receiver that waits with credit uses the queue, although nothing happens."""
        return any(outlet.link.credit for box in (queue.main, queue.dead) for outlet in self._dispatchers[box].outlets)

    async def _delete_idle(self, queue: Queue) -> None:
        until_ms = queue.idle_until_ms
        if queue.closed or until_ms is None or until_ms > self.now_ms():
            self.changed(queue)  # it was used or deleted in the turn of the loop since it fell due
            return
        logger.info("%s: queue '%s' was idle for its auto-delete time and is deleted", self.name, queue.path)
        try:
            await self._delete_queue(queue.path)
        except StoreError as error:
            logger.error("%s: the idle queue '%s' could not be deleted: %s", self.name, queue.path, error)
            queue.touch(self.now_ms())  # tried again when it has been idle as long once more, not in a tight loop


def _info(queue: Queue) -> QueueInfo:
    return QueueInfo(
        description=queue.description,
        active=queue.active_count,
        dead_lettered=queue.dead_count,
        scheduled=queue.scheduled_count,
        deferred=queue.deferred_count,
        size_bytes=queue.size_bytes,
        accessed_ms=queue.accessed_ms,
    )
