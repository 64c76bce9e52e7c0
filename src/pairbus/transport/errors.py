"""Errors between this client and a broker; each tells whether the outcome is known.

TransportError
├── ConnectionLost     the connection is gone; all callers that waited on it get this
├── Timeout            one call was given up by its clock; `silence` tells whether the peer was heard until then
├── Refused            the peer refused, and named a condition
│   └── TooLarge       nothing was sent: the message has more bytes than the peer takes
├── Exhausted          this connection has no channel left for another link; a second connection has
└── NotReady           `send_nowait` without credit or window; nothing was sent

A caller must look at `outcome_unknown` before it repeats a call: True means that the peer may have done the operation
(a send was in flight, a settlement was not answered, the service answered with its own time-out), False that it
certainly has not.

Whether the peer was heard is a value, `silence`, which is measured at the socket and which everybody passes on. No
caller infers it from the class of an error.
"""

from __future__ import annotations

from typing import Self

from pairbus.errors import PairbusError
from pairbus.pairing.policy import Failure, Kind, Silence, kind_of_condition


class TransportError(PairbusError):
    """The base class of all errors of this client about its peer."""

    silence: Silence | None = None
    "The silence of the peer when the call was given up. None: it was not given up by its clock."

    def __init__(self, text: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(text)
        self.outcome_unknown = outcome_unknown

    def again(self, *, outcome_unknown: bool) -> Self:
        """Return the same error for another caller: one instance raised twice would mix two tracebacks."""
        return type(self)(str(self), outcome_unknown=outcome_unknown)


class ConnectionLost(TransportError):
    """The connection, or the link that was used, is gone for good. A new `connect` is the only way on."""

    def __init__(self, text: str, *, condition: str | None = None, outcome_unknown: bool = False) -> None:
        super().__init__(text, outcome_unknown=outcome_unknown)
        self.condition = condition
        "The condition in the peer's close; None when it gave none, or when the socket broke."

    def again(self, *, outcome_unknown: bool) -> Self:
        return type(self)(str(self), condition=self.condition, outcome_unknown=outcome_unknown)


class Timeout(TransportError):
    """The call's deadline passed, or the peer was silent for longer than the call allows."""

    silence: Silence

    def __init__(self, text: str, silence: Silence, *, outcome_unknown: bool = False) -> None:
        super().__init__(text, outcome_unknown=outcome_unknown)
        self.silence = silence

    def again(self, *, outcome_unknown: bool) -> Self:
        return type(self)(str(self), self.silence, outcome_unknown=outcome_unknown)


class Exhausted(TransportError):
    """All channels of this connection are in use. This does not concern the entity: open another connection."""


class NotReady(TransportError):
    """No credit, session window or room in the socket is left now. Nothing was sent: await `ready()`."""


class Refused(TransportError):
    """The peer refused a connection, link, message, settlement or request."""

    def __init__(
        self,
        condition: str,
        description: str | None = None,
        *,
        outcome_unknown: bool = False,
        delivery_ids: tuple[int, ...] = (),
    ) -> None:
        super().__init__(f"{condition}: {description}" if description else condition, outcome_unknown=outcome_unknown)
        self.condition = condition
        self.description = description
        self.delivery_ids = delivery_ids
        "The deliveries whose settlement was refused; the others of the same call were settled."

    def again(self, *, outcome_unknown: bool) -> Self:
        return type(self)(
            self.condition, self.description, outcome_unknown=outcome_unknown, delivery_ids=self.delivery_ids
        )


OWN_TIMEOUT = ("com.microsoft:timeout", "status:408")
"Conditions by which the service tells of its own time-out; the second is made from an answer that has only a status."


def leaves_open(condition: str) -> bool:
    """Return True when an operation that was answered with this condition may have been carried out nevertheless.

    With its own time-out the service says that it stopped waiting, for its storage for example, not that the operation
    failed. This holds for messages, settlements and requests; a link that is refused with it is not open.
    """
    return condition in OWN_TIMEOUT


class TooLarge(Refused):
    """The message or batch is larger than the link allows, and was not sent."""


def failure_of(error: TransportError) -> Failure:
    """Convert an error of the transport into a failure of the pairing core."""
    return Failure(_kind_of(error), str(error), error.outcome_unknown, error, error.silence)


def _kind_of(error: TransportError) -> Kind:
    if isinstance(error, Refused):
        return kind_of_condition(error.condition)
    if isinstance(error, Timeout):
        return Kind.TIMEOUT
    if isinstance(error, ConnectionLost) and error.condition is not None:
        # A close is about the connection, not about the entity or the message: a fresh connection is tried. Only
        # after throttling, or without the right, the send must not be repeated at once.
        kind = kind_of_condition(error.condition)
        return kind if kind in (Kind.BUSY, Kind.UNAUTHORIZED) else Kind.COMMUNICATION
    return Kind.COMMUNICATION
