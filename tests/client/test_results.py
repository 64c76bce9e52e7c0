"""Errors of sends that ended between two places, and the ledger's sums of sends that went well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from pairbus import ledger
from pairbus.client.errors import ClientClosed, PairedMessagingFactoryError, PartlySent
from pairbus.client.outgoing import THE_PRIMARY, Outgoing
from pairbus.client.results import ended_meanwhile, error_of
from pairbus.client.sends import Sends
from pairbus.pairing.commands import Unsent, Where
from pairbus.pairing.policy import Failure, Kind
from tests.client.world import Stage, message
from tests.scripted import Detach, LoseAnswer


def two_messages() -> Outgoing:
    return Outgoing([b"1", b"2"], ["one", "two"], is_batch=True)


def test_a_primary_without_an_answer_is_a_time_out_for_the_caller() -> None:
    """The SDK has no error of its own for an attempt that was not made because the time was over."""
    unsent = Unsent(Failure(Kind.TIMEOUT, "orders: no time was left"), Where.PRIMARY)
    error = error_of(unsent, "orders", two_messages(), ordered=False)
    assert type(error) is OperationTimeoutError and "no time was left" in str(error)


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (ClientClosed("contoso"), "contoso is closed"),
        (PairedMessagingFactoryError("the pair of a and b", "fault() was called"), "the pair of a and b is faulted"),
    ],
)
def test_an_end_between_two_parts_says_which_are_stored(
    ended: ClientClosed | PairedMessagingFactoryError, says: str
) -> None:
    """The caller sends the others again, with another client; the stored ones would be there twice."""
    outgoing = two_messages()
    assert ended_meanwhile(ended, "orders", outgoing) is ended
    outgoing.unanswered(THE_PRIMARY)
    doubtful = ended_meanwhile(ended, "orders", outgoing)
    assert isinstance(doubtful, type(ended)) and doubtful.may_be_in == (THE_PRIMARY,)
    assert says in str(doubtful) and "Nothing was sent" not in str(doubtful)
    outgoing.stored(1, "backlog/0")
    partly = ended_meanwhile(ended, "orders", outgoing)
    assert isinstance(partly, PartlySent) and says in str(partly)
    assert (partly.stored_ids, partly.unsent_ids, partly.may_be_in) == (["one"], ["two"], (THE_PRIMARY,))


@pytest.mark.parametrize("call", ["send", "schedule"])
async def test_a_fault_between_two_attempts_does_not_deny_the_first(
    stage: Stage, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt got no answer: a caller that is told that nothing was sent would send it twice."""
    client = stage.client("aio")
    sender = client.sender("orders").sender
    await sender.send_messages(message())
    stage.primary.on("transfer" if call == "send" else "request", LoseAnswer(Detach()))
    pause = Sends._pause

    async def fault_and_pause(sends: Sends, command: Any) -> Any:
        client.client.fault("primary")
        return await pause(sends, command)

    monkeypatch.setattr(Sends, "_pause", fault_and_pause)
    with pytest.raises(PairedMessagingFactoryError) as caught:
        if call == "send":
            await sender.send_messages(message())
        else:
            await sender.schedule_messages(message(), datetime.now(UTC) + timedelta(hours=1))
    assert caught.value.outcome_unknown and caught.value.may_be_in == (THE_PRIMARY,)


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
