"""Witnesses inside the processes: what the client and the syphon believe of each single attempt.

A message may be stored twice only when some attempt of it had an unknown outcome. One call may make several attempts
and succeed, so the witness stands where the attempts are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pairbus.client.outgoing import Outgoing
from pairbus.client.results import Origin
from pairbus.client.sends import Sends
from pairbus.pairing.commands import Attempt, Reply, ToBacklog, ToPrimary
from pairbus.syphon import send
from pairbus.syphon.decide.batch import Chunk, Item
from pairbus.syphon.settle import Settling
from pairbus.syphon.shared import Batch, SyphonState
from pairbus.transport import Sender, TransportError
from tests.nemesis.log import Log

Attempts = Callable[[Sends, Origin, Outgoing, Any], Awaitable[Reply]]


def watch_sends(log: Log) -> None:
    """Record attempts of a client without an answer, and messages that a backlog queue took."""
    to_primary, to_backlog = Sends._to_primary, Sends._to_backlog

    async def watched(genuine: Attempts, sends: Sends, origin: Origin, outgoing: Outgoing, attempt: Attempt) -> Reply:
        before = list(outgoing.ids)
        place = attempt.queue if isinstance(attempt, ToBacklog) else "the primary"
        try:
            reply = await genuine(sends, origin, outgoing, attempt)
        except BaseException:
            log.add(("doubt", place, before))
            raise
        if isinstance(attempt, ToBacklog):
            left = set(outgoing.ids)
            log.add(("away", place, [one for one in before if one not in left]))
        if reply.failure is not None and reply.failure.outcome_unknown:
            log.add(("doubt", place, list(outgoing.ids)))
        return reply

    async def watched_primary(self: Sends, origin: Origin, outgoing: Outgoing, attempt: ToPrimary) -> Reply:
        return await watched(to_primary, self, origin, outgoing, attempt)

    async def watched_backlog(self: Sends, origin: Origin, outgoing: Outgoing, attempt: ToBacklog) -> Reply:
        return await watched(to_backlog, self, origin, outgoing, attempt)

    Sends._to_primary = watched_primary  # type: ignore[method-assign]
    Sends._to_backlog = watched_backlog  # type: ignore[method-assign]


def watch_moves(log: Log) -> None:
    """Record what a syphon sends home, how that ends, and what it completes."""
    send_chunk, outcome, complete = send.send_chunk, send.outcome_of, Settling._complete

    def watched_send(sender: Sender, chunk: Chunk, timeout_s: float) -> asyncio.Future[None]:
        log.add(("move", _ids(chunk)))
        return send_chunk(sender, chunk, timeout_s)

    async def watched_outcome(shared: SyphonState, chunk: Chunk, answer: Any) -> TransportError | None:
        error = await outcome(shared, chunk, answer)
        if error is not None and not error.outcome_unknown:
            log.add(("refused", _ids(chunk)))
        return error

    async def watched_complete(self: Settling, batch: Batch, items: list[Item]) -> list[Item]:
        gone = await complete(self, batch, items)
        log.add(("gone", _ids(gone)))
        return gone

    send.send_chunk, send.outcome_of = watched_send, watched_outcome
    Settling._complete = watched_complete  # type: ignore[method-assign]


def _ids(items: list[Item]) -> list[str]:
    return [item.home.message_id or "" for item in items]
