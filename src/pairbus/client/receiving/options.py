"""Options of one receiver, checked as the SDK checks them, with the SDK's texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import uuid4

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue

from pairbus.transport.connection.client_connection import Mode

PREFETCH_MAX = 50_000
PREFETCH_BYTES = 32 << 20  # 128 messages of the largest size of the Standard tier
_SUFFIXES = {
    ServiceBusSubQueue.DEAD_LETTER: "/$DeadLetterQueue",
    ServiceBusSubQueue.TRANSFER_DEAD_LETTER: "/$Transfer/$DeadLetterQueue",
}


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """Options of one receiver. Make them with `of_queue` or `of_subscription`, which check them."""

    path: str
    "Path of the queue, subscription or sub-queue."
    session_id: str | None = None
    "The session to receive from; None with `any_session`, and on an entity without sessions."
    any_session: bool = False
    "True: the next session that has messages and no receiver."
    receive_mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK
    prefetch_count: int = 0
    "Number of messages that may be fetched ahead of calls; 0: none."
    prefetch_bytes: int = PREFETCH_BYTES
    "Bytes of messages that may wait for a call; messages on their way are counted by the sizes of those before them."
    max_wait_time: float | None = None
    "Default wait of a receive and of an iteration, and the wait for the next session; seconds."
    auto_lock_renewer: Any = None
    "An AutoLockRenewer of the SDK, to which the face gives messages, or the session."
    client_identifier: str = ""

    @property
    def mode(self) -> Mode:
        return "peek-lock" if self.locks else "receive-and-delete"

    @property
    def locks(self) -> bool:
        return self.receive_mode is ServiceBusReceiveMode.PEEK_LOCK

    @property
    def has_session(self) -> bool:
        return self.any_session or self.session_id is not None


def of_queue(
    queue_name: str,
    *,
    only_entity: str | None = None,
    session_id: Any = None,
    sub_queue: ServiceBusSubQueue | str | None = None,
    **options: Any,
) -> ReceiverOptions:
    """Check the arguments of `get_queue_receiver`. `only_entity`: the entity that the connection string names."""
    if only_entity and queue_name != only_entity:
        raise ValueError(
            "The queue name provided does not match the EntityPath in"
            " the connection string used to construct the ServiceBusClient."
        )
    if sub_queue and session_id:
        raise ValueError(
            "session_id and sub_queue can not be specified simultaneously. To connect to the sub queue of a"
            " sessionful queue, please set sub_queue only as sub_queue does not support session."
        )
    if not queue_name:
        raise ValueError("Queue/Topic name is missing. Please specify queue_name/topic_name.")
    return _checked(queue_name, session_id, sub_queue, **options)


def of_subscription(
    topic_name: str,
    subscription_name: str,
    *,
    only_entity: str | None = None,
    session_id: Any = None,
    sub_queue: ServiceBusSubQueue | str | None = None,
    **options: Any,
) -> ReceiverOptions:
    """Check the arguments of `get_subscription_receiver`; `only_entity` as above."""
    if only_entity and topic_name != only_entity:
        raise ValueError(
            "The topic name provided does not match the EntityPath in"
            " the connection string used to construct the ServiceBusClient."
        )
    if sub_queue and session_id:
        raise ValueError(
            "session_id and sub_queue can not be specified simultaneously. To connect to the sub queue of a"
            " sessionful subscription, please set sub_queue only as sub_queue is not sessionful."
        )
    if not topic_name:
        raise ValueError("Queue/Topic name is missing. Please specify queue_name/topic_name.")
    if not subscription_name:
        raise ValueError("Subscription name is missing for the topic. Please specify subscription_name.")
    return _checked(f"{topic_name}/Subscriptions/{subscription_name}", session_id, sub_queue, **options)


def _checked(  # noqa: PLR0913 - each is a setting of its own
    path: str,
    session_id: Any,
    sub_queue: ServiceBusSubQueue | str | None,
    *,
    receive_mode: ServiceBusReceiveMode | str = ServiceBusReceiveMode.PEEK_LOCK,
    max_wait_time: float | None = None,
    auto_lock_renewer: Any = None,
    prefetch_count: int = 0,
    prefetch_bytes: int = PREFETCH_BYTES,
    client_identifier: str | None = None,
    **_: Any,
) -> ReceiverOptions:
    if sub_queue:
        path += _SUFFIXES[ServiceBusSubQueue(_value_of(sub_queue))]
    mode = ServiceBusReceiveMode(_value_of(receive_mode))
    count = int(prefetch_count)
    if not 0 <= count <= PREFETCH_MAX:
        raise ValueError("prefetch_count must be an integer between 0 and 50000 inclusive.")
    if prefetch_bytes <= 0:
        raise ValueError(f"prefetch_bytes is {prefetch_bytes}; it must be greater than 0")
    if max_wait_time is not None and max_wait_time <= 0:
        raise ValueError("The max_wait_time must be greater than 0.")
    if auto_lock_renewer and mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE and session_id is None:
        raise ValueError(
            "Messages received in RECEIVE_AND_DELETE receive mode cannot have their locks removed "
            "as they have been deleted, providing an AutoLockRenewer in this mode is invalid."
        )
    any_session = session_id == NEXT_AVAILABLE_SESSION
    return ReceiverOptions(
        path,
        None if any_session else session_id,
        any_session,
        mode,
        count,
        prefetch_bytes,
        max_wait_time,
        auto_lock_renewer,
        client_identifier or f"SBReceiver-{uuid4()}",
    )


def _value_of(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
