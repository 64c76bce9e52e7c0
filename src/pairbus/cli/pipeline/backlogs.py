"""Queues as `pairbus syphon` and `pairbus redrive` find them: their names, and how full they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from itertools import compress
from typing import Any

from azure.core.exceptions import AzureError, ResourceNotFoundError

from pairbus.client.provisioning import LIST, PAGE_SIZE, metered
from pairbus.client.sides import Side
from pairbus.errors import ConfigError
from pairbus.pairing.options import RANGES
from pairbus.pairing.policy import Kind
from pairbus.pairing.rotation import primary_of, queue_index, queue_path
from pairbus.syphon.decide.redriving import WINDOW_MAX_S
from pairbus.transport import Carrier, TransportError
from pairbus.transport.errors import Refused, failure_of

QUEUES_TRIED = 10

Metering = Callable[[str, int, str], None]


class Backlogs:
    """The queues of one secondary. `say` gets lines for the operator, `meter` (entity, count, outcome) of requests."""

    def __init__(self, secondary: Side, say: Callable[[str], None], meter: Metering) -> None:
        self._secondary = secondary
        self._say = say
        self._meter = meter
        self._listed = 0
        "Number of queues of the secondary."

    async def find(self, primary_name: str, *, once: bool) -> tuple[dict[str, int | None], list[Any] | None]:
        """Return the backlog queues with the time of their creation, and all queues with their counts; None instead of
        all queues when the secondary does not let us list them."""
        try:
            queues = await asyncio.to_thread(self.queues)
        except (AzureError, OSError) as error:
            self._say(
                f"the queues of {self._secondary.name} cannot be listed ({first_line(error)}), so they are tried one by"
                " one: --backlog-queue-count says how many there are"
            )
            return dict.fromkeys(await self._try(primary_name, once=once)), None
        existing = {
            queue.name: None if queue.created_at_utc is None else int(queue.created_at_utc.timestamp() * 1000)
            for queue in queues
            if queue_index(primary_name, queue.name) is not None
        }
        if not existing:
            raise ConfigError(no_queues(self._secondary.name, primary_name, [queue.name for queue in queues]))
        return existing, queues

    async def _try(self, primary_name: str, *, once: bool) -> list[str]:
        """Return the backlog queues to which a link can be opened. They are tried ten by ten as long as there are any,
        because one may have been deleted. Without `once`, ten queues are returned when the secondary cannot be reached
        yet."""
        existing: list[str] = []
        async with carrier_of(self._secondary) as secondary:
            for first in range(0, int(RANGES["backlog_queue_count"].most), QUEUES_TRIED):
                paths = [queue_path(primary_name, index) for index in range(first, first + QUEUES_TRIED)]
                try:
                    answers = await asyncio.gather(*[_is_there(secondary, path) for path in paths])
                except TransportError as error:
                    if once:
                        raise
                    last = first + QUEUES_TRIED - 1
                    self._say(
                        f"{self._secondary.name} cannot be reached ({first_line(error)}):"
                        f" backlog queues {first} … {last} are assumed"
                    )
                    return existing + paths
                existing += compress(paths, answers)
                if not any(answers):
                    break
        if not existing:
            raise ConfigError(f"{self._secondary.name} has no backlog queues {queue_path(primary_name, 0)} …")
        return existing

    def queues(self, known: list[str] | None = None) -> list[Any]:
        """Return all queues of the secondary; only the `known` ones if that takes fewer requests."""
        admin: Any = self._secondary.new_admin()
        try:
            if known is not None and len(known) < -(-self._listed // PAGE_SIZE):
                return [queue for path in known for queue in self._queue(admin, path)]
            with metered(self._meter, LIST) as queues:
                queues += admin.list_queues_runtime_properties()
            self._listed = len(queues)
            return queues
        finally:
            admin.close()

    def _queue(self, admin: Any, path: str) -> list[Any]:
        try:
            with metered(self._meter, path):
                return [admin.get_queue_runtime_properties(path)]
        except ResourceNotFoundError:
            return []


def counts(counted: Iterable[Any], queues: Container[str]) -> tuple[int, int]:
    """Return how many messages wait in these queues, and how many of the queues have messages."""
    active = [queue.active_message_count or 0 for queue in counted if queue.name in queues]
    return sum(active), sum(count > 0 for count in active)


async def ask_duplicate_window(
    primary: Side, path: str, say: Callable[[str], None], meter: Metering, *, new_ids: bool
) -> float | None:
    """Ask for how long a destination remembers message ids, 0 when it does not; None when it does not say."""
    try:
        return await asyncio.to_thread(_duplicate_window_s, primary, path, meter)
    except (AzureError, OSError, ConfigError) as error:
        become = "get new ids" if new_ids else "stay, unless --new-ids is given"
        say(
            f"whether {path} detects duplicates cannot be read ({first_line(error)}): dead letters of the last"
            f" {WINDOW_MAX_S / 86_400:.0f} days {become}. --duplicate-window says for how many seconds it remembers"
            " message ids, or 0"
        )
        return None


def _duplicate_window_s(primary: Side, path: str, meter: Metering) -> float | None:
    admin: Any = primary.new_admin()
    try:
        for ask in (admin.get_queue, admin.get_topic):
            try:
                with metered(meter, path):
                    settings = ask(path)
            except (ResourceNotFoundError, AttributeError):
                continue  # the SDK raises AttributeError when the path of a queue is that of a topic
            window = settings.duplicate_detection_history_time_window
            if not settings.requires_duplicate_detection:
                return 0.0
            return None if window is None else float(window.total_seconds())
        return 0.0  # an entity that does not exist remembers no ids
    finally:
        admin.close()


def no_queues(namespace: str, primary_name: str, paths: list[str], *, is_listed: bool = True) -> str:
    """Say that a primary has no backlog queues there, and which primaries do. `found`: all queues of the namespace."""
    if not is_listed:
        return f"{namespace} has no backlog queues {queue_path(primary_name, 0)} …, and does not list others"
    others = other_primaries(paths)
    hint = f"it has those of {', '.join(others)}" if others else "nor of any other primary: `pairbus pair create`"
    return f"{namespace} has no backlog queues {queue_path(primary_name, 0)} …; {hint}"


def other_primaries(queues: list[str]) -> list[str]:
    """Return the names of the primaries whose backlog queues are among all queues of a namespace."""
    return sorted({name.lower() for path in queues if (name := primary_of(path)) is not None})


def carrier_of(side: Side) -> Carrier:
    """Make a connection to one side; the caller closes it."""
    return Carrier(side.endpoint, credential=side.credential, ssl=side.ssl, proxy=side.proxy)


async def _is_there(secondary: Carrier, path: str) -> bool:
    try:
        link = await secondary.receiver(path, credit=0)
    except Refused as error:  # for any other reason, which its pump will report
        return failure_of(error).kind is not Kind.NOT_FOUND
    await link.close()
    return True


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
