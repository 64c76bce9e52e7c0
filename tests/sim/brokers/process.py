"""A broker's process: the genuine namespace on a loop and a store that end with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pairbus.auth.sas import KeyRing
from pairbus.broker.boxes.box import Box
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.receivable import Receivable
from pairbus.broker.entities.topic import Topic
from pairbus.broker.namespace import Namespace
from tests.sim.brokers.disk import DiskStore
from tests.sim.loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000


class ProcessLoop:
    """The part of an event loop that a broker uses. Nothing that waits in it happens when the process is dead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.is_dead = False

    def time(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Any:
        return self._loop.call_soon(self._run, callback, args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Any:
        return self._loop.call_later(delay_s, self._run, callback, args)

    def _run(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_dead:
            callback(*args)


class BrokerProcess:
    """One life of the broker, from its start to the kill."""

    def __init__(self, loop: VirtualLoop, make_store: Callable[[ProcessLoop], DiskStore]) -> None:
        self._loop = ProcessLoop(loop)
        self.store = make_store(self._loop)
        self.namespace = Namespace(
            "sim",
            self.store,
            KeyRing(()),
            loop=cast(Any, self._loop),
            now_ms=lambda: EPOCH_MS + int(loop.time() * 1000),
        )
        self.damage = self.namespace.recover()

    def kill(self) -> str:
        self._loop.is_dead = True
        return self.store.die()

    def now_ms(self) -> int:
        return self.namespace.now_ms()

    def entry(self, path: str) -> Queue | Topic:
        """An entity that is sent to."""
        catalog = self.namespace.catalog
        return catalog.queues.get(path) or catalog.topics[path]

    def receivable(self, path: str) -> Receivable:
        """An entity that is received from."""
        found = self.namespace.catalog.find(path)
        assert found is not None and not isinstance(found, Topic)
        return cast(Receivable, found)

    def box(self, path: str, is_dead: bool) -> Box:
        entity = self.receivable(path)
        return entity.dead if is_dead else entity.main

    def used(self, path: str) -> None:
        """Note that a client has used the entity: its next due time may have moved."""
        self.namespace.changed(self.namespace.catalog.find(path))  # type: ignore[arg-type]
