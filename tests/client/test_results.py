"""Errors of sends that ended between two places, and the ledger's sums of sends that went well."""

from __future__ import annotations

from pathlib import Path

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import ledger
from pairbus.client.errors import ClientClosed, PartlySent
from pairbus.client.outgoing import THE_PRIMARY, Outgoing
from pairbus.client.results import closed_meanwhile, error_of
from pairbus.pairing.policy import Failure, Kind
from pairbus.pairing.sending import Unsent, Where
from tests.client.world import Stage, message


def two_messages() -> Outgoing:
    return Outgoing([b"1", b"2"], ["one", "two"], is_batch=True)


def test_a_primary_without_an_answer_is_a_time_out_for_the_caller() -> None:
    """The SDK has no error of its own for an attempt that was not made because the time was over."""
    unsent = Unsent(Failure(Kind.TIMEOUT, "orders: no time was left"), Where.PRIMARY)
    error = error_of(unsent, "orders", two_messages(), ordered=False)
    assert type(error) is OperationTimeoutError and "no time was left" in str(error)


def test_closing_between_two_parts_says_which_are_stored() -> None:
    """The caller sends the others again, with another client; the stored ones would be there twice."""
    going, closed = two_messages(), ClientClosed("contoso")
    assert closed_meanwhile(closed, "orders", going) is closed
    going.unanswered(THE_PRIMARY)
    doubtful = closed_meanwhile(closed, "orders", going)
    assert isinstance(doubtful, ClientClosed) and doubtful.may_be_in == (THE_PRIMARY,)
    going.stored(1, "backlog/0")
    partly = closed_meanwhile(closed, "orders", going)
    assert isinstance(partly, PartlySent) and "contoso is closed" in str(partly)
    assert (partly.stored_ids, partly.unsent_ids, partly.may_be_in) == (["one"], ["two"], (THE_PRIMARY,))


async def test_a_large_message_is_billed_by_its_size(stage: Stage, tmp_path: Path) -> None:
    """A message is billed one operation for each started 64 KB; small messages of one second are one row."""
    client = stage.client("aio", ledger=tmp_path)
    sender = client.sender("orders")
    for size in (1, 1, 100_000):
        await sender.send(message("x" * size))
    await client.close()
    rows = [row for row in ledger.read(tmp_path) if row.kind == "send"]
    assert {(row.side, row.entity, row.outcome) for row in rows} == {("primary", "orders", "ok")}
    assert sum(row.count or 0 for row in rows) == 3
    assert sum(row.billable_operations or 0 for row in rows) == 4
