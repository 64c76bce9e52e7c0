"""The errors of a paired client. Each is also the SDK's error of its sort: code written for the plain SDK catches it.

PairingError
├── SendAvailabilityBacklogError    ServiceBusError              no backlog queue took the message
├── BacklogMessageTooLarge          MessageSizeExceededError     it fits the primary, not the backlog
├── PartlySent                      ServiceBusError              some of a list are stored, the others are not
├── PairedMessagingFactoryError     ServiceBusError              a side was faulted, the client is of no more use
├── ClientClosed                    ServiceBusError, ValueError  closed by its owner
├── ReservedPropertyError           ValueError                   an application property has one of our names
├── ScheduleWhileFailedOver         ServiceBusError              scheduling needs the primary
├── PairingUnauthorized             ServiceBusAuthorizationError pairing needs the Manage claim
└── SecondaryUnreachable            ServiceBusConnectionError    pairing got no answer
"""

from __future__ import annotations

from collections.abc import Sequence

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.errors import PairingError

IDS_SHOWN = 5


class SendAvailabilityBacklogError(PairingError, ServiceBusError):
    """No backlog queue took the message. It was not sent; the caller still owns it."""

    def __init__(self, path: str, reason: str, *, outcome_unknown: bool = False) -> None:
        primary = " An attempt at the primary has an unknown outcome: it may be there." if outcome_unknown else ""
        super().__init__(
            f"{path}: no backlog queue took the message: {_sentence(reason)} It is not stored in the secondary;"
            f" the caller still owns it, and may send it again with the same message id.{primary}"
        )
        self.path = path
        self.outcome_unknown = outcome_unknown
        "The primary may have stored the message all the same."

    @classmethod
    def of_pairing(cls, secondary: str, reason: str) -> SendAvailabilityBacklogError:
        """There is no queue at all, so nothing could be sent yet."""
        error = cls(secondary, reason)
        text = f"{secondary} has no backlog queue and could create none: {_sentence(reason)} Nothing was sent."
        error.args, error.message = (text,), text
        return error


class BacklogMessageTooLarge(PairingError, MessageSizeExceededError):
    """The message fits the primary but not a backlog queue. It was not sent; the caller still owns it."""

    def __init__(self, path: str, overhead_bytes: int, reason: str) -> None:
        super().__init__(
            message=f"{path}: the message is too large for a backlog queue, whose copy needs up to {overhead_bytes}"
            f" bytes more: {_sentence(reason)} It was not sent; the caller still owns it. Make it smaller by that, or"
            " send it when the primary is back."
        )
        self.path = path
        self.overhead_bytes = overhead_bytes


class PartlySent(PairingError, ServiceBusError):
    """A list did not fit one batch of the backlog and was split; then a part failed.

    Those in `stored_ids` are safe in backlog queues. Those in `unsent_ids` are not: the caller still owns them.
    """

    def __init__(self, path: str, stored_ids: Sequence[str], unsent_ids: Sequence[str], reason: str) -> None:
        super().__init__(
            f"{path}: {len(stored_ids)} of {len(stored_ids) + len(unsent_ids)} messages are stored in the backlog, the"
            f" others ({_some(unsent_ids)}) are not: {_sentence(reason)} Send those of `unsent_ids` again, no others."
        )
        self.path = path
        self.stored_ids = list(stored_ids)
        self.unsent_ids = list(unsent_ids)


class PairedMessagingFactoryError(PairingError, ServiceBusError):
    """One of the two namespaces was faulted, and with it the client. Nothing was sent by this call."""

    def __init__(self, primary: str, secondary: str, reason: str) -> None:
        super().__init__(
            f"the pair of {primary} and {secondary} is faulted: {_sentence(reason)} Nothing was sent by this call;"
            " make a new client."
        )


class ClientClosed(PairingError, ServiceBusError, ValueError):
    """The client, or the sender, was closed. Nothing was sent by this call. (The plain SDK raises a ValueError.)

    Unless `outcome_unknown`: an attempt was under way, and may have stored the message.
    """

    def __init__(self, what: str, *, outcome_unknown: bool = False) -> None:
        known = "Nothing was sent by this call; make a new one."
        unknown = (
            "It was closed during this send, and the last attempt has an unknown outcome: the primary may have it."
        )
        super().__init__(f"{what} is closed. {unknown if outcome_unknown else known}")
        self.outcome_unknown = outcome_unknown
        "The message may have been stored all the same."


class ReservedPropertyError(PairingError, ValueError):
    """An application property has a name that backlog messages use. The message was not sent, healthy or not."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the application property {name!r} has a name that backlog messages use for themselves. The message was"
            " not sent; rename the property."
        )
        self.name = name


class ScheduleWhileFailedOver(PairingError, ServiceBusError):
    """Scheduling and cancelling need the primary, which is away. Nothing was scheduled or cancelled."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is failed over, and a backlog queue has no sequence numbers to cancel by. Nothing was scheduled or"
            " cancelled. Send the message with scheduled_enqueue_time_utc instead: that works while failed over."
        )
        self.path = path


class PairingUnauthorized(PairingError, ServiceBusAuthorizationError):
    """The secondary refused to list or create backlog queues. Nothing was sent."""

    def __init__(self, secondary: str, reason: str) -> None:
        super().__init__(
            message=f"{secondary} refused the administration of its queues: {_sentence(reason)} Pairing needs the"
            " Manage claim on the secondary. Without it, let somebody run `pairbus pair create` once, and pair with"
            " create_backlog_queues=False."
        )


class SecondaryUnreachable(PairingError, ServiceBusConnectionError):
    """The secondary did not answer while pairing. Nothing was sent."""

    def __init__(self, secondary: str, reason: str) -> None:
        super().__init__(
            message=f"{secondary} cannot be reached, so its backlog queues are not known: {_sentence(reason)} Nothing"
            " was sent. With require_secondary=False a client starts without it, and pairs when it can."
        )


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - IDS_SHOWN
    return ", ".join(ids[:IDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
