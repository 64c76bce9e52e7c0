"""The operations of a paired client, as its ledger counts them. Without a ledger every call here does nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pairbus.client.outgoing import Outgoing, sizes_of
from pairbus.ledger import Ledger, Tally
from pairbus.ledger.rows import FAILED_SEND, Cause, MeterKind
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.side_states import PairSide


class Meters:
    """Names of the namespaces, and the ledger."""

    def __init__(self, ledger: Ledger | None, names: Mapping[PairSide, str]) -> None:
        self.ledger = ledger
        # Lower case, so that a host has one name in the rows of all processes.
        self._names = {side: name.lower() for side, name in names.items()}

    def count(
        self,
        side: PairSide,
        entity: str,
        kind: MeterKind,
        size_bytes: int,
        *,
        count: int = 1,
        outcome: str = "ok",
        cause: Cause = "application",
        billable: int | None = None,
    ) -> None:
        if self.ledger is not None:
            namespace = self._names[side]
            self.ledger.meter(side, namespace, entity, kind, size_bytes, count, outcome, cause=cause, billable=billable)

    def tally(self, entity: str) -> Tally | None:
        """Return the running sum of the sends that go straight to the primary."""
        return None if self.ledger is None else self.ledger.tally("primary", self._names["primary"], entity, "send")

    def send(
        self, side: PairSide, entity: str, payloads: Sequence[bytes], failure: Failure | None, cause: Cause
    ) -> None:
        """Count one attempt, billed message by message."""
        if self.ledger is not None:
            size_bytes, billable = sizes_of(payloads)
            count, outcome = len(payloads), _outcome(failure)
            self.count(side, entity, "send", size_bytes, count=count, outcome=outcome, cause=cause, billable=billable)

    def request(self, entity: str, outgoing: Outgoing | None, failure: Failure | None) -> None:
        """Count a request to the primary: scheduling messages is sending them, cancelling them is management."""
        if outgoing is not None:
            self.send("primary", entity, outgoing.payloads, failure, "application")
        else:
            self.count("primary", entity, "management", 0, outcome=_outcome(failure))

    def failed(self, path: str, count: int, kind: Kind) -> None:
        """Count messages whose call ended with an error for its caller."""
        self.count("primary", path, FAILED_SEND, 0, count=count, outcome=kind.value)

    def pairing(self, entity: str, count: int, outcome: str) -> None:
        self.count("secondary", entity, "management", 0, count=count, outcome=outcome, cause="pairing")

    def syphon(self, side: PairSide, entity: str, kind: str, count: int, size_bytes: int, outcome: str) -> None:
        self.count(side, entity, cast(MeterKind, kind), size_bytes, count=count, outcome=outcome, cause="syphon")


def _outcome(failure: Failure | None) -> str:
    return "ok" if failure is None else failure.kind.value
