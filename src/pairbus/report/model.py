"""The report as values: Spark jobs compute them, the HTML page shows them, the JSON file stores them.

Names are those of the JSON file. Money is decimal, and text in JSON; times are texts as in the ledger (UTC,
milliseconds). Every amount of money is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

SCHEMA = 1
PARTS = ("application", "idle", "during", "after")
"""Parts of the bill, by the purpose of an operation; together they are the whole bill.

`application`: its own sends and receives, and sends from the spool to the primary. `idle`: listing and creating backlog
queues, and polls that found no message. `during`: pings, sends to backlog queues. `after`: operations of the syphon:
receives, sends, settlements and lock renewals.
"""


@dataclass(frozen=True, slots=True)
class Amount:
    operations: int
    bytes: int
    money: Decimal


EMPTY = "the file is empty"
LEFT_OUT = "left out by compaction"
"Last words of the reason of a file whose damaged lines are in no table."


@dataclass(frozen=True, slots=True)
class Damage:
    """A file or line of a ledger that could not be used, or a line where the clock went back, which is used."""

    file: str
    line: int
    "Number of the line; 0: the whole file."
    reason: str


@dataclass(frozen=True, slots=True)
class ReportSource:
    """Files and rows from which the report was made."""

    files: int
    rows: int
    damaged: int
    "Lines that could not be used."
    damage: tuple[Damage, ...]
    "Files that could not be used, and the first lines that are damaged or where a clock went back."
    lost_rows: int
    "Rows that writers could not write or had to delete; their operations are in the part `application` of the bill."
    clock_jumps: int
    "Places where the time of a writer went back by more than a second."

    @property
    def unread_files(self) -> int:
        """Count files whose rows are missing: all files in `damage` but empty ones, and those that a table has."""
        files = [one.reason for one in self.damage if not one.line]
        return sum(reason != EMPTY and not reason.endswith(LEFT_OUT) for reason in files)


@dataclass(frozen=True, slots=True)
class Prices:
    sheet: str
    currency: str
    date: str
    source: str
    counting: str
    "Rule of counting: documented (settlements are free) or strict (settlements count)."
    operations_before: int
    "Operations before the first one of the ledger, in its month; they decide in which tier that month begins."


@dataclass(frozen=True, slots=True)
class BillLine:
    namespace: str
    side: str
    entity: str
    kind: str
    part: str
    hour: str
    "Beginning of the hour, as 2026-03-01T12:00Z; of the day or month where the bill's `step` says so."
    operations: int
    bytes: int
    money: Decimal


@dataclass(frozen=True, slots=True)
class OutageBill:
    """Cost that one outage of one entity added: pings and diverted sends, then the moves of its messages."""

    entity: str
    begins: str
    during: Amount
    after: Amount


@dataclass(frozen=True, slots=True)
class Bill:
    total: Amount
    parts: dict[str, Amount]
    "Amounts by name of PARTS; they add up to the total."
    alone: Amount
    "Cost on a primary that never failed: the application's part, and one send for each diverted message."
    bandwidth: Amount
    "Bytes between the regions: diverted sends, and their way home. Their cost is in the total; operations 0."
    base: Decimal
    "Fixed cost of the namespaces for the period; not in the total."
    lines: tuple[BillLine, ...]
    outages: tuple[OutageBill, ...]
    geo_replication: Decimal | None
    "Cost of Azure's geo-replication for the same period and traffic; None: its price sheet has another currency."
    with_pairing: Decimal
    "Sum of `total` and `base`, to compare with `geo_replication`."
    step: str = "hour"
    "Time that each of the lines has: hour; day or month when there would be too many lines."


@dataclass(frozen=True, slots=True)
class EntityOutage:
    """Outage of one entity, from the first failure that any client saw to the recovery of the last client."""

    entity: str
    begins: str
    "Time of the first failure."
    failed_over: str | None
    "Time at which the first client failed over; None: the suspicion ended before."
    recovered: str | None
    "Time at which the last client recovered; None: the outage is not over."
    drained: str | None
    "Time at which the last of its messages came home or was dead-lettered; None: some wait, or none was diverted."
    forced: bool
    "True when an operator forced the failover."
    reason: str
    clients: int
    time_to_divert_s: float | None
    failed_sends: int
    "Messages whose callers got an error."
    diverted: int
    waiting: int
    "Diverted messages that are neither home nor dead-lettered."


@dataclass(frozen=True, slots=True)
class Delay:
    """Time between diversion and arrival home, in seconds, of the messages that came home."""

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
    "Messages that a backlog queue or the spool accepted."
    failed: int
    "Messages whose callers got an error."
    moved: int
    "Messages that came home."
    duplicated: int
    "Messages that were moved more than once."
    maybe_duplicated: int
    dead_lettered: int
    pings: int
    with_pairing_percent: float
    "Share of the callers' messages that the primary, a backlog queue or the spool took; 100 without messages."
    without_pairing_percent: float
    "Share of the callers' messages that the primary took directly."
    delay: Delay | None


@dataclass(frozen=True, slots=True)
class StateSpan:
    """Part of the timeline in which an entity was not healthy, with the worst state that any client saw."""

    entity: str
    state: str
    "SUSPECT or FAILED_OVER"
    begins: str
    ends: str
    "End of the state; when it is not over, the last row of the process that saw it."


@dataclass(frozen=True, slots=True)
class BacklogPoint:
    time: str
    waiting: int
    "Messages in all backlog queues and spools."
    oldest_s: float
    "Age of the oldest message."


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Sends of a span of time; spans without a send are left out."""

    time: str
    "Beginning of the span."
    seconds: int
    "Length of the span, the same for all: 1, 2, 4 …"
    direct: int
    "Messages that the primary accepted from the application."
    diverted: int
    "Rows of messages that a backlog queue or the spool accepted; a spooled message that is later diverted has two."
    failed: int
    "Messages whose callers got an error."


@dataclass(frozen=True, slots=True)
class DeadLetters:
    entity: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class Availability:
    entities: tuple[EntityAvailability, ...]
    total: EntityAvailability
    "Sums of all entities; its entity is `*`."
    outages: tuple[EntityOutage, ...]
    states: tuple[StateSpan, ...]
    backlog: tuple[BacklogPoint, ...]
    "Points of the backlog's curve, up to 500; the first and the last are the ends of the period."
    dead_letters: tuple[DeadLetters, ...]
    delays: tuple[tuple[float, int], ...]
    "Histogram of the added delay: (upper limit in seconds, messages), up to 40 bars; a first one may be empty."
    rates: tuple[RatePoint, ...] = ()
    "Sends over time, up to 500 points; a report of an earlier release has none."


@dataclass(frozen=True, slots=True)
class Report:
    schema: int
    made_at: str
    version: str
    "Version of Pairbus."
    begins: str
    "Time of the first row."
    ends: str
    "Time of the last row."
    seconds: float
    source: ReportSource
    prices: Prices
    bill: Bill
    availability: Availability


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a message's journey."""

    time: str
    what: str
    "diverted, spooled, forwarded, moved, dead-lettered, may be there twice, ..."
    where: str
    "Backlog queue or entity."
    client: str
    since_first_s: float
    details: str
