"""One look of `pairbus status` at both namespaces. They are asked at the same time, each within the time-out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from azure.core.exceptions import AzureError

from pairbus.amqp.errors import ProtocolError
from pairbus.cli.pair.status_clients import processors_of, receivers_of, states_of
from pairbus.cli.pair.status_facts import (
    Label,
    PeekedMessages,
    QueueFacts,
    Reached,
    Status,
    destination_of,
    reason_of,
)
from pairbus.cli.pair.status_syphons import seen_of_pair, syphons_of
from pairbus.cli.pipeline.backlogs import Backlogs, first_line, no_queues, other_primaries
from pairbus.client.sides import Side
from pairbus.errors import ConfigError, PairbusError
from pairbus.pairing.policy import Kind
from pairbus.pairing.rotation import queue_index, queue_path
from pairbus.syphon.decide.at_home import sequence_number_of
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import failure_of
from pairbus.transport.threads import in_thread

PAGE = 100  # messages of one peek; × 256 KB × AT_ONCE = 100 MB at the very worst
AT_ONCE = 4  # queues that are peeked at the same time
QUEUES_PEEKED = 100  # queues in one look
SYPHON_S = 2.0  # for the answer of a process on this machine


@dataclass(frozen=True, slots=True)
class Looking:
    """Looks at a pair. `peeked`: how many messages of each queue are looked at, at most."""

    primary: Side
    secondary: Side
    primary_name: str
    rotation: int
    peeked: int
    timeout_s: float

    async def look(self) -> Status:
        """Ask both sides. An answer that is missing is part of the result, never an error."""
        wait_s = min(self.timeout_s, SYPHON_S)
        primary, status, seen = await asyncio.gather(
            reached(self.primary, self.timeout_s),
            self._secondary(),
            in_thread("pairbus-control", seen_of_pair, self.secondary.name, self.primary_name, wait_s),
        )
        clients = [process for process in seen if process["role"] == "client"]
        pair_status: Status = replace(
            status,
            time_s=time.time(),
            primary=primary,
            syphons=syphons_of(seen),
            clients=len(clients),
            entities=states_of(clients),
            processors=processors_of(clients),
            receivers=receivers_of(clients),
        )
        return pair_status

    async def _secondary(self) -> Status:
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        unknown = Reached(self.primary.name, 0.0)
        async with self.secondary.new_carrier(self.timeout_s) as carrier:
            reach = await _reach(self.secondary.name, carrier, self.timeout_s)
            status = Status(0.0, unknown, reach, self.primary_name, self.rotation)
            if reach.error is not None:
                return status
            listed = await self._listed(deadline)
            if isinstance(listed, str):
                paths = [queue_path(self.primary_name, index) for index in range(self.rotation)]
                note = (
                    f"{self.secondary.name} does not list its queues ({listed}): counts are those of the messages that"
                    f" were peeked in queues 0 … {self.rotation - 1}; exact ones need the Manage claim"
                )
                status = replace(status, notes=(note,))
                known = [QueueFacts(path) for path in paths]
            else:
                known = self._counted(listed)
            queues = await self._peeked(carrier, known, deadline)
        problems = []
        if not queues:
            names = [] if isinstance(listed, str) else [queue.name for queue in listed]
            status = replace(status, other_primaries=tuple(other_primaries(names)))
            problems.append(
                no_queues(self.secondary.name, self.primary_name, names, is_listed=not isinstance(listed, str))
            )
        unread = [queue for queue in queues if queue.error is not None]
        if unread:
            problems.append(f"{unread[0].path} cannot be peeked: {unread[0].error}{_more(len(unread) - 1)}")
        return replace(status, queues=tuple(queues), problems=tuple(problems))

    async def _listed(self, deadline: float) -> list[Any] | str:
        """Return all queues of the secondary with their counts, or why they are not known."""
        backlogs = Backlogs(self.secondary, lambda _: None, lambda *_: None)
        try:
            async with asyncio.timeout_at(deadline):
                return await in_thread("pairbus-admin", backlogs.queues)
        except TimeoutError:
            return f"no answer within {self.timeout_s:g} s"
        except (AzureError, OSError, ConfigError) as error:
            return first_line(error)

    def _counted(self, listed: list[Any]) -> list[QueueFacts]:
        counted = {
            index: QueueFacts(queue.name, queue.active_message_count or 0, queue.dead_letter_message_count or 0)
            for queue in listed
            if (index := queue_index(self.primary_name, queue.name)) is not None
        }
        return [counted[index] for index in sorted(counted)]

    async def _peeked(self, carrier: Carrier, queues: Sequence[QueueFacts], deadline: float) -> list[QueueFacts]:
        """Look into the queues that have messages, or whose counts are unknown; leave out queues that do not exist."""
        turn = asyncio.Semaphore(AT_ONCE)
        full = [queue for queue in queues if queue.messages != 0 or queue.dead_letters != 0][:QUEUES_PEEKED]
        if not self.peeked:
            return list(queues)

        async def one(queue: QueueFacts) -> QueueFacts | None:
            async with turn:
                return await self._look_into(carrier, queue, deadline)

        looked = await asyncio.gather(*[one(queue) for queue in full])
        by_path = dict(zip([queue.path for queue in full], looked, strict=True))
        return [peeked for queue in queues if (peeked := by_path.get(queue.path, queue)) is not None]

    async def _look_into(self, carrier: Carrier, queue: QueueFacts, deadline: float) -> QueueFacts | None:
        """Peek messages and dead letters; None when there is no such queue."""
        waiting, dead = PeekedMessages(), PeekedMessages()
        error = None
        try:
            if queue.messages != 0:
                await self._sample(carrier, queue.path, waiting, destination_of, deadline)
            if queue.dead_letters != 0:
                await self._sample(carrier, f"{queue.path}/$DeadLetterQueue", dead, reason_of, deadline)
        except TransportError as problem:
            if failure_of(problem).kind is Kind.NOT_FOUND:
                return None
            error = first_line(problem)
        except ProtocolError as problem:
            error = f"the answer cannot be read: {problem}"
        return replace(queue, waiting=waiting, dead=dead, error=error)

    async def _sample(self, carrier: Carrier, path: str, sample: PeekedMessages, label: Label, deadline: float) -> None:
        """Peek page by page until the queue ends or enough messages are seen. A page may be short before the end."""
        next_number = 0
        management = await carrier.management(path, _left(deadline))
        while sample.looked_at < self.peeked:
            count = min(PAGE, self.peeked - sample.looked_at)
            page = await management.peek(next_number, count, _left(deadline))
            if not page:
                sample.is_all = True
                return
            sample.add(page, label)
            next_number = (sequence_number_of(page[-1]) or 0) + 1


async def reached(side: Side, timeout_s: float) -> Reached:
    """Open a connection to one side, and close it."""
    async with side.new_carrier(timeout_s) as carrier:
        return await _reach(side.name, carrier, timeout_s)


async def _reach(name: str, carrier: Carrier, timeout_s: float) -> Reached:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        await carrier.connection(timeout_s)
    except (PairbusError, OSError) as error:
        return Reached(name, clock() - began, first_line(error))
    return Reached(name, clock() - began)


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.001)


def _more(count: int) -> str:
    return f"; nor can {count} more" if count else ""
