"""Operations of a namespace for its clients, counted when they are answered, in the rows and words of the ledger.

One call counts a whole run of messages, as it was sent, delivered or settled: a message costs a fraction of a
microsecond. No call waits, and no call fails because of a disk (`Ledger`).

Refused callers are not counted: requests without the right, and those about entities that do not exist. Otherwise any
client that reaches the port could fill memory and disk with names.

An empty receive is a flow of credit that brought no message: at the receiver's next flow, drain or detach it has as
many deliveries as before. The receiver's own count decides, which is in every flow, so that both ends get the same
result whatever was on its way between them.
"""

from __future__ import annotations

from typing import Any

from pairbus.amqp.errors import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
)
from pairbus.amqp.message import DATA, in_order
from pairbus.auth.sas import LISTEN, MANAGE, SEND, Grant
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    SERVER_BUSY,
    SESSION_LOCK_LOST,
    TIMEOUT,
    Refusal,
)
from pairbus.ledger import Ledger, MeterKind, billable_operations
from pairbus.ledger.rows import BILLING_UNIT_BYTES

_OUTCOMES = {
    RESOURCE_LIMIT_EXCEEDED: "full",
    NOT_FOUND: "not found",
    ENTITY_DISABLED: "disabled",
    MESSAGE_SIZE_EXCEEDED: "too large",
    SERVER_BUSY: "busy",
    TIMEOUT: "timeout",
    **dict.fromkeys((ARGUMENT_ERROR, DECODE_ERROR, INVALID_FIELD, NOT_ALLOWED, NOT_IMPLEMENTED), "invalid"),
    **dict.fromkeys((MESSAGE_NOT_FOUND, MESSAGE_LOCK_LOST, SESSION_LOCK_LOST), "invalid"),
}
"Outcome in the ledger of a refusal with this condition, as the client has it; every other condition is `internal`."
_HTTP_OUTCOMES = {400: "invalid", 403: "full", 409: "invalid", 412: "invalid", 503: "busy"}

_REQUESTS: dict[str, MeterKind] = {
    "com.microsoft:peek-message": "peek",
    "com.microsoft:renew-lock": "renew",
    "com.microsoft:schedule-message": "send",
    "com.microsoft:receive-by-sequence-number": "receive",
    "com.microsoft:update-disposition": "complete",
}
"Operations of `$management` that are not counted as `management`."


RIGHT_OF: dict[MeterKind, str] = {
    "send": SEND,
    "failed send": SEND,
    "ping": SEND,
    "receive": LISTEN,
    "empty receive": LISTEN,
    "complete": LISTEN,
    "renew": LISTEN,
    "peek": LISTEN,
    "management": MANAGE,
}
"Right that a client needs for operations of a kind, and to read how many there were."

KEYS_MAX = 10_000
OTHERS = "$others"


class NamespaceMeter:
    """The operations of one namespace. `totals` are the sums since the broker started.

    Queues come and go: when there are `KEYS_MAX` keys, new ones are summed under `OTHERS`. The ledger keeps the names.
    """

    def __init__(self, ledger: Ledger | None, namespace: str) -> None:
        """Make a meter. `ledger`: where rows are written; None: only `totals` are kept."""
        self.totals: dict[tuple[str, MeterKind, str], list[int]] = {}
        "(entity, kind, outcome) → operations, billable operations, bytes."
        self._ledger = ledger
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<Meter {self._namespace} operations={sum(count for count, _, _ in self.totals.values())}>"

    def count(
        self,
        entity: str,
        kind: MeterKind,
        count: int = 1,
        size_bytes: int = 0,
        refusal: Refusal | None = None,
        billable: int | None = None,
    ) -> None:
        """Count `count` operations of `size_bytes` altogether; each is billed as one unless `billable` is given."""
        if refusal is not None and refusal.condition == UNAUTHORIZED_ACCESS:
            return
        outcome = "ok" if refusal is None else outcome_of(refusal)
        self._count(entity, kind, outcome, count, count if billable is None else billable, size_bytes)

    def messages(self, entity: str, kind: MeterKind, sizes: list[int], refusal: Refusal | None = None) -> None:
        """Count a run of one or more messages, with the bytes of each."""
        count = len(sizes)
        billable = count if max(sizes) <= BILLING_UNIT_BYTES else billable_operations(sizes)
        self.count(entity, kind, count, sum(sizes), refusal, billable)

    def request(self, entity: str, operation: Any, asked: Any, answered: Any, refusal: Refusal | None) -> None:
        """Count an answered request to `$management`; the bodies are maps that the operation has read already."""
        kind: MeterKind = _REQUESTS.get(operation, "management") if isinstance(operation, str) else "management"
        if refusal is not None:
            self.count(entity, kind, 1, 0, refusal)
        elif kind in ("send", "receive"):
            self.messages(
                entity, kind, [len(one["message"]) for one in (asked if kind == "send" else answered)["messages"]]
            )
        else:
            self.count(entity, kind, len(asked["lock-tokens"]) if kind in ("renew", "complete") else 1)

    def http(self, path: str, status: int) -> None:
        """Count an answered request of the administration."""
        outcome = "ok" if status < 400 else _HTTP_OUTCOMES.get(status, "internal")
        self._count(path, "management", outcome, 1, 1, 0)

    def as_json(self, grant: Grant) -> list[dict[str, Any]]:
        """Return the sums of operations for which the key has the right, on entities that it opens."""
        return [
            {
                "entity": entity,
                "kind": kind,
                "outcome": outcome,
                "count": count,
                "billable_operations": billable,
                "bytes": size_bytes,
            }
            for (entity, kind, outcome), (count, billable, size_bytes) in sorted(self.totals.items())
            if RIGHT_OF[kind] in grant.rights and grant.covers(entity)
        ]

    def _count(self, entity: str, kind: MeterKind, outcome: str, count: int, billable: int, size_bytes: int) -> None:
        if self._ledger is not None:
            self._ledger.meter(
                None, self._namespace, entity, kind, size_bytes, count, outcome, cause=None, billable=billable
            )
        totals = self.totals.get((entity, kind, outcome))
        if totals is None and len(self.totals) >= KEYS_MAX:
            entity = OTHERS
            totals = self.totals.get((entity, kind, outcome))
        if totals is None:
            self.totals[entity, kind, outcome] = [count, billable, size_bytes]
        else:
            totals[0] += count
            totals[1] += billable
            totals[2] += size_bytes


def outcome_of(refusal: Refusal) -> str:
    return _OUTCOMES.get(refusal.condition, "internal")


def sizes_of(batch: bytes) -> list[int]:
    """Return the bytes of each message of a batch that was read without an error."""
    batch, rows = in_order(batch)
    bodies = [(batch[at], end - at) for code, _, at, end in rows if code == DATA]
    return [size - (2 if form == 0xA0 else 5) for form, size in bodies]
