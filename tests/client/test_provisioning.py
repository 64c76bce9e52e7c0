"""Requests of pairing: how many there were, how each ended, and which error tells of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError

from pairbus.client.errors import PairingUnauthorized, SecondaryUnreachable, SendAvailabilityBacklogError
from pairbus.client.provisioning import PAGE_SIZE, find_or_create, metered


def answered(status: int, text: str = "no") -> HttpResponseError:
    error = HttpResponseError(text)
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ClientAuthenticationError("who are you?"), "unauthorized"),
        (answered(403, "Manage claim is required"), "unauthorized"),
        (answered(403, "the quota of the namespace is used up"), "full"),
        (answered(400), "invalid"),
        (answered(500), "internal"),
        (answered(503), "internal"),
        (HttpResponseError("it broke off"), "communication"),
        (ServiceRequestError("refused"), "communication"),
        (OSError("no route"), "communication"),
    ],
)
def test_a_failed_request_is_counted_with_its_outcome(error: Exception, outcome: str) -> None:
    """A refused request costs as much as another, and an operator looks for the reason in the ledger."""
    rows: list[tuple[str, int, str]] = []
    with pytest.raises(type(error)), metered(lambda *row: rows.append(row), "queue"):
        raise error
    assert rows == [("queue", 1, outcome)]


@pytest.mark.parametrize(
    ("queues", "requests"), [(0, 1), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2), (3 * PAGE_SIZE, 3)]
)
def test_a_listing_counts_one_request_for_each_page(queues: int, requests: int) -> None:
    """Each page is billed."""
    rows: list[tuple[str, int, str]] = []
    with metered(lambda *row: rows.append(row), "$Resources/queues") as listed:
        listed += range(queues)
    assert rows == [("$Resources/queues", requests, "ok")]


class Admin:
    """An administration client of a secondary without queues, which refuses some calls."""

    def __init__(self, listing: Exception | None = None, creating: Exception | None = None) -> None:
        self.listing = listing
        self.creating = creating
        self.created: list[str] = []

    def list_queues_runtime_properties(self) -> list[Any]:
        if self.listing is not None:
            raise self.listing
        return []

    def create_queue(self, path: str, **settings: Any) -> None:
        self.created.append(path)
        if self.creating is not None:
            raise self.creating


@pytest.mark.parametrize(
    ("admin", "error", "tries"),
    [
        (Admin(listing=answered(403, "Manage claim is required")), PairingUnauthorized, 0),
        (Admin(listing=ServiceRequestError("refused")), SecondaryUnreachable, 0),
        (Admin(creating=answered(403, "Manage claim is required")), PairingUnauthorized, 1),
        (Admin(creating=answered(500)), SendAvailabilityBacklogError, 3),
    ],
    ids=["list refused", "no answer", "create refused", "create fails"],
)
async def test_pairing_that_fails_says_whether_a_right_or_an_answer_is_missing(
    admin: Admin, error: type[Exception], tries: int
) -> None:
    """A missing right is not tried again: waiting does not help, and a person has to act."""
    secondary = cast(Any, SimpleNamespace(given_admin=admin, name="fabrikam"))
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    with pytest.raises(error, match="fabrikam"):
        await find_or_create(secondary, "contoso", 1, pause)
    assert admin.created == ["contoso/x-servicebus-transfer/0"] * tries
    assert pauses == [30.0] * max(tries - 1, 0)
