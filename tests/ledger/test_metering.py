"""Meters: operations that are added up, events with a row of their own, and the billing of each operation."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from pairbus.ledger import Ledger, MeterKind, billable_operations, operations_by_cause, read, tallied
from pairbus.ledger.rows import Author, billing_groups
from pairbus.pairing.events import DeadLettered, Diverted, FailedOver, Faulted, Moved, PingSent
from tests.ledger.world import FLUSH_S, HOST, NOON_S, Clock, ids_of, rows_of, send

KB = 1024


def test_sends_of_one_second_are_one_row(tmp_path: Path) -> None:
    """A thousand sends a second must not be a thousand lines a second."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    for _ in range(1000):
        send(ledger, size_bytes=100)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert (row.count, row.billable_operations, row.bytes) == (1000, 1000, 100_000)
    assert (row.time, row.at_s) == ("2026-03-01T12:00:00.000Z", NOON_S)
    assert (row.side, row.namespace, row.entity, row.kind) == ("primary", HOST, "orders", "send")
    assert (row.outcome, row.cause, row.client) == ("ok", "application", "c")


def test_every_second_has_its_own_row(tmp_path: Path) -> None:
    """Seconds have rows of their own also when the clock is set back."""
    clock = Clock()
    ledger = Ledger(tmp_path, client="c", clock=clock)
    for after_s in (0.0, 0.999, 1.0, 2.5, 0.5):
        clock.now_s = NOON_S + after_s
        send(ledger)
    assert ledger.close(FLUSH_S)
    assert [(row.at_s - NOON_S, row.count) for row in rows_of(tmp_path)] == [(0, 2), (1, 1), (2, 1), (0, 1)]


def test_what_differs_in_anything_is_not_added_up(tmp_path: Path) -> None:
    """Side, namespace, entity, kind, outcome and cause each split the bill."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.meter("primary", "a", "orders", "send", 1)
    ledger.meter("secondary", "a", "orders", "send", 1)
    ledger.meter("primary", "b", "orders", "send", 1)
    ledger.meter("primary", "a", "invoices", "send", 1)
    ledger.meter("primary", "a", "orders", "receive", 1)
    ledger.meter("primary", "a", "orders", "send", 1, outcome="busy")
    ledger.meter("primary", "a", "orders", "send", 1, cause="syphon")
    assert ledger.close(FLUSH_S)
    assert [row.count for row in rows_of(tmp_path)] == [1] * 7


def test_a_second_that_is_over_is_written_without_another_send(tmp_path: Path) -> None:
    """The last second before a pause must not wait for its end."""
    clock = Clock()
    ledger = Ledger(tmp_path, client="c", clock=clock, flush_interval_s=0.01)
    send(ledger)
    clock.now_s += 1
    written = threading.Event()
    for _ in range(1000):
        if list(tmp_path.glob("*.jsonl")) and rows_of(tmp_path):
            break
        written.wait(0.01)
    assert [row.count for row in rows_of(tmp_path)] == [1]
    assert ledger.close(FLUSH_S)


def test_every_ping_has_its_own_row(tmp_path: Path) -> None:
    """An operator reads when each one left."""
    clock = Clock(NOON_S + 0.25)
    ledger = Ledger(tmp_path, client="c", clock=clock)
    for _ in range(2):
        ledger.meter("primary", HOST, "orders", "ping", 96, cause="failover")
        clock.now_s += 0.25
    ledger.record(PingSent("orders", accepted=False, reason="no answer"), clock.now_s)
    assert ledger.close(FLUSH_S)
    first, second, event = rows_of(tmp_path)
    assert (first.kind, first.count, first.time) == ("ping", 1, "2026-03-01T12:00:00.250Z")
    assert (second.kind, second.count, second.time) == ("ping", 1, "2026-03-01T12:00:00.500Z")
    assert (event.kind, event.event, event.billable_operations) == ("event", "PingSent", None)
    assert event.details == {"accepted": False, "reason": "no answer"}


def test_a_transition_carries_the_fields_of_its_event(tmp_path: Path) -> None:
    """The row has the facts of the log line, as values."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(FailedOver("orders", 10.5, 4, "x" * 5000), NOON_S + 3)
    ledger.record(Faulted("secondary", "closed under us", at_s=NOON_S + 4))
    assert ledger.close(FLUSH_S)
    failed_over, faulted = rows_of(tmp_path)
    assert (failed_over.kind, failed_over.event, failed_over.entity) == ("event", "FailedOver", "orders")
    assert failed_over.details == {"after_s": 10.5, "failed_sends": 4, "reason": "x" * 1000, "forced": False}
    assert (faulted.side, faulted.at_s) == ("secondary", NOON_S + 4)


