"""Pairing: the backlog queues of the secondary, found or created with the SDK's administration client.

`pairing.provision` decides; here its commands are carried out. An administration client of the sync SDK, which a user
may have given, is asked in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ResourceExistsError

from pairbus.client.errors import PairingUnauthorized, SecondaryUnreachable, SendAvailabilityBacklogError
from pairbus.client.sides import Side
from pairbus.errors import ConfigError
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.policy import Kind
from pairbus.pairing.provision import (
    Create,
    Found,
    List,
    ProvisionAnswer,
    Provisioned,
    ProvisionRefusal,
    assumed,
    provisioning,
)
from pairbus.transport.threads import in_thread

_log = logging.getLogger("pairbus")

LIST = "$Resources/queues"
PAGE_SIZE = 100  # queues in one answer
Meter = Callable[[str, int, str], None]
"Function of entity, number of requests, outcome."
TRUST = (
    "A broker of Pairbus on another machine has a certificate of its own: fetch its /ca.pem into a file, and give that"
    " with secondary_kwargs={'connection_verify': FILE}."
)


def _no_meter(entity: str, count: int, outcome: str) -> None:
    pass


async def provision(
    secondary: Side, primary_name: str, options: SendAvailabilityPairedNamespaceOptions, meter: Meter = _no_meter
) -> list[str]:
    """Return the paths of the backlog queues, found or created by the options.

    Raises PairingUnauthorized, SecondaryUnreachable, or SendAvailabilityBacklogError when there is none.
    """
    if not options.create_backlog_queues:
        return assumed(primary_name, options.backlog_queue_count)
    backlog = await find_or_create(secondary, primary_name, options.backlog_queue_count, meter=meter, patient=False)
    return list(backlog.paths)


async def find_or_create(
    secondary: Side,
    primary_name: str,
    count: int,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    meter: Meter = _no_meter,
    *,
    patient: bool = True,
) -> Provisioned:
    """Find the backlog queues and create the missing ones; the result names queues that could not be created.

    Unless `patient`, they are not waited for while there is another one.
    """
    admin: Any = None
    try:
        # For an emulator the certificate is fetched first, which blocks.
        admin = secondary.given_admin or await in_thread("pairbus-certificate", partial(secondary.new_admin, aio=True))
        plan = provisioning(primary_name, count, patient=patient)
        answer: ProvisionAnswer = None
        while True:
            match plan.send(answer):
                case List(prefix):
                    with metered(meter, LIST) as listed:
                        listed += await _listed(admin)
                    answer = _matching(listed, prefix)
                case Create(path, settings):
                    answer = await _created(admin, path, settings, meter)
                case wait:
                    await pause(wait.seconds)
                    answer = None
    except StopIteration as end:
        return _checked(end.value, secondary)
    except (AzureError, OSError, ConfigError) as error:
        raise _unreachable(secondary, error) from error
    finally:
        if admin is not None and admin is not secondary.given_admin:
            await admin.close()


async def _listed(admin: Any) -> list[Any]:
    queues = admin.list_queues_runtime_properties()
    if hasattr(queues, "__aiter__"):
        return [one async for one in queues]
    return await in_thread("pairbus-admin", list, queues)


async def _created(admin: Any, path: str, settings: Mapping[str, Any], meter: Meter) -> ProvisionAnswer:
    try:
        with metered(meter, path):
            if inspect.iscoroutinefunction(admin.create_queue):
                await admin.create_queue(path, **settings)
            else:
                await in_thread("pairbus-admin", partial(admin.create_queue, path, **settings))
    except ResourceExistsError:
        return None  # another client was faster
    except AzureError as error:
        return ProvisionRefusal(_reason(error), _is_unauthorized(error))
    return None


@contextmanager
def metered(meter: Meter, entity: str) -> Iterator[list[Any]]:
    """Count one request; or, when the caller puts queues into the list, one request for each page of them."""
    listed: list[Any] = []
    try:
        yield listed
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


def _matching(queues: list[Any], prefix: str) -> list[Found]:
    return [
        Found(queue.name, queue.total_message_count or 0)
        for queue in queues
        if queue.name.lower().startswith(prefix.lower())
    ]


def _is_unauthorized(error: BaseException) -> bool:
    """Return True for 401, and for 403 unless it means that a quota of the namespace is used up."""
    if isinstance(error, ClientAuthenticationError):
        return True
    return isinstance(error, HttpResponseError) and error.status_code == 403 and "claim" in str(error).lower()


def _reason(error: BaseException) -> str:
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _unreachable(secondary: Side, error: Exception) -> Exception:
    if _is_unauthorized(error):
        return PairingUnauthorized(secondary.name, _reason(error))
    reason = _reason(error)
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        reason += ". " + TRUST
    return SecondaryUnreachable(secondary.name, reason)


def _checked(result: Provisioned, secondary: Side) -> Provisioned:
    if result.unauthorized is not None:
        raise PairingUnauthorized(secondary.name, result.unauthorized)
    for warning in result.warnings:
        _log.warning("%s: %s", secondary.name, warning)
    if not result.paths:
        reasons = "; ".join(sorted({reason for _, reason in result.left_out}))
        raise SendAvailabilityBacklogError.of_pairing(secondary.name, reasons)
    return result
