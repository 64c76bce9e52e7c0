"""Work that an entity does after its commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pairbus.broker.store import Store
from pairbus.errors import StoreError

Handler = Callable[[Any, Any, StoreError | None], None]


class Commits:
    """Handlers to call after each commit, in order: a tuple and one shared callback, not a closure per message."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._steps: deque[tuple[Handler, Any, Any]] = deque()
        self._callback = self._committed

    def then(self, handler: Handler, subject: Any, done: Any) -> None:
        """Call `handler(subject, done, error)` when all writes so far are durable, or have failed."""
        self._steps.append((handler, subject, done))
        self._store.after_commit(self._callback)

    def _committed(self, error: StoreError | None) -> None:
        handler, subject, done = self._steps.popleft()
        handler(subject, done, error)