def test_the_journey_of_a_diverted_message_can_be_read(tmp_path: Path) -> None:
    """The id alone finds where the message was stored, when it came home, or why it did not."""
    queue = "contoso/x-servicebus-transfer/3"
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(Diverted("orders", queue, 3, ("a", "b", 'odd "id" \n é'), False), NOON_S)
    ledger.record(Moved("orders", queue, 2, ("a", 'odd "id" \n é')), NOON_S + 60)
    ledger.record(DeadLettered(queue, "b", "TooLarge", "too large for orders"), NOON_S + 61)
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    for message_id, journey in {
        "a": [("diverted", 0), ("moved", 60)],
        'odd "id" \n é': [("diverted", 0), ("moved", 60)],
        "b": [("diverted", 0), ("event", 61)],
    }.items():
        mine = [row for row in rows if row.message_id == message_id]
        assert [(row.kind, row.at_s - NOON_S) for row in mine] == journey
        assert all(row.queue == queue for row in mine)
    assert rows[0].details == {"outcome_unknown": False} and rows[0].entity == "orders"


def test_an_event_about_messages_without_ids_is_one_row(tmp_path: Path) -> None:
    """The row still says how many messages there were."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(Moved("orders", "q", 7, ()), NOON_S)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert row.message_id is None and row.details == {"count": 7}


def test_numbers_that_json_cannot_say_do_not_spoil_the_line(tmp_path: Path) -> None:
    """An interval may be endless."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.record(FailedOver("orders", float("inf"), 1, "lone \ud800 surrogate"), NOON_S)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert row.details is not None and row.details["after_s"] is None


@pytest.mark.parametrize(
    ("size_bytes", "operations"),
    [(0, 1), (1, 1), (64 * KB, 1), (64 * KB + 1, 2), (96 * KB, 2), (128 * KB, 2), (256 * KB, 4)],
)
def test_each_started_64_kb_of_a_message_is_an_operation(size_bytes: int, operations: int, tmp_path: Path) -> None:
    """A message without a body is one operation."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    send(ledger, size_bytes=size_bytes)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert row.billable_operations == operations == billable_operations([size_bytes])


@pytest.mark.parametrize(
    ("count", "size_bytes", "operations"), [(100, 50 * KB, 100), (100, 200 * KB, 100), (2, 256 * KB, 4), (0, 0, 0)]
)
def test_a_batch_is_billed_message_by_message(count: int, size_bytes: int, operations: int, tmp_path: Path) -> None:
    """A hundred small messages are a hundred operations, however they travel."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    send(ledger, size_bytes=size_bytes, count=count)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert (row.count, row.billable_operations) == (count, operations)


def test_a_caller_that_knows_the_sizes_is_believed(tmp_path: Path) -> None:
    """One large message among small ones is not billed by the mean."""
    sizes = [100 * KB, 1 * KB, 1 * KB]
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.meter("primary", HOST, "orders", "send", sum(sizes), 3, billable=billable_operations(sizes))
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert row.billable_operations == 4


