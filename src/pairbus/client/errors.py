"""The errors of a paired client. Each is also the SDK's error of its sort: code written for the plain SDK catches it.

Every error that a call of a sender raises, the SDK's own included, has `outcome_unknown`: True when places did not
answer and may have the message all the same (`may_be_in` names them), False when no place has a message of the call,
except those that `PartlySent` lists.

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
from typing import Any

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.errors import PairingError

IDS_SHOWN = 5


class SendAvailabilityBacklogError(PairingError, ServiceBusError):
    """No backlog queue took the message, and no spool. The caller still owns it.

    The message is stored nowhere, unless `outcome_unknown`: then the places of `may_be_in` did not answer, and may
    have it.
    """

    def __init__(self, path: str, reason: str, places: Sequence[str] = (), *, is_spool: bool = False) -> None:
        who = "the spool did not take the message" if is_spool else "no backlog queue took the message"
        where = may_be_in(places) if places else "It is stored in neither namespace."
        super().__init__(
            f"{path}: {who}: {_sentence(reason)} {where} The caller still owns it, and may send it again with the same"
            " message id."
        )
        self.path = path
        self.may_be_in = tuple(places)
        "Places that did not answer: `the primary`, backlog queues, or `the spool`."
        self.outcome_unknown = bool(places)

    @classmethod
    def of_pairing(cls, secondary: str, reason: str) -> SendAvailabilityBacklogError:
        """Make the error of a pairing that found no queue and could create none."""
        error = cls(secondary, reason)
        text = f"{secondary} has no backlog queue and could create none: {_sentence(reason)} Nothing was sent."
        error.args, error.message = (text,), text
        return error


class BacklogMessageTooLarge(PairingError, MessageSizeExceededError):
    """The message fits the primary but not a backlog queue. The caller still owns it."""

    def __init__(self, path: str, overhead_bytes: int, reason: str, places: Sequence[str] = ()) -> None:
        where = may_be_in(places) if places else "It was not sent."
        super().__init__(
            message=f"{path}: the message is too large for a backlog queue, whose copy needs up to {overhead_bytes}"
            f" bytes more: {_sentence(reason)} {where} The caller still owns it. Make it smaller by that, or send it"
            " when the primary is back."
        )
        self.path = path
        self.may_be_in = tuple(places)
        self.outcome_unknown = bool(places)
        self.overhead_bytes = overhead_bytes


class PartlySent(PairingError, ServiceBusError):
    """A list did not fit one batch of the backlog and was split; then a part failed.

    Messages in `stored_ids` are safe in backlog queues. The caller still owns the messages in `unsent_ids`; with
    `outcome_unknown`, the places of `may_be_in` did not answer, and may have some of them.
    """

    def __init__(
        self, path: str, stored_ids: Sequence[str], unsent_ids: Sequence[str], reason: str, places: Sequence[str] = ()
    ) -> None:
        doubt = f" {may_be_in(places)}" if places else ""
        super().__init__(
            f"{path}: {len(stored_ids)} of {len(stored_ids) + len(unsent_ids)} messages are stored in the backlog, the"
            f" others ({_some(unsent_ids)}) are not known to be: {_sentence(reason)}{doubt} Send those of `unsent_ids`"
            " again, no others."
        )
        self.path = path
        self.may_be_in = tuple(places)
        self.outcome_unknown = bool(places)
        self.stored_ids = list(stored_ids)
        self.unsent_ids = list(unsent_ids)


class PairedMessagingFactoryError(PairingError, ServiceBusError):
    """The client is unusable, because one of its namespaces was faulted. Nothing was sent by this call.

    With `outcome_unknown`: it was faulted during the send, and the places of `may_be_in` may have the message.
    """

    def __init__(self, who: str, reason: str, places: Sequence[str] = ()) -> None:
        where = may_be_in(places) if places else "Nothing was sent by this call; make a new client."
        super().__init__(f"{who} is faulted: {_sentence(reason)} {where}")
        self._why = who, reason
        self.may_be_in = tuple(places)
        self.outcome_unknown = bool(places)

    def unanswered_by(self, places: Sequence[str]) -> PairedMessagingFactoryError:
        """Return the error of a call to which these places have not answered."""
        return PairedMessagingFactoryError(*self._why, places)


class ClientClosed(PairingError, ServiceBusError, ValueError):
    """The client, or the sender, was closed. Nothing was sent by this call. (The plain SDK raises a ValueError.)

    With `outcome_unknown`: it was closed during the send, and the places of `may_be_in` may have the message.
    """

    def __init__(self, what: str, places: Sequence[str] = ()) -> None:
        where = may_be_in(places) if places else "Nothing was sent by this call; make a new one."
        super().__init__(f"{what} is closed. {where}")
        self._what = what
        self.may_be_in = tuple(places)
        self.outcome_unknown = bool(places)

    def unanswered_by(self, places: Sequence[str]) -> ClientClosed:
        """Return the error of a call to which these places have not answered."""
        return ClientClosed(self._what, places)


class ReservedPropertyError(PairingError, ValueError):
    """An application property has a name that backlog messages use. The message was not sent, in any state."""

    outcome_unknown = False
    may_be_in: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the application property {name!r} has a name that backlog messages use for themselves. The message was"
            " not sent; rename the property."
        )
        self.name = name


class ScheduleWhileFailedOver(PairingError, ServiceBusError):
    """Scheduling and cancelling need the primary, which is away. Nothing was scheduled or cancelled.

    With `outcome_unknown`: a request got no answer, and the primary may have carried it out.
    """

    def __init__(self, path: str, places: Sequence[str] = ()) -> None:
        done = "Nothing was scheduled or cancelled."
        if places:
            done = "A request of this call got no answer: the primary may have scheduled or cancelled all the same."
        super().__init__(
            f"{path} is failed over, and a backlog queue has no sequence numbers to cancel by. {done} Send the message"
            " with scheduled_enqueue_time_utc instead: that works while failed over, and with the same message id an"
            " entity that detects duplicates keeps one."
        )
        self.path = path
        self.may_be_in = tuple(places)
        self.outcome_unknown = bool(places)


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


def tell_outcome(error: BaseException, places: Sequence[str] = ()) -> None:
    """Set `outcome_unknown` and `may_be_in` of an error for a caller, and add a note when the outcome is unknown."""
    marked: Any = error
    marked.outcome_unknown, marked.may_be_in = bool(places), tuple(places)
    if places:
        error.add_note(may_be_in(places))


def tells_outcome(error: BaseException) -> bool:
    return hasattr(error, "outcome_unknown")


def may_be_in(places: Sequence[str]) -> str:
    """Write the sentence about places that did not answer."""
    return f"Unknown outcome: {' and '.join(places)} did not answer, and may have stored it all the same."


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _some(ids: Sequence[str]) -> str:
    more = len(ids) - IDS_SHOWN
    return ", ".join(ids[:IDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
