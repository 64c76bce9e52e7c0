"""State that the parts of a queue, a topic or a subscription share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pairbus.broker.boxes.box import Box
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.entities.commits import Commits
from pairbus.broker.entities.payloads import Payloads
from pairbus.broker.refusal import ENTITY_DISABLED, Refusal, entity_not_found
from pairbus.broker.store import Store
from pairbus.errors import StoreError
from pairbus.settings.durations import UNLIMITED_MS

RETRY_PAUSE_MS = 1000  # before due work is tried again after the store failed

EntityDone = Callable[[Refusal | None], None]


class Settings(Protocol):
    """The settings that every entity has."""

    @property
    def status(self) -> str: ...
    @property
    def default_ttl_ms(self) -> int | None: ...
    @property
    def auto_delete_on_idle_ms(self) -> int | None: ...


class Entity:
    """Store, commits, numbers, status and time of last use of one entity."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        entity_id: int,
        path: str,
        settings: Settings,
        store: Store,
        payloads: Payloads,
        budget: MemoryBudget,
        *,
        now_ms: int,
        last_seq: int,
        on_ready: Callable[[Box], None],
        run_due: Callable[[int], None],
    ) -> None:
        self.entity_id = entity_id
        self.store = store
        self.payloads = payloads
        self.budget = budget
        self.moving = budget.moving.share()
        "Bytes of messages that an uncommitted batch of due work moves."
        self.commits = Commits(store)
        self.accessed_ms = now_ms
        self.last_seq = last_seq
        "Highest sequence number given out: never given again, also when its commit failed."
        self.closed = False
        self.is_stopping = False
        self.paused_until_ms = 0
        self.look_again_ms = 0
        "Time to try a batch of due work again, set while it is under way because it may fail."
        self._on_ready = on_ready
        self._run_due = run_due
        self.describe(path, settings)

    def describe(self, path: str, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        ttl_ms = settings.default_ttl_ms
        self.ttl_ceiling_ms = 0 if ttl_ms is None or ttl_ms >= UNLIMITED_MS else ttl_ms
        "Ceiling of the time to live in milliseconds; 0: none."
        self.sendable = settings.status in ("Active", "ReceiveDisabled") and not self.closed
        self.receivable = settings.status in ("Active", "SendDisabled") and not self.closed

    def check_send(self) -> None:
        if not self.sendable:
            raise self._refusal()

    def check_receive(self) -> None:
        """Refuse when the status forbids receiving; this holds for the dead-letter queue as well."""
        if not self.receivable:
            raise self._refusal()

    def _refusal(self) -> Refusal:
        if self.closed:
            return entity_not_found(self.path)
        return Refusal(ENTITY_DISABLED, f"The messaging entity '{self.path}' is in status {self.settings.status}.")

    def touch(self, now_ms: int) -> None:
        """Note a use of the entity that it cannot see itself, such as a receiver that waits with credit."""
        self.accessed_ms = max(self.accessed_ms, now_ms)

    def shift(self, ms: int) -> None:
        """Move the times that count from a use or a failure: the clock was set."""
        self.accessed_ms += ms
        self.paused_until_ms += ms
        self.look_again_ms += ms

    def idle_until_ms(self, accessed_ms: int) -> int | None:
        idle_ms = self.settings.auto_delete_on_idle_ms
        return None if idle_ms is None or idle_ms >= UNLIMITED_MS else max(self.accessed_ms, accessed_ms) + idle_ms

    def announce(self, box: Box) -> None:
        if not self.closed:
            self._on_ready(box)

    def answer_later(self, answer: Any, done: Callable[[Any], None]) -> None:
        """Answer after the answers to earlier calls; a failing commit does not change this one."""
        self.commits.then(_answer, answer, done)

    # ── due work ──

    def may_run_due(self, now_ms: int) -> bool:
        return not (self.closed or self.is_stopping or now_ms < self.paused_until_ms)

    def pause(self, now_ms: int) -> None:
        """Try due work again later, because it failed."""
        self.paused_until_ms = now_ms + RETRY_PAUSE_MS

    def may_move(self, box: Box, now_ms: int) -> bool:
        """Return whether a batch of messages may be moved now; otherwise due work goes on when there is room."""
        if self.moving.may_take:
            return True
        self.pause(now_ms)
        self.moving.when_free(partial(self._resume, box))
        return False

    def _resume(self, box: Box) -> None:
        self.paused_until_ms = 0
        self.announce(box)

    def go_on(self, box: Box, now_ms: int, error: StoreError | None) -> None:
        """Go on after a batch of due work: with the rest, or with a pause when the store failed."""
        if error is not None:
            self.pause(now_ms)
            return
        self.announce(box)
        self._run_due(now_ms)


def _answer(answer: Any, done: Callable[[Any], None], _error: StoreError | None) -> None:
    done(answer)