@pytest.mark.parametrize(("outcome", "operations"), [("communication", 0), ("timeout", 1), ("busy", 1)])
def test_only_an_attempt_without_a_connection_is_free(outcome: str, operations: int, tmp_path: Path) -> None:
    """The service cannot charge for a send that never reached it."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.meter("primary", HOST, "orders", "send", 100, outcome=outcome)
    assert ledger.close(FLUSH_S)
    [row] = rows_of(tmp_path)
    assert (row.count, row.billable_operations, row.outcome) == (1, operations, outcome)


def test_a_failed_send_is_no_operation(tmp_path: Path) -> None:
    """Attempts were counted, each with its own outcome; the failed send is the error that the caller saw."""
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    ledger.meter("primary", HOST, "orders", "failed send", 300, 3, "timeout")
    ledger.meter("primary", HOST, "orders", "send", 300, 3, "communication", billable=3)
    assert ledger.close(FLUSH_S)
    assert [(row.kind, row.count, row.billable_operations) for row in rows_of(tmp_path)] == [
        ("failed send", 3, 0),
        ("send", 3, 0),
    ]


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([], []),
        ([100, 200], [(2, 300)]),
        ([65_536, 1], [(2, 65_537)]),
        ([100, 70_000, 200, 140_000], [(2, 300), (1, 70_000), (1, 140_000)]),
        ([65_537], [(1, 65_537)]),
    ],
)
def test_messages_are_metered_in_groups_that_are_billed_one_by_one(
    sizes: list[int], groups: list[tuple[int, int]], tmp_path: Path
) -> None:
    """A meter that is told a number and a sum comes to the same bill as one that is told every size."""
    assert billing_groups(sizes) == groups
    ledger = Ledger(tmp_path, client="c", clock=Clock())
    for count, size_bytes in groups:
        ledger.meter("primary", HOST, "orders", "send", size_bytes, count)
    assert ledger.close(FLUSH_S)
    assert sum(row.billable_operations or 0 for row in rows_of(tmp_path)) == billable_operations(sizes)


def test_a_clock_that_jumps_loses_nothing(tmp_path: Path) -> None:
    """A day ahead and back, and an hour, as clocks do that are set right: every row has the time that was shown."""
    clock = Clock()
    ledger = Ledger(tmp_path, client="c", clock=clock)
    jumps_s = (0, 86_400, -3600, 0.5, -2 * 86_400, 1)
    for jump_s in jumps_s:
        clock.now_s = NOON_S + jump_s
        send(ledger)
        ledger.record(Diverted("orders", "q", 1, ("m",), False), clock.now_s)
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    assert sum(row.count or 0 for row in rows) == len(jumps_s) == sum(row.kind == "diverted" for row in rows)
    assert {int(row.at_s - NOON_S) for row in rows} == {int(jump_s) for jump_s in jumps_s}
    assert all(row.time.startswith(path.name[:10]) for path in tmp_path.iterdir() for row in read(path))


def test_a_month_of_idle_polls_costs_what_the_specification_says(tmp_path: Path) -> None:
    """Ten queues, a long poll of 15 minutes: 28 800 in 30 days."""
    clock = Clock()
    idle: MeterKind = "empty receive"
    ledger = Ledger(tmp_path, client="c", clock=clock)
    for poll in range(30 * 24 * 4):
        clock.now_s = NOON_S + poll * 900
        for queue in range(10):
            ledger.meter("secondary", "fabrikam", f"contoso/x-servicebus-transfer/{queue}", idle, 0, cause="syphon")
    assert ledger.close(FLUSH_S)
    assert sum(row.billable_operations or 0 for row in rows_of(tmp_path)) == 28_800


def test_a_tally_counts_as_a_meter_does(tmp_path: Path) -> None:
    """Each operation is counted in its own second; several senders of an entity share a tally."""
    clock = Clock()
    ledger = Ledger(tmp_path, client="c", clock=clock)
    tally = ledger.tally("primary", HOST, "orders", "send")
    assert ledger.tally("primary", HOST, "orders", "send") is tally
    for number in range(300):
        began = 0.5 + number / 50
        clock.now_s = NOON_S + number / 50
        if began >= tally.until:
            tally.begin_second(began)
        tally.total += tallied(200, 2)
    send(ledger)
    assert ledger.close(FLUSH_S)
    found: Counter[int] = Counter()
    for row in rows_of(tmp_path):
        assert (row.kind, row.outcome, row.cause, row.billable_operations) == ("send", "ok", "application", row.count)
        assert row.bytes == 100 * (row.count or 0)
        found[int(row.at_s - NOON_S)] += row.count or 0
    assert found == {0: 100, 1: 100, 2: 100, 3: 100, 4: 100, 5: 101}


def test_what_a_tally_holds_is_written_without_another_send(tmp_path: Path) -> None:
    """The writer asks for it, once a second."""
    ledger = Ledger(tmp_path, client="c", flush_interval_s=0.01)
    tally = ledger.tally("primary", HOST, "orders", "send")
    tally.begin_second(time.monotonic())
    tally.total += tallied(100, 1)
    deadline = time.monotonic() + FLUSH_S
    while not list(tmp_path.glob("*.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ledger.close(FLUSH_S)
    assert [(row.count, row.bytes) for row in rows_of(tmp_path)] == [(1, 100)]


def test_threads_lose_nothing(tmp_path: Path) -> None:
    """The threads write while the writer takes rows, and while seconds change."""
    ledger = Ledger(tmp_path, client="c", flush_interval_s=0.001)

    def work(number: int) -> None:
        for each in range(5000):
            send(ledger, entity=f"e{each % 3}", size_bytes=7)
            if each % 100 == 0:
                ledger.record(Moved("orders", "q", 1, (f"{number}-{each}",)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.close(FLUSH_S)
    rows = rows_of(tmp_path)
    assert sum(row.count or 0 for row in rows) == 20_000
    assert sum(row.bytes or 0 for row in rows) == 140_000
    assert ids_of(row for row in rows if row.kind == "moved") == {
        f"{n}-{e}": 1 for n in range(4) for e in range(0, 5000, 100)
    }


def test_what_comes_after_close_is_ignored(tmp_path: Path) -> None:
    """A pump may finish a moment later than its client; it must not fail, and nothing may be written behind the end."""
    ledger = Ledger(tmp_path, client="c")
    send(ledger)
    assert ledger.close(FLUSH_S)
    send(ledger)
    ledger.record(Moved("orders", "q", 1, ("a",)))
    assert ledger.flush(FLUSH_S) and ledger.close(FLUSH_S)
    assert [row.count for row in rows_of(tmp_path)] == [1]
    assert "closed" in repr(ledger)


def test_a_ledger_that_was_never_used_leaves_nothing_behind(tmp_path: Path) -> None:
    """No folder, no file, no thread."""
    before = threading.active_count()
    ledger = Ledger(tmp_path / "ledger", client="c")
    assert ledger.flush(FLUSH_S) and ledger.close(FLUSH_S)
    assert not (tmp_path / "ledger").exists() and threading.active_count() == before


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    """Later there is no caller to tell."""
    with pytest.raises(ValueError, match="max_file_bytes is 10"):
        Ledger(tmp_path, client="c", max_file_bytes=10)
    with pytest.raises(ValueError, match="flush_interval_s is 0"):
        Ledger(tmp_path, client="c", flush_interval_s=0)
    with pytest.raises(ValueError, match="needs the name"):
        Ledger(tmp_path, client="")


def test_the_cost_adds_up_operations_by_cause() -> None:
    """Rows of events have no cause, and cost nothing."""
    author = Author("shop", 1, "run")
    rows = [
        author.row(0, "send", cause="application", count=3, billable_operations=4),
        author.row(0, "receive", cause="application", count=2, billable_operations=2),
        author.row(0, "send", cause="failover", count=5, billable_operations=0),
        author.row(0, "diverted", message_id="shop-1"),
    ]
    assert operations_by_cause(rows) == {
        "operations": {"application": 5, "failover": 5},
        "billable_operations": {"application": 6, "failover": 0},
    }
