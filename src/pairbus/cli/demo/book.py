"""The messages of `pairbus demo`: which were sent, which were accepted, and which were found at the end.

The content of every message follows from the seed and its number. A digest covers all that the sender chose, so it
shows if a backlog queue changed anything.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, get_type_hints

from azure.servicebus import ServiceBusMessage

from pairbus.amqp.message import Message, Properties
from pairbus.cli.demo.pair import DemoEntity
from pairbus.explorer import sendable
from pairbus.pairing import pings
from pairbus.sdk.encoding import encode


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """Result of the demo, for the JSON file and the last table, which explains each number in the words used here."""

    sent: Annotated[int, "messages"]
    accepted: Annotated[int, "messages whose application was told that they are stored"]
    in_primary: Annotated[int, "found in the primary at the end; for a topic, in every subscription"]
    lost: Annotated[int, "accepted and not found"]
    duplicated: Annotated[int, "found more than once"]
    altered: Annotated[int, "found with other content, or in another entity"]
    diverted: Annotated[int, "taken by the secondary during the outage"]
    moved: Annotated[int, "moved home by the syphon"]
    failover_s: Annotated[float, "seconds from the kill until every application was sending again"]
    drain_s: Annotated[float, "seconds that the syphon took"]
    cost: Annotated[dict[str, dict[str, int]], "billable operations"]
    report: Annotated[str | None, "HTML report"]

    @property
    def is_good(self) -> bool:
        """True when no message was lost or altered; a duplicate breaks no promise."""
        return not (self.lost or self.altered)


MEANINGS = {name: hint.__metadata__[0] for name, hint in get_type_hints(DemoVerdict, include_extras=True).items()}


class Book:
    """Record of every message of one run, by message id."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.sent: dict[str, tuple[DemoEntity, bytes]] = {}
        "Entity and digest."
        self.accepted: set[str] = set()
        "Ids of the messages whose application was told that they are stored."
        self._found: Counter[tuple[str, str]] = Counter()
        "Times that a message was found, by place and message id."
        self._altered: set[str] = set()

    def new_message(self, entity: DemoEntity, application: str, number: int) -> ServiceBusMessage:
        """Make a message; every run makes the same one for the same seed and number."""
        chance = random.Random(f"{self._seed} {number}")
        message_id = f"{application}-{number}"
        message = ServiceBusMessage(
            chance.randbytes(chance.randint(100, 2000)),
            message_id=message_id,
            subject=f"{application} {entity.name}",
            content_type="application/octet-stream",
            correlation_id=f"{chance.getrandbits(64):016x}",
            time_to_live=timedelta(hours=chance.randint(1, 48)),
            application_properties={"number": number, "amount": chance.random(), "note": f"für {application}"},
            session_id=f"session {chance.randrange(5)}" if entity.has_sessions else None,
        )
        self.sent[message_id] = entity, _digest(encode(message))
        return message

    def found(self, place: str, payload: bytes) -> None:
        """Note an encoded message that is in a queue or a subscription; pings are none of the applications'."""
        properties = Message.decode(payload).properties
        assert properties is not None, "both applications and pings give message ids"
        if properties.content_type == pings.CONTENT_TYPE:
            return
        message_id = str(properties.message_id)
        self._found[place, message_id] += 1
        entity, digest = self.sent.get(message_id, (None, b""))
        if entity is None or place not in entity.places or digest != _digest(payload):
            self._altered.add(message_id)

    def counts(self) -> dict[str, Any]:
        """Return the numbers of a verdict that are about single messages."""
        whole = {
            message_id
            for message_id, (entity, _) in self.sent.items()
            if all(self._found[place, message_id] for place in entity.places)
        }
        return {
            "sent": len(self.sent),
            "accepted": len(self.accepted),
            "in_primary": len(whole),
            "lost": len(self.accepted - whole),
            "duplicated": len({message_id for (_, message_id), times in self._found.items() if times > 1}),
            "altered": len(self._altered),
        }


def _digest(payload: bytes) -> bytes:
    """Digest of all that the sender chose: without two times that the SDK writes anew when a send is repeated."""
    message = Message.decode(sendable(payload))
    message.properties = replace(message.properties or Properties(), creation_time=None, absolute_expiry_time=None)
    return hashlib.sha256(message.encode()).digest()
