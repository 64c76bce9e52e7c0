"""The messages of `pairbus demo`: which were sent, which were accepted, and which were found at the end.

The content of every message follows from the seed and its number. A digest covers all that the sender chose (body,
properties, time to live), so it shows if a backlog queue changed anything.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, get_type_hints

from pairbus.cli.demo_pair import ENTITIES
from pairbus.ledger import Row

BODY_SIZES = (100, 2000)
TTL_HOURS = (1, 48)
CONTENT_TYPE = "application/octet-stream"
SESSIONS = 5


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

Key = tuple[str, str]
"Entity and message id."


class Book:
    """Record of every message of one run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._entity_of = {place: entity.name for entity in ENTITIES.values() for place in entity.places}
        self._digests: dict[Key, str] = {}
        self._accepted: set[Key] = set()
        self._found: Counter[Key] = Counter()
        "Times that a message was found, by place and message id."
        self._altered: set[Key] = set()

    @property
    def accepted_count(self) -> int:
        return len(self._accepted)

    def new_message(self, entity: str, application: str, number: int) -> Any:
        """Make a message; every run makes the same one for the same seed and number."""
        from azure.servicebus import ServiceBusMessage

        chance = random.Random(f"{self._seed} {number}")
        message = ServiceBusMessage(
            chance.randbytes(chance.randint(*BODY_SIZES)),
            message_id=f"{application}-{number}",
            subject=f"{application} {entity}",
            content_type=CONTENT_TYPE,
            correlation_id=f"{chance.getrandbits(64):016x}",
            time_to_live=timedelta(hours=chance.randint(*TTL_HOURS)),
            application_properties={"number": number, "amount": chance.random(), "note": f"für {application}"},
            session_id=f"session {chance.randrange(SESSIONS)}" if ENTITIES[entity].has_sessions else None,
        )
        self._digests[entity, f"{application}-{number}"] = digest(message)
        return message

    def accepted(self, entity: str, message: Any) -> None:
        """Note that the sender was told that the message is stored."""
        self._accepted.add((entity, message.message_id))

    def found(self, place: str, message: Any) -> None:
        """Note a message that was received from a queue or a subscription."""
        key = (self._entity_of[place], str(message.message_id))
        self._found[place, key[1]] += 1
        if self._digests.get(key) != digest(message):
            self._altered.add(key)

    def _is_whole(self, key: Key) -> bool:
        entity, message_id = key
        return all((place, message_id) in self._found for place in ENTITIES[entity].places)

    def verdict(
        self,
        *,
        diverted: int = 0,
        moved: int = 0,
        failover_s: float = 0.0,
        drain_s: float = 0.0,
        ledger: Iterable[Row] = (),
        report: str | None = None,
    ) -> DemoVerdict:
        return DemoVerdict(
            sent=len(self._digests),
            accepted=len(self._accepted),
            in_primary=sum(map(self._is_whole, self._digests)),
            lost=sum(not self._is_whole(key) for key in self._accepted),
            duplicated=len({(self._entity_of[place], one) for (place, one), n in self._found.items() if n > 1}),
            altered=len(self._altered),
            diverted=diverted,
            moved=moved,
            failover_s=round(failover_s, 3),
            drain_s=round(drain_s, 3),
            cost=cost_of(ledger),
            report=report,
        )


def digest(message: Any) -> str:
    """Digest of a message, sent or received; a received one has some texts as bytes."""
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    chosen = (
        message.subject,
        message.content_type,
        message.correlation_id,
        message.time_to_live,
        message.session_id,
        sorted(properties.items()),
    )
    return hashlib.sha256(b"".join(message.body) + repr(chosen).encode()).hexdigest()


def _text(value: object) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def cost_of(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    operations: Counter[str] = Counter()
    billable: Counter[str] = Counter()
    for row in rows:
        if row.cause is not None:
            operations[row.cause] += row.count or 0
            billable[row.cause] += row.billable_operations or 0
    return {"operations": dict(sorted(operations.items())), "billable_operations": dict(sorted(billable.items()))}
