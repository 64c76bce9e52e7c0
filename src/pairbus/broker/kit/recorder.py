"""Recorded sends: the messages that the entities of a namespace have accepted, for assertions of tests. No I/O.

A message is recorded when its sender is told that it was accepted, even if it is scheduled or was received meanwhile.
Pings, dropped duplicates and messages that another entity forwarded are not recorded. Bytes are kept as they came and
decoded when a test looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.broker.entities.draft import Draft
from pairbus.broker.refusal import Refusal

RECORDED_MAX = 10_000  # messages of one namespace
RECORDED_BYTES_MAX = 64 << 20  # bytes of their bodies; the last message is kept whatever its size


@dataclass(frozen=True, slots=True)
class Recorded:
    """One accepted message."""

    path: str
    "Queue or topic to which it was sent, as its creator spelled it."
    seq: int
    accepted_ms: int
    draft: Draft
    entity_id: int
    "Id of the queue or topic: an entity that replaces another one has its path, and not its id."


class Recorder:
    """The last accepted messages of a namespace, in the order in which their senders were told."""

    def __init__(self) -> None:
        self._recorded: deque[Recorded] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._recorded)

    def watched(
        self,
        path: str,
        entity_id: int,
        drafts: Sequence[Draft],
        first_seq: int,
        now_ms: int,
        done: Callable[[Any], None],
    ) -> Callable[[Any], None]:
        """Return the answer to a send, which also records these messages when it is no refusal."""

        def answered(answer: Any) -> None:
            if not isinstance(answer, Refusal):
                for seq, draft in enumerate(drafts, first_seq):
                    if not draft.hops:
                        self._add(Recorded(path, seq, now_ms, draft, entity_id))
            done(answer)

        return answered

    def _add(self, new: Recorded) -> None:
        self._recorded.append(new)
        self._bytes += len(new.draft.body)
        while len(self) > RECORDED_MAX or (self._bytes > RECORDED_BYTES_MAX and len(self) > 1):
            self._bytes -= len(self._recorded.popleft().draft.body)

    def of(self, path: str) -> list[Recorded]:
        """Return the recorded messages of one queue or topic, whatever the case of its path."""
        return [one for one in self._recorded if one.path.lower() == path.lower()]

    def keep_only(self, entity_ids: Container[int]) -> None:
        """Forget the messages of all entities but these."""
        self._recorded = deque(one for one in self._recorded if one.entity_id in entity_ids)
        self._bytes = sum(len(one.draft.body) for one in self._recorded)
