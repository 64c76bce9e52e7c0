"""Requests of `pairbus pair check`. Both namespaces are asked at the same time, each within the time-out.

Law of this file: an entity of an application is never sent to and never received from; a link to it is opened, and
closed. The message that goes through a backlog queue is scheduled, looked at and cancelled, so that no syphon gets it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Symbol, Timestamp
from pairbus.cli.pair.findings import SETTINGS, Finding, clock_finding, right_finding, settings_finding, there_finding
from pairbus.cli.pipeline.backlogs import first_line, no_queues
from pairbus.client.sides import Side
from pairbus.errors import ConfigError, PairbusError
from pairbus.pairing.rotation import queue_index, queue_path
from pairbus.transport import Carrier, Scheduled, TransportError
from pairbus.transport.threads import in_thread

AT_ONCE = 4  # queues that are tried at the same time
QUEUES_TRIED = 100  # limit of queues
HIDDEN_S = 3600  # time for which the message of the check stays invisible, should it not be cancelled
SUBJECT = "pairbus pair check"
_MANAGE = "clients need it only to create backlog queues, and `pairbus status` to count messages"


@dataclass(slots=True)
class AdminAnswers:
    """Answers of the administration of one namespace."""

    began_s: float = 0.0
    ended_s: float = 0.0
    date: str | None = None
    "Date of the HTTP answer, also of a refusal."
    queues: list[Any] | None = None
    "All queues with their settings; None: not known."
    topics: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Checking:
    """Check of a pair. `entities` are paths in the primary to which a link may be opened."""

    primary: Side
    secondary: Side
    primary_name: str
    rotation: int
    entities: Sequence[str]
    timeout_s: float

    async def check(self) -> list[Finding]:
        """Return the findings, the primary first."""
        primary, secondary = await asyncio.gather(
            self._side("primary", self.primary, self._check_primary),
            self._side("secondary", self.secondary, self._check_secondary),
        )
        return [*primary, *secondary]

    async def _side(
        self, name: str, side: Side, rest: Callable[[Carrier, AdminAnswers, float], Awaitable[list[Finding]]]
    ) -> list[Finding]:
        clock = asyncio.get_running_loop().time
        began, check = clock(), f"{name} connection"
        deadline = began + self.timeout_s
        async with side.new_carrier(self.timeout_s) as carrier:
            try:
                await carrier.connection(self.timeout_s)
            except (PairbusError, OSError) as error:
                advice = "Check the host, the network and any firewall: ports 5671 and 443 must be open"
                return [Finding(check, "failed", f"{side.name}: {first_line(error)}", advice)]
            reached = Finding(check, "ok", f"{side.name} in {(clock() - began) * 1000:.0f} ms")
            answers = await _ask(side, deadline)
            dated = clock_finding(name, answers.date, answers.began_s, answers.ended_s)
            return [reached, dated, _manage(name, answers), *await rest(carrier, answers, deadline)]

    async def _check_primary(self, carrier: Carrier, answers: AdminAnswers, deadline: float) -> list[Finding]:
        check = "primary send"
        paths = list(self.entities)
        if not paths:
            paths = [*(queue.name for queue in answers.queues or []), *answers.topics][:1]
        if not paths:
            detail = "it has no queue or topic" if answers.queues is not None else "its entities are not known"
            return [Finding(check, "skipped", detail, "--entity PATH names one; a link to it is opened, no more")]
        errors = await _tried(paths, partial(_open_sender, carrier, deadline))
        advice = "The entity must exist, and the key of the primary needs the Send claim on it"
        return [right_finding(check, paths, errors, advice)]

    async def _check_secondary(self, carrier: Carrier, answers: AdminAnswers, deadline: float) -> list[Finding]:
        findings = []
        if answers.queues is None:
            paths = [queue_path(self.primary_name, index) for index in range(self.rotation)]
            why = "settings can only be read with the Manage claim"
            findings.append(Finding("secondary settings of backlog queues", "skipped", why))
        else:
            settings = {
                queue.name: {name: getattr(queue, name, None) for name in SETTINGS}
                for queue in answers.queues
                if queue_index(self.primary_name, queue.name) is not None
            }
            others = no_queues(self.secondary.name, self.primary_name, [queue.name for queue in answers.queues])
            findings.append(
                there_finding(self.secondary.name, self.primary_name, list(settings), self.rotation, others)
            )
            paths = [path for path in settings if (queue_index(self.primary_name, path) or 0) < self.rotation]
            if settings:
                findings.append(settings_finding(settings))
        paths = paths[:QUEUES_TRIED]
        key = "The key of the secondary needs the {} claim on the backlog queues"
        for check, advice, work in (
            ("secondary send", f"{key.format('Send')}: senders divert messages there", _open_sender),
            ("secondary listen", f"{key.format('Listen')} where a syphon runs", _open_receiver),
            ("message there and back", "Messages that are diverted now may not come home", _there_and_back),
        ):
            errors = await _tried(paths, partial(work, carrier, deadline))
            findings.append(right_finding(check, paths, errors, advice))
        return findings


def _manage(name: str, answers: AdminAnswers) -> Finding:
    check = f"{name} manage"
    if answers.error is None:
        return Finding(check, "ok", "the key may administer the namespace")
    return Finding(check, "skipped", f"{answers.error}; {_MANAGE if name == 'secondary' else 'no client needs it'}")


# ── administration ──


async def _ask(side: Side, deadline: float) -> AdminAnswers:
    try:
        async with asyncio.timeout_at(deadline):
            return await in_thread("pairbus-admin", _administration, side)
    except TimeoutError:
        return AdminAnswers(error="no answer in time")
    except (OSError, ConfigError) as error:
        return AdminAnswers(error=first_line(error))


def _administration(side: Side) -> AdminAnswers:
    """Ask for the namespace, whose answer always has a date, then for its entities. Blocks."""
    answers = AdminAnswers()

    def dated(response: Any, content: Any, _headers: Any) -> Any:
        answers.ended_s = time.time()
        answers.date = response.http_response.headers.get("Date")
        return content

    admin: Any = side.new_admin()
    try:
        answers.began_s = time.time()
        admin.get_namespace_properties(cls=dated)
        queues = list(admin.list_queues())
        answers.topics = [topic.name for topic in admin.list_topics()]
        answers.queues = queues
    except AzureError as error:
        answers.error = first_line(error)
        response: Any = getattr(error, "response", None)
        if answers.date is None and response is not None:
            answers.ended_s = time.time()
            answers.date = response.headers.get("Date")
    finally:
        admin.close()
    return answers


# ── links and the message ──


async def _tried(paths: Sequence[str], work: Callable[[str], Awaitable[None]]) -> dict[str, str]:
    """Do the work for each path, and return why it failed."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(path: str) -> str | None:
        async with turn:
            try:
                await work(path)
            except (PairbusError, OSError) as error:
                return first_line(error)
        return None

    errors = await asyncio.gather(*[one(path) for path in paths])
    return {path: error for path, error in zip(paths, errors, strict=True) if error is not None}


