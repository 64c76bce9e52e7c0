"""A request that the broker refuses: the AMQP condition and the sentence that the peer gets."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.amqp.errors import INTERNAL_ERROR, NOT_ALLOWED, NOT_FOUND
from pairbus.errors import PairbusError, StoreError

ARGUMENT_ERROR = "com.microsoft:argument-error"
ENTITY_DISABLED = "com.microsoft:entity-disabled"
ENTITY_EXISTS = "com.microsoft:entity-already-exists"
MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SERVER_BUSY = "com.microsoft:server-busy"
TIMEOUT = "com.microsoft:timeout"


class Refusal(PairbusError):
    """The request was not carried out and changed nothing. `condition` is the AMQP symbol that the peer gets."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def refusal_of(error: StoreError) -> Refusal:
    """Return the refusal for a failing store or a full disk: the broker's trouble, so the peer may try again."""
    return Refusal(INTERNAL_ERROR, f"The broker could not store the change: {error}")


def unreadable(error: StoreError) -> Refusal:
    """Return the refusal of a request whose messages, or state, cannot be read now: the peer may try again."""
    return Refusal(INTERNAL_ERROR, f"The broker could not read its store: {error}")


def entity_not_found(path: str) -> Refusal:
    """Return the refusal with the path, or with the whole address where the client's name for the host is known.

    The JavaScript SDK recognises a missing entity by the beginning of this sentence, not by the condition.
    """
    return Refusal(NOT_FOUND, f"The messaging entity '{path}' could not be found.")


def lock_lost(count: int = 1) -> Refusal:
    """Return the refusal for `count` lost locks among those that one request named."""
    which = "The lock supplied is" if count == 1 else f"{count} of the locks supplied are"
    return Refusal(
        MESSAGE_LOCK_LOST, f"{which} invalid: the lock expired, or the message was already removed from the queue."
    )


def messages_not_found(seqs: Sequence[int], state: str, path: str) -> Refusal:
    """Return the refusal of a request that names messages which are not in this state."""
    first = ", ".join(map(str, seqs[:5])) + (", …" if len(seqs) > 5 else "")
    return Refusal(MESSAGE_NOT_FOUND, f"'{path}' has no {state} message with sequence number {first}.")


def dead_letters_take_no_sends(path: str) -> Refusal:
    return Refusal(NOT_ALLOWED, f"Messages cannot be sent to the dead-letter queue of '{path}'.")


def session_cannot_be_locked(session_id: str) -> Refusal:
    return Refusal(
        SESSION_CANNOT_BE_LOCKED,
        f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.",
    )


def session_lock_lost(session_id: str) -> Refusal:
    return Refusal(
        SESSION_LOCK_LOST,
        f"The session lock of '{session_id}' has expired or was released. Accept the session again.",
    )
