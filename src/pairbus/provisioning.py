"""Pairing time on the real secondary: the plan of `pairing.provision`, carried out with the genuine SDK."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceExistsError

from pairbus.errors import ConfigError, PairingError
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.policy import Kind
from pairbus.pairing.provision import Answer, Create, Found, List, Pause, Provisioned, Refusal, assumed, provisioning
from pairbus.send_errors import PairingUnauthorized, SecondaryUnreachable, SendAvailabilityBacklogError
from pairbus.sides import Side

_log = logging.getLogger("pairbus")

LIST = "$Resources/queues"
PAGE_SIZE = 100  # queues that the SDK asks for at once
Meter = Callable[[str, int, str], None]
"Called with an entity, or `$Resources/queues` for a list; requests; how they ended, in the words of the ledger."


Check = Callable[[], None]
"Called before each request; it raises when nobody wants the queues any more."


def _no_meter(entity: str, count: int, outcome: str) -> None:
    pass


def _no_check() -> None:
    pass


def provision(
    secondary: Side,
    primary_name: str,
    options: SendAvailabilityPairedNamespaceOptions,
    pause: Callable[[float], object] = time.sleep,
    meter: Meter = _no_meter,
    check: Check = _no_check,
) -> list[str]:
    """The paths of the backlog queues, found or created as the options say.

    Raises PairingUnauthorized, SecondaryUnreachable, or SendAvailabilityBacklogError when there is none.
    """
    if not options.create_backlog_queues:
        return assumed(primary_name, options.backlog_queue_count)
    return list(find_or_create(secondary, primary_name, options.backlog_queue_count, pause, meter, check).paths)


async def provision_async(
    secondary: Side, primary_name: str, options: SendAvailabilityPairedNamespaceOptions, meter: Meter = _no_meter
) -> list[str]:
    """The same in an event loop, with the SDK's async client."""
    if not options.create_backlog_queues:
        return assumed(primary_name, options.backlog_queue_count)
    found = await find_or_create_async(secondary, primary_name, options.backlog_queue_count, meter=meter)
    return list(found.paths)


def find_or_create(
    secondary: Side,
    primary_name: str,
    count: int,
    pause: Callable[[float], object] = time.sleep,
    meter: Meter = _no_meter,
    check: Check = _no_check,
) -> Provisioned:
    """The same in detail: what was found, what was created, and what could not be."""
    admin: Any = None
    try:
        admin = secondary.given_admin or secondary.new_admin()
        plan = provisioning(primary_name, count)
        answer: Answer = None
        while True:
            command = plan.send(answer)
            check()
            match command:
                case List(prefix):
                    with metered(meter, LIST) as told:
                        answer = _matching(told(admin.list_queues_runtime_properties()), prefix)
                case Create(path, settings):
                    try:
                        with metered(meter, path):
                            admin.create_queue(path, **settings)
                        answer = None
                    except AzureError as error:
                        answer = _refusal(error)
                case Pause(seconds):
                    pause(seconds)
                    answer = None
    except StopIteration as end:
        return _checked(end.value, secondary)
    except PairingError:  # of `check`; most are errors of the SDK as well
        raise
    except (AzureError, OSError, ConfigError) as error:
        raise _unreachable(secondary, error) from error
    finally:
        if admin is not None and admin is not secondary.given_admin:
            admin.close()


async def find_or_create_async(
    secondary: Side,
    primary_name: str,
    count: int,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    meter: Meter = _no_meter,
) -> Provisioned:
    admin: Any = None
    try:
        # For an emulator it fetches a certificate first, and that blocks.
        admin = secondary.given_admin or await asyncio.to_thread(secondary.new_admin, aio=True)
        plan = provisioning(primary_name, count)
        answer: Answer = None
        while True:
            match plan.send(answer):
                case List(prefix):
                    with metered(meter, LIST) as told:
                        queues = [one async for one in admin.list_queues_runtime_properties()]
                        answer = _matching(told(queues), prefix)
                case Create(path, settings):
                    try:
                        with metered(meter, path):
                            await admin.create_queue(path, **settings)
                        answer = None
                    except AzureError as error:
                        answer = _refusal(error)
                case Pause(seconds):
                    await pause(seconds)
                    answer = None
    except StopIteration as end:
        return _checked(end.value, secondary)
    except (AzureError, OSError, ConfigError) as error:
        raise _unreachable(secondary, error) from error
    finally:
        if admin is not None and admin is not secondary.given_admin:
            await admin.close()


@contextmanager
def metered(meter: Meter, entity: str) -> Iterator[Callable[[Iterable[Any]], list[Any]]]:
    """One request, or one for each page of a list that is told."""
    listed: list[Any] = []

    def told(queues: Iterable[Any]) -> list[Any]:
        listed.extend(queues)
        return listed

    try:
        yield told
    except (AzureError, OSError) as error:
        meter(entity, 1, _outcome(error))
        raise
    meter(entity, max(1, -(-len(listed) // PAGE_SIZE)), "ok")


def _outcome(error: BaseException) -> str:
    if _is_unauthorized(error):
        return Kind.UNAUTHORIZED.value
    status = error.status_code if isinstance(error, HttpResponseError) else None
    if status is None:
        return Kind.COMMUNICATION.value
    if status >= 500:
        return Kind.INTERNAL.value
    return Kind.FULL.value if status == 403 else Kind.INVALID.value


def _matching(queues: Any, prefix: str) -> list[Found]:
    return [
        Found(queue.name, queue.total_message_count or 0)
        for queue in queues
        if queue.name.lower().startswith(prefix.lower())
    ]


def _refusal(error: AzureError) -> Answer:
    if isinstance(error, ResourceExistsError):
        return None  # somebody was faster
    return Refusal(_reason(error), _is_unauthorized(error))


def _is_unauthorized(error: BaseException) -> bool:
    """401; 403 is also what the service says when a quota of the namespace is used up."""
    if isinstance(error, ClientAuthenticationError):
        return True
    return isinstance(error, HttpResponseError) and error.status_code == 403 and "claim" in str(error).lower()


def _reason(error: BaseException) -> str:
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _unreachable(secondary: Side, error: Exception) -> Exception:
    if _is_unauthorized(error):
        return PairingUnauthorized(secondary.name, _reason(error))
    return SecondaryUnreachable(secondary.name, _reason(error))


def _checked(result: Provisioned, secondary: Side) -> Provisioned:
    if result.unauthorized is not None:
        raise PairingUnauthorized(secondary.name, result.unauthorized)
    for warning in result.warnings:
        _log.warning("%s: %s", secondary.name, warning)
    if not result.paths:
        reasons = "; ".join(sorted({reason for _, reason in result.left_out}))
        raise SendAvailabilityBacklogError.of_pairing(secondary.name, reasons)
    return result