async def _open_sender(carrier: Carrier, deadline: float, path: str) -> None:
    await carrier.sender(path, _left(deadline))


async def _open_receiver(carrier: Carrier, deadline: float, path: str) -> None:
    """Open a link without credit: it gets no message."""
    link = await carrier.receiver(path, credit=0, timeout_s=_left(deadline))
    await link.close()


async def _there_and_back(carrier: Carrier, deadline: float, path: str) -> None:
    """Store a message that no receiver can see, read it, and cancel it."""
    message_id = f"pairbus-check-{uuid.uuid4()}"
    due = Timestamp(int((time.time() + HIDDEN_S) * 1000))
    message = Message(
        annotations={Symbol("x-opt-scheduled-enqueue-time"): due},
        properties=Properties(message_id=message_id, subject=SUBJECT),
        data=[b""],
    )
    management = await carrier.management(path, _left(deadline))
    try:
        numbers = await management.schedule([Scheduled(message_id, message.encode())], _left(deadline))
    except TransportError as error:
        if not error.outcome_unknown:
            raise
        raise PairbusError(_stays(message_id, "may have been stored", error)) from error
    try:
        peeked = await management.peek(min(numbers, default=0), 1, _left(deadline))
    finally:
        try:
            await management.cancel(numbers, _left(deadline))
        except TransportError as error:
            raise PairbusError(_stays(message_id, "could not be removed", error)) from error
    if not peeked or message_id.encode() not in peeked[0]:
        raise PairbusError(f"message {message_id} was stored, but peeking returned another message or none")


def _stays(message_id: str, what: str, error: TransportError) -> str:
    visible = f"it becomes visible in {HIDDEN_S // 60} minutes, and a syphon dead-letters it then"
    return f"message {message_id} {what} ({first_line(error)}): {visible}"


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.001)
