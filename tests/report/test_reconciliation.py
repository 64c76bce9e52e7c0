"""The clients' ledger against the brokers' meter: two ends that know nothing of each other count the same operations.

Two broker processes, two client processes of either kind, an outage of the primary, pings, a syphon, and an
application that receives everything. What the two ends call one operation is in docs/ledger.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from pairbus.ledger import Row, read
from tests.brokers import BrokerProcess
from tests.report import metered_client

QUEUES = ("orders", "bills")
LATER = "later"
NAMES = [{"Name": name} for name in (*QUEUES, LATER)]
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "primary", "Queues": NAMES}]}}
ANSWER_S = 90.0
LAG_S = 8
"A client hears of an operation within this many turns of the second's hand, also on a busy machine."

pytestmark = pytest.mark.slow

Key = tuple[str, str, str]
"Namespace, entity, kind."


class Process:
    """Client in a process of its own; `ask` waits for its answer."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.report.metered_client", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '"the process has ended"')

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(ANSWER_S)

    def kill(self) -> None:
        with self._process:  # closes its pipes
            self._process.kill()


@dataclass
class Run:
    """Ledgers and messages that a run has left."""

    clients: list[Row]
    brokers: list[Row]
    failed: int
    "Messages of calls that ended with an error, as the callers counted them."
    sent: dict[str, list[str]]
    "Ids by queue, in the end all accepted."
    received: dict[str, list[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("reconciliation")
    meters = ("--meter", str(folder / "meter"))
    with (
        BrokerProcess(folder / "primary", namespaces=["primary"], config=CONFIG, options=meters) as primary,
        BrokerProcess(folder / "secondary", namespaces=["secondary"], options=meters) as secondary,
    ):
        strings = primary.connection_string("primary"), secondary.connection_string("secondary")
        processes = [
            Process("sync", *strings, folder / "ledger", *QUEUES),
            Process("aio", *strings, folder / "ledger", *QUEUES),
        ]
        try:
            yield _story(folder, primary, secondary, processes)
        finally:
            for process in processes:
                process.kill()


def _story(folder: Path, primary: BrokerProcess, secondary: BrokerProcess, processes: list[Process]) -> Run:
    failed = 0

    def send(tag: str, timeout_s: float) -> None:
        nonlocal failed
        for process in processes:
            process.tell(f"send {tag} {timeout_s}")
        failed += sum(process.answer()["failed"] for process in processes)

    send("before", 30)
    primary.terminate()
    send("during", 0.4)
    primary.start()
    assert all(process.ask("home") for process in processes)
    assert processes[0].ask("syphon")
    diverted = len(QUEUES) * 2 * len(metered_client.ids_of(""))
    _until(lambda: _counted(secondary, "complete") == diverted)
    send("after", 30)
    sent = {
        queue: [
            message_id
            for flavour in ("sync", "aio")
            for tag in ("before", "during", "after")
            for message_id in metered_client.ids_of(f"{flavour}-{tag}-{queue}")
        ]
        for queue in QUEUES
    }
    received = {queue: processes[1].ask(f"receive {queue} {len(sent[queue])}") for queue in QUEUES}
    assert all(process.ask(f"schedule {LATER}") for process in processes)
    assert all(process.ask("close") for process in processes)
    assert [process.end() for process in processes] == [0, 0]
    assert (primary.terminate(), secondary.terminate()) == (0, 0)
    return Run(list(read(folder / "ledger")), list(read(folder / "meter")), failed, sent, received)


def _counted(broker: BrokerProcess, kind: str) -> int:
    """Asking for it is not counted."""
    [(namespace, port)] = broker.ports.items()
    headers = {"Authorization": broker.token("", namespace=namespace)}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/$meter", headers=headers)) as answer:
        return sum(one["count"] for one in json.load(answer) if (one["kind"], one["outcome"]) == (kind, "ok"))


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ── sums ──


def key_of(row: Row) -> Key:
    """A client knows the namespace by its side."""
    return row.side or row.namespace or "", row.entity or "", row.kind


def sums(rows: Iterable[Row], *, outcome: str = "ok") -> dict[Key, tuple[int, int]]:
    """Operations and billable operations; failed sends are no operations."""
    found: dict[Key, list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row.outcome == outcome and row.kind != "failed send":
            found[key_of(row)][0] += row.count or 0
            found[key_of(row)][1] += row.billable_operations or 0
    return {key: (count, billable) for key, (count, billable) in found.items()}


def test_both_ends_count_the_same_operations_of_every_entity_and_kind(run: Run) -> None:
    """The two ends also bill the same: message by message, in units of 64 KB."""
    clients, brokers = sums(run.clients), sums(run.brokers)
    # The primary was stopped in an orderly way: if answers were lost, sends would be `ok` at the broker only.
    assert clients == brokers
    kinds = {kind for _, _, kind in clients}
    assert clients["primary", LATER, "send"] == (4, 6)
    assert kinds == {"send", "receive", "empty receive", "ping", "complete", "renew", "peek", "management"}


def test_attempts_that_never_reached_the_primary_are_not_billed(run: Run) -> None:
    """Attempts and pings during the outage are in the client's ledger only."""
    unreached = sums(run.clients, outcome="communication")
    assert {kind for _, _, kind in unreached} == {"send", "ping"}
    assert {namespace for namespace, _, _ in unreached} == {"primary"}
    assert all(billable == 0 for _, billable in unreached.values())
    assert sums(run.brokers, outcome="communication") == {}
    refused = [row for row in run.brokers if row.outcome != "ok"]
    assert refused == []


def test_both_ends_have_counted_the_same_at_every_second(run: Run) -> None:
    """Operations that ended within the second may differ. The broker counts first, the client after the answer."""
    clients, brokers = by_second(run.clients), by_second(run.brokers)
    seconds = range(min(min(s) for s in brokers.values()), max(max(s) for s in clients.values()) + 1)
    for key in brokers:
        if key[2] == "empty receive":  # a client counts an empty receive earlier than the broker does
            continue
        ours = list(accumulate(clients[key][second] for second in seconds))
        theirs = list(accumulate(brokers[key][second] for second in seconds))
        for at, second in enumerate(seconds):
            assert ours[at] <= theirs[at], (key, second)
            assert theirs[at] <= ours[min(at + LAG_S, len(ours) - 1)], (key, second)


def by_second(rows: Iterable[Row]) -> dict[Key, Counter[int]]:
    found: dict[Key, Counter[int]] = defaultdict(Counter)
    for row in rows:
        if row.outcome == "ok":
            found[key_of(row)][int(row.at_s)] += row.count or 0
    return found


# ── the way of a diverted message ──


def test_every_diverted_message_shows_its_four_operations(run: Run) -> None:
    """The four go to a backlog queue, out of it, home, and to the application; both ends agree on each."""
    diverted = {row.message_id: row for row in run.clients if row.kind == "diverted"}
    moved = {row.message_id: row for row in run.clients if row.kind == "moved"}
    assert diverted and diverted.keys() == moved.keys()
    for queue in QUEUES:
        assert Counter(run.received[queue]) == Counter(run.sent[queue])
        of_queue = {message_id for message_id in run.sent[queue] if "-during-" in message_id}
        assert {message_id for message_id, row in diverted.items() if row.entity == queue} == of_queue
        assert total(run.clients, "send", "primary", queue, "syphon") == len(of_queue)
        assert total(run.clients, "send", "primary", queue, "application") == len(run.sent[queue]) - len(of_queue)
        for rows in (run.clients, run.brokers):
            assert total(rows, "send", "primary", queue) == len(run.sent[queue])
            assert total(rows, "receive", "primary", queue) == len(run.sent[queue])
    for backlog, count in Counter(row.queue for row in diverted.values()).items():
        for rows in (run.clients, run.brokers):
            assert total(rows, "send", "secondary", backlog) == count
            assert total(rows, "receive", "secondary", backlog) == count
            assert total(rows, "complete", "secondary", backlog) == count
    of_syphon = [row for row in run.clients if row.kind == "receive" and row.cause == "syphon"]
    of_backlogs = [row for row in run.brokers if row.kind == "receive" and row.namespace == "secondary"]
    assert sum(row.bytes or 0 for row in of_syphon) == sum(row.bytes or 0 for row in of_backlogs)


def total(rows: Iterable[Row], kind: str, namespace: str, entity: str | None, cause: str | None = None) -> int:
    return sum(
        row.count or 0
        for row in rows
        if key_of(row) == (namespace, entity, kind) and row.outcome == "ok" and cause in (None, row.cause)
    )


def test_failed_sends_are_what_callers_saw(run: Run) -> None:
    """The row counts calls that ended with an error: it counts no attempts, and costs no operation."""
    rows = [row for row in run.clients if row.kind == "failed send"]
    assert sum(row.count or 0 for row in rows) == run.failed > 0
    assert {row.cause for row in rows} == {"application"}
    assert {row.outcome for row in rows} <= {"communication", "timeout"}
    assert sum(row.billable_operations or 0 for row in rows) == 0
