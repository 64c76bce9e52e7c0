"""The report as values: what the jobs compute, what the page shows, what the JSON file says.

Names are those of the JSON file. Money is decimal, and text in JSON; times are texts as in the ledger (UTC,
milliseconds). Everything in money is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

SCHEMA = 1
PARTS = ("application", "idle", "during", "after")
"""What an operation was for; together they are the whole bill.

`application`: its own sends and receives, and what went from the spool to the primary. `idle`: pairing itself and
polls that brought nothing. `during`: pings, sends to backlog queues. `after`: what the syphon received, sent, settled
and renewed.
"""


@dataclass(frozen=True, slots=True)
class Amount:
    operations: int
    bytes: int
    money: Decimal


@dataclass(frozen=True, slots=True)
class Damage:
    """A place of a ledger that could not be used."""

    file: str
    line: int
    "0: the whole file."
    reason: str


@dataclass(frozen=True, slots=True)
class Source:
    """What the report was made from."""

    files: int
    rows: int
    damaged: int
    "Lines that could not be used."
    damage: tuple[Damage, ...]
    "The first of them."
    lost_rows: int
    "Rows that writers could not write; their operations are in the bill, in the part `application`."
    clock_jumps: int
    "Places where the time of a writer went back by more than a second."


@dataclass(frozen=True, slots=True)
class Prices:
    sheet: str
    currency: str
    date: str
    source: str
    counting: str
    "documented (settlements are free) or strict (they count)."
    operations_before: int
    "Of this month, before the first one of the ledger: which tier applies."


@dataclass(frozen=True, slots=True)
class BillLine:
    namespace: str
    side: str
    entity: str
    kind: str
    part: str
    hour: str
    "2026-03-01T12:00Z"
    operations: int
    bytes: int
    money: Decimal


@dataclass(frozen=True, slots=True)
class OutageBill:
    """What one outage of one entity added: pings and diverted sends, then the way home of its messages."""

    entity: str
    begins: str
    during: Amount
    after: Amount


@dataclass(frozen=True, slots=True)
class Bill:
    total: Amount
    parts: dict[str, Amount]
    "By name of PARTS; they add up to the total."
    alone: Amount
    "The same messages on a primary that never failed: the application's part, and one send for each diverted message."
    bandwidth: Amount
    "Bytes that crossed regions: diverted sends, and their way home. Its money is in the total; operations 0."
    base: Decimal
    "Of the namespaces for the period, whether anything was sent or not; not in the total."
    lines: tuple[BillLine, ...]
    outages: tuple[OutageBill, ...]
    geo_replication: Decimal
    "What Azure's geo-replication would have cost for the same period and traffic."
    with_pairing: Decimal
    "total + base: what stands beside it."


@dataclass(frozen=True, slots=True)
class Outage:
    """Of one entity, as its clients saw it: from the first failure of any to the last one's recovery."""

    entity: str
    begins: str
    "First failure."
    failed_over: str | None
    "When the first client diverted; None: a suspicion that ended before."
    recovered: str | None
    "When the last client was back; None: it is not over."
    drained: str | None
    "When the last of its messages came home or was dead-lettered; None: some wait, or none was diverted."
    forced: bool
    "By an operator."
    reason: str
    clients: int
    time_to_divert_s: float | None
    failed_sends: int
    "Messages whose callers got an error."
    diverted: int
    waiting: int
    "Diverted, and neither home nor dead-lettered."


@dataclass(frozen=True, slots=True)
class Delay:
    """Time from the backlog queue to the primary, in seconds, of the messages that came home."""

    messages: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class EntityAvailability:
    entity: str
    sent: int
    "Messages that the primary accepted from the application."
    diverted: int
    "Messages that a backlog queue accepted, and those that the spool took."
    failed: int
    "Messages whose callers got an error."
    moved: int
    "Brought home."
    duplicated: int
    "Moved more than once."
    maybe_duplicated: int
    dead_lettered: int
    pings: int
    with_pairing_percent: float
    "Of the messages that callers wanted to send, those that were stored somewhere. 100 when there was none."
    without_pairing_percent: float
    "Those that the primary took."
    delay: Delay | None


@dataclass(frozen=True, slots=True)
class StateSpan:
    """For the timeline: an entity was not healthy, in the worst state that any client saw."""

    entity: str
    state: str
    "SUSPECT or FAILED_OVER"
    begins: str
    ends: str
    "Of the report's period, when it is not over."


@dataclass(frozen=True, slots=True)
class BacklogPoint:
    time: str
    waiting: int
    "Messages in all backlog queues and spools."
    oldest_s: float
    "Age of the oldest of them."


@dataclass(frozen=True, slots=True)
class DeadLetters:
    entity: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class Availability:
    entities: tuple[EntityAvailability, ...]
    total: EntityAvailability
    "Of all; its entity is `*`."
    outages: tuple[Outage, ...]
    states: tuple[StateSpan, ...]
    backlog: tuple[BacklogPoint, ...]
    "At most 500 points; the first and the last are ends of the period."
    dead_letters: tuple[DeadLetters, ...]
    delays: tuple[tuple[float, int], ...]
    "Histogram of the added delay: (upper limit in seconds, messages), at most 40 of them."


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    made_at: str
    version: str
    "Of Pairbus."
    begins: str
    "First row."
    ends: str
    "Last row."
    seconds: float
    source: Source
    prices: Prices
    bill: Bill
    availability: Availability


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a message's journey."""

    time: str
    what: str
    "diverted, spooled, forwarded, moved, dead-lettered, may be there twice, ..."
    where: str
    "Backlog queue or entity."
    client: str
    since_first_s: float
    details: str
