"""Requests of pairing in the ledger: how many there were, and how each ended."""

from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError

from pairbus.client.provisioning import PAGE_SIZE, metered


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
