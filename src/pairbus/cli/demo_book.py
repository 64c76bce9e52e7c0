"""What the applications of `pairbus demo` send, what they were told about it, and what was found in the end.

The content of every message follows from the seed and its number. A digest covers all that the sender chose (body,
properties, time to live), so a way through a backlog queue that changed anything would show.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pairbus.ledger import Row

BODY_SIZES = (100, 2000)
TTL_HOURS = (1, 48)
CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last table, and the JSON. Counts are of messages."""

    sent: int
    accepted: int
    "Whose sender was told that they are stored."
    in_primary: int
    "Found there in the end, each counted once."
    lost: int
    "Accepted and not found: must be 0."
    duplicated: int
    "Message ids that were found more than once."
    altered: int
    "Found with another content than was sent, or in another queue, or never sent at all."
    diverted: int
    "Accepted by a backlog queue of the secondary."
    moved: int
    "Brought home by the syphon."
    failover_s: float
    "From the kill until every application was sending again."
    drain_s: float
    "That the syphon took, its start included."
    cost: dict[str, dict[str, int]]
    "Operations and billable operations by cause, from the ledger."
    report: str | None
    "The page about all of it; None where no Spark was there to make it."

    @property
    def is_good(self) -> bool:
        """A duplicate breaks no promise; an altered message is as bad as a lost one."""
        return not (self.lost or self.altered)


Key = tuple[str, str]
"Queue and message id."


class Book:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._digests: dict[Key, str] = {}
        self._accepted: set[Key] = set()
        self._found: Counter[Key] = Counter()
        self._altered: set[Key] = set()

    @property
    def sent_count(self) -> int:
        return len(self._digests)

    @property
    def accepted_count(self) -> int:
        return len(self._accepted)

    def new_message(self, queue: str, application: str, number: int) -> Any:
        """The same for the same seed and number, whichever run asks."""
        from azure.servicebus import ServiceBusMessage

        chance = random.Random(f"{self._seed} {number}")
        message = ServiceBusMessage(
            chance.randbytes(chance.randint(*BODY_SIZES)),
            message_id=f"{application}-{number}",
            subject=f"{application} {queue}",
            content_type=CONTENT_TYPE,
            correlation_id=f"{chance.getrandbits(64):016x}",
            time_to_live=timedelta(hours=chance.randint(*TTL_HOURS)),
            application_properties={"number": number, "amount": chance.random(), "note": f"für {application}"},
        )
        self._digests[queue, f"{application}-{number}"] = digest(message)
        return message

    def accepted(self, queue: str, message: Any) -> None:
        self._accepted.add((queue, message.message_id))

    def found(self, queue: str, message: Any) -> None:
        key = (queue, str(message.message_id))
        self._found[key] += 1
        if self._digests.get(key) != digest(message):
            self._altered.add(key)

    def verdict(
        self,
        *,
        diverted: int,
        moved: int,
        failover_s: float,
        drain_s: float,
        ledger: Iterable[Row],
        report: str | None = None,
    ) -> Verdict:
        return Verdict(
            sent=len(self._digests),
            accepted=len(self._accepted),
            in_primary=len(self._digests.keys() & self._found.keys()),
            lost=len(self._accepted - self._found.keys()),
            duplicated=sum(1 for count in self._found.values() if count > 1),
            altered=len(self._altered),
            diverted=diverted,
            moved=moved,
            failover_s=round(failover_s, 3),
            drain_s=round(drain_s, 3),
            cost=cost_of(ledger),
            report=report,
        )


def digest(message: Any) -> str:
    """Of a message to send or of a received one, which has some texts as bytes."""
    properties = {_text(name): _text(value) for name, value in (message.application_properties or {}).items()}
    chosen = (
        message.subject,
        message.content_type,
        message.correlation_id,
        message.time_to_live,
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
