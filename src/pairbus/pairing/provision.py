"""Finding and creating backlog queues, when a client pairs: a generator of commands, as for a send.

    plan = provisioning("contoso", count=10)
    command = next(plan)
    while True: command = plan.send(answer)      # StopIteration.value is the Provisioned

| command | its answer                                                        |
| ------- | ----------------------------------------------------------------- |
| List    | the queues below the prefix                                       |
| Create  | None: it exists, made by us or by a faster client; or a Refusal   |
| Pause   | None                                                              |
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pairbus.pairing.rotation import INFIX, LOCK_DURATION_S, MAX_DELIVERY_COUNT, MAX_SIZE_MB, queue_index, queue_path
from pairbus.settings.durations import UNLIMITED_TEXT

ATTEMPTS = 3
PAUSE_S = 30.0

SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "max_size_in_megabytes": MAX_SIZE_MB,
        "max_delivery_count": MAX_DELIVERY_COUNT,
        "default_message_time_to_live": UNLIMITED_TEXT,
        "auto_delete_on_idle": UNLIMITED_TEXT,
        "lock_duration": f"PT{LOCK_DURATION_S:g}S",
        "dead_lettering_on_message_expiration": True,
        "enable_batched_operations": True,
    }
)
"Settings of every backlog queue, as keywords of the SDK's `create_queue`; the others are the service's defaults."


@dataclass(frozen=True, slots=True)
class List:
    prefix: str
    "Beginning of the paths, in any case."


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProvisionPause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    messages: int
    "Number of messages in the queue, dead letters included."


@dataclass(frozen=True, slots=True)
class ProvisionRefusal:
    reason: str
    unauthorized: bool = False
    "True: another request would not help."


@dataclass(frozen=True, slots=True)
class Provisioned:
    """Result of provisioning."""

    paths: tuple[str, ...]
    "Backlog queues that can be used, in the order of their numbers."
    created: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    "(path, reason) of queues that could not be created."
    unauthorized: str | None = None
    "Reason why the secondary refused; then the other fields do not count."
    warnings: tuple[str, ...] = ()


Command = List | Create | ProvisionPause
ProvisionAnswer = list[Found] | ProvisionRefusal | None
ProvisionPlan = Generator[Command, ProvisionAnswer, Provisioned]


def provisioning(primary_name: str, count: int, *, patient: bool = True) -> ProvisionPlan:
    """Find or create queues 0 … count-1. Existing queues are used as they are; queues beyond the count are ignored.

    Unless `patient`, a queue that cannot be created is not waited for while there is another one.
    """
    listed = yield List(f"{primary_name}/{INFIX}/")
    assert isinstance(listed, list)
    indexed = {index: queue for queue in listed if (index := queue_index(primary_name, queue.path)) is not None}
    paths = {index: queue.path for index, queue in indexed.items() if index < count}
    extra = [queue for index, queue in sorted(indexed.items()) if index >= count]
    missing = [index for index in range(count) if index not in paths]
    created: list[str] = []
    reasons: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        if missing and attempt:
            if paths and not patient:
                break
            yield ProvisionPause(PAUSE_S)
        for index in list(missing):
            path = queue_path(primary_name, index)
            refusal = yield Create(path, SETTINGS)
            if isinstance(refusal, ProvisionRefusal):
                if refusal.unauthorized:
                    return Provisioned((), unauthorized=refusal.reason)
                reasons[path] = refusal.reason
                continue
            missing.remove(index)
            reasons.pop(path, None)
            paths[index] = path
            created.append(path)
    return Provisioned(
        tuple(paths[index] for index in sorted(paths)),
        tuple(created),
        tuple(reasons.items()),
        None,
        (*_tell_of_extra(extra, count), *_tell_of_left_out(reasons)),
    )


def assumed(primary_name: str, count: int) -> list[str]:
    """Return the paths of queues that were created before, without a request. A missing one fails at its first use."""
    return [queue_path(primary_name, index) for index in range(count)]


def _tell_of_extra(extra: list[Found], count: int) -> list[str]:
    return [
        f"{queue.path} holds {queue.messages} messages, but with backlog_queue_count={count} no syphon of this client"
        " reads it: run one with a higher count until it is empty"
        for queue in extra
        if queue.messages
    ]


def _tell_of_left_out(reasons: dict[str, str]) -> list[str]:
    return [f"{path} could not be created and is left out: {reason}" for path, reason in reasons.items()]
