"""Administration over HTTP, as the genuine ServiceBusAdministrationClient speaks it: what it needs of a namespace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pairbus.broker.description import QueueDescription
from pairbus.sas import KeyRing

__all__ = ["AdminNamespace", "QueueInfo"]


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's settings and what is in it at this moment."""

    description: QueueDescription
    active: int
    "Available or locked; deferred messages are counted apart."
    dead_lettered: int
    scheduled: int
    deferred: int
    size_bytes: int
    accessed_ms: int
    "Last send or receive in milliseconds since 1970; 0 is never."


class AdminNamespace(Protocol):
    """One namespace as its administrator sees it. Paths are given in any case and compare case-insensitively.

    A coroutine returns when the change is durable. A StoreError means that nothing was changed.
    """

    @property
    def name(self) -> str: ...

    @property
    def keys(self) -> KeyRing: ...

    async def trouble(self) -> str | None:
        """Why changes cannot be stored at this moment; None when they can."""
        ...

    def now_ms(self) -> int: ...

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        """The description as stored, with its times. EntityExists, InvalidDescription, StoreError."""
        ...

    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        """The description as stored, with its times. EntityNotFound, InvalidDescription, StoreError."""
        ...

    async def delete_queue(self, path: str) -> None:
        """Deletes the queue with all its messages. EntityNotFound, StoreError."""
        ...

    def queue_info(self, path: str) -> QueueInfo:
        """EntityNotFound."""
        ...

    def queue_infos(self) -> list[QueueInfo]:
        """Every queue, sorted by path."""
        ...
