"""Looks of the driver before any message is touched: at the queues, and whether its keys are accepted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable

from pairbus.backlog.envelope import Home
from pairbus.errors import ConfigError
from pairbus.pairing.options import RANGES
from pairbus.pairing.policy import REACTIONS, Kind, Reaction
from pairbus.pairing.rotation import queue_path
from pairbus.spark.connections import Borrowed, Secret, run
from pairbus.spark.syphon_job.job import SyphonJob
from pairbus.syphon.decide.at_home import sequence_number_of
from pairbus.transport import Carrier, Refused, TransportError
from pairbus.transport.errors import failure_of

logger = logging.getLogger("pairbus.spark")

TIMEOUT_S = 10.0
FIND_S = 3.0  # seconds for a look at the next indexes
AHEAD = 10  # indexes to look at after a missing queue, which may have been deleted
PAGE = 250
COUNT_MAX = 100_000  # messages that are counted one by one


async def peek(job: SyphonJob, secondary: Carrier, queue: str, from_sequence: int = 0, count: int = 1) -> list[bytes]:
    path = queue if job.sub_queue is None else f"{queue}/$DeadLetterQueue"
    management = await (await secondary.connection()).management(path, timeout_s=TIMEOUT_S)
    return await management.peek(from_sequence, count, TIMEOUT_S)


def check(job: SyphonJob, queues: Iterable[str]) -> None:
    """Raise ConfigError for errors that waiting does not heal: a refused key, or none of the queues can be read."""
    run(_check(job, list(queues)))


async def _check(job: SyphonJob, queues: list[str]) -> None:
    unreadable: list[str] = []
    paths: set[str] = set() if job.redriving is None else {job.redriving.path}
    opener = job.new_opener()
    async with Borrowed(job.primary, job.ca_file) as primary, Borrowed(job.secondary, job.ca_file) as secondary:
        for queue in queues:
            try:
                first = await peek(job, secondary, queue)
            except Refused as error:
                _refuse_key("secondary", job.secondary, error)
                if REACTIONS[failure_of(error).kind] is Reaction.RAISE:  # others pass, such as server-busy
                    unreadable.append(f"{queue}: {error}")
                continue
            except TransportError:
                break  # unreachable for now: a syphon waits for that
            opened = opener(first[0]) if first else None
            if isinstance(opened, Home):
                paths.add(opened.path)
        for path in sorted(paths)[:1]:
            try:
                await primary.sender(path, TIMEOUT_S)
            except TransportError as error:
                _refuse_key("primary", job.primary, error)
    if unreadable and len(unreadable) == len(queues):
        raise ConfigError(f"none of the {len(queues)} queues can be read: {unreadable[0]}")


def _refuse_key(side: str, secret: Secret, error: TransportError) -> None:
    if failure_of(error).kind is Kind.UNAUTHORIZED:
        raise ConfigError(f"{side}: {secret} is refused: {error}")


def find_new(job: SyphonJob, primary_name: str, known_queues: Container[str]) -> list[str]:
    """Return backlog queues that are not known yet: a link is opened to the next indexes, and to those missing before.

    Opening a link is not billed. While the secondary cannot be reached the list is empty.
    """
    return run(_find_new(job, primary_name, known_queues))


async def _find_new(job: SyphonJob, primary_name: str, known_queues: Container[str]) -> list[str]:
    new_queues: list[str] = []
    index = 0
    try:
        async with asyncio.timeout(FIND_S), Borrowed(job.secondary, job.ca_file) as secondary:
            while index < RANGES["backlog_queue_count"].most:
                path = queue_path(primary_name, index)
                index += 1
                if path in known_queues:
                    continue
                if await _is_there(secondary, path):
                    new_queues.append(path)
                elif not any(queue_path(primary_name, later) in known_queues for later in range(index, index + AHEAD)):
                    break
    except (TransportError, TimeoutError) as error:
        logger.info("new backlog queues cannot be looked for: %s", error)
    return new_queues


async def _is_there(secondary: Carrier, path: str) -> bool:
    try:
        link = await secondary.receiver(path, credit=0)
    except Refused:
        return False
    await link.close()
    return True


def count_left(job: SyphonJob, queues: Iterable[str]) -> int | None:
    """Count the messages in the queues, locked ones included; None when the secondary does not tell.

    A queue that does not exist counts as empty.
    """
    return run(_count_left(job, list(queues)))


async def _count_left(job: SyphonJob, queues: list[str]) -> int | None:
    count = 0
    async with Borrowed(job.secondary, job.ca_file) as secondary:
        for queue in queues:
            next_number = 0
            while count < COUNT_MAX:
                try:
                    page = await peek(job, secondary, queue, next_number, PAGE)
                except TransportError as error:
                    if failure_of(error).kind is Kind.NOT_FOUND:
                        break
                    logger.warning("the messages of %s cannot be counted: %s", queue, error)
                    return None
                if not page:
                    break
                count += len(page)
                next_number = (sequence_number_of(page[-1]) or 0) + 1
    return count
