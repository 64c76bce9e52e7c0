"""What a client does when nobody said anything else, and where its receivers look."""

from __future__ import annotations

import pytest

from pairbus import PairedServiceBusClient, SendAvailabilityPairedNamespaceOptions
from pairbus.hub import timeout_of
from pairbus.pairing.options import PRIMARY_SHARE
from pairbus.syphon import SyphonSettings

NOBODY = "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"


def test_a_send_that_names_no_time_out_has_sixty_seconds_of_which_the_primary_gets_a_third() -> None:
    """The caller of a web application waits no longer either."""
    assert timeout_of(None) == 60.0
    assert timeout_of(None) * PRIMARY_SHARE == 20.0
    assert timeout_of(2.5) == 2.5
    with pytest.raises(ValueError, match="greater than 0"):
        timeout_of(0)


def test_a_pump_polls_for_fifteen_minutes_and_takes_up_to_a_hundred_messages() -> None:
    """Ten idle queues then cost 40 receives an hour."""
    settings = SyphonSettings.of(SendAvailabilityPairedNamespaceOptions())
    assert (settings.poll_s, settings.batch_max) == (15 * 60.0, 100)
    assert 10 * 3600 / settings.poll_s == 40


def test_a_session_and_its_state_are_the_primarys() -> None:
    """Application logic never talks to the secondary, which has no sessions of the application's."""
    primary, secondary = NOBODY.format(port=9), NOBODY.format(port=10)
    client = PairedServiceBusClient.from_connection_strings(primary, secondary)
    receiver = client.get_queue_receiver("orders", session_id="s1")
    assert receiver.fully_qualified_namespace == "127.0.0.1:9"
    assert receiver.session.session_id == "s1"
    subscription = client.get_subscription_receiver("events", "audit", session_id="s1")
    assert subscription.fully_qualified_namespace == "127.0.0.1:9"
    client.close()
