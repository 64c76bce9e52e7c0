"""The errors of a paired client say where the message is, and what to do; and the plain SDK's handlers catch them."""

from __future__ import annotations

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

from pairbus.client import errors as send_errors
from pairbus.errors import PairingError

ERRORS: list[tuple[PairingError, type[Exception], list[str]]] = [
    (
        send_errors.SendAvailabilityBacklogError("orders", "refused"),
        ServiceBusError,
        ["orders", "refused.", "stored in neither namespace", "caller still owns it", "same message id"],
    ),
    (
        send_errors.SendAvailabilityBacklogError("orders", "silent", ["the primary", "contoso/0"]),
        ServiceBusError,
        ["orders", "silent.", "the primary and contoso/0 did not answer", "may have stored it"],
    ),
    (
        send_errors.SendAvailabilityBacklogError("orders", "full", is_spool=True),
        ServiceBusError,
        ["orders", "the spool did not take the message: full.", "caller still owns it"],
    ),
    (
        send_errors.BacklogMessageTooLarge("orders", 123, "too large"),
        MessageSizeExceededError,
        ["orders", "123 bytes", "caller still owns it"],
    ),
    (
        send_errors.PartlySent("orders", ["a"], ["b", "c"], "refused"),
        ServiceBusError,
        ["1 of 3", "b, c", "`unsent_ids`"],
    ),
    (
        send_errors.PairedMessagingFactoryError("the pair of contoso and fabrikam", "closed"),
        ServiceBusError,
        ["contoso", "fabrikam", "Nothing was sent", "new client"],
    ),
    (send_errors.ClientClosed("contoso"), ServiceBusError, ["contoso is closed", "Nothing was sent"]),
    (send_errors.ClientClosed("contoso"), ValueError, ["new one"]),
    (send_errors.ReservedPropertyError("x-ms-path"), ValueError, ["x-ms-path", "not sent", "rename"]),
    (
        send_errors.ScheduleWhileFailedOver("orders"),
        ServiceBusError,
        ["orders", "Nothing was scheduled", "scheduled_enqueue_time_utc"],
    ),
    (
        send_errors.PairingUnauthorized("fabrikam", "no"),
        ServiceBusAuthorizationError,
        ["fabrikam", "Manage claim", "pairbus pair create", "create_backlog_queues=False"],
    ),
    (
        send_errors.SecondaryUnreachable("fabrikam", "no answer"),
        ServiceBusConnectionError,
        ["fabrikam", "Nothing was sent", "require_secondary=False"],
    ),
]


@pytest.mark.parametrize(("error", "kind", "words"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_is_an_sdk_error_that_says_where_messages_are(
    error: PairingError, kind: type[Exception], words: list[str]
) -> None:
    """Code that was written for the plain SDK catches it; its reader knows what to do."""
    assert isinstance(error, kind) and isinstance(error, PairingError)
    text = str(error)
    assert [word for word in words if word not in text] == []


def test_a_list_that_was_partly_sent_tells_which() -> None:
    """Only these are sent again; a long list is not all in the text."""
    error = send_errors.PartlySent("orders", ["a"], [str(number) for number in range(50)], "refused")
    assert error.stored_ids == ["a"] and len(error.unsent_ids) == 50
    assert "and 45 more" in str(error)
