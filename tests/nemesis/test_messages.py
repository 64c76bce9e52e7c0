"""How programs of nemesis read what they receive."""

from __future__ import annotations

from pairbus.amqp.message import Message
from tests.nemesis.messages import recognise


def test_message_without_properties_is_told_and_ends_no_receiver() -> None:
    """A wrong broker may deliver a message whose body it has deleted: the judge must hear of it as of any other."""
    payload = Message(annotations={"x-opt-sequence-number": 7}).encode()
    assert recognise(payload) == ("", 7, "")
