"""`pairbus syphon --metrics`: the page of a real run, read by Prometheus' own parser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client.parser import text_string_to_metric_families

from pairbus.pairing.events import DestinationSkipped, Moved
from pairbus.syphon import SyphonProgress
from pairbus.telemetry.counters import Counters
from pairbus.telemetry.prometheus import client_families
from pairbus.testing import BrokerThread
from tests.backlog import put_diverted_sync
from tests.cli.command import Command

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
QUEUE = "stage/x-servicebus-transfer/0"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


def read(url: str) -> dict[tuple[str, ...], float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    return {
        (one.name, *(value for name, value in sorted(one.labels.items()) if "namespace" not in name)): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_running_syphon_tells_what_it_moved(broker: BrokerThread) -> None:
    """The documents have every name of the page, and no other."""
    home, away = broker.add_namespace("home"), broker.add_namespace("away")
    away.create_queue(QUEUE)
    home.create_queue("orders")
    put_diverted_sync(away.connection_string, QUEUE, "orders", [ServiceBusMessage("one"), ServiceBusMessage("two")])
    command = [sys.executable, "-m", "pairbus", "syphon", "--primary-name", "stage", "--metrics", "0"]
    environment = {
        **os.environ,
        "PAIRBUS_PRIMARY": home.connection_string,
        "PAIRBUS_SECONDARY": away.connection_string,
    }
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stderr is not None
            url = next(found[0] for line in running.stderr if (found := re.search(r"http://\S+/metrics", line)))
            deadline, moved = time.monotonic() + 30, ("pairbus_syphon_messages_total", "moved")
            while (page := read(url))[moved] < 2:
                assert time.monotonic() < deadline, page
                time.sleep(0.05)
        finally:
            running.terminate()
        running.communicate(timeout=30)
    client = [value for key, value in page.items() if key[0] == "pairbus_moved_messages_total" and QUEUE in key]
    assert client == [2]
    assert [value for key, value in page.items() if key[0] == "pairbus_entity_state" and "orders" in key] == [0]
    assert page["pairbus_primary_reachable",] == 1 and page["pairbus_backlog_messages",] == 0
    documented = set(re.findall(r"^\| `(pairbus_\w+)` \| \w+ \| syphon ", PAGE, re.MULTILINE))
    assert {key[0] for key in page} | {"pairbus_dead_lettered_messages_total"} == documented


@pytest.mark.parametrize(("place", "said"), [("here", "PORT or HOST:PORT"), ("0.0.0.0:0", "PAIRBUS_METRICS_TOKEN")])
def test_bad_place_is_a_clear_error(
    broker: BrokerThread, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    """Before anything is moved."""
    monkeypatch.setenv("PAIRBUS_PRIMARY", broker.add_namespace(f"h-{len(said)}").connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", broker.add_namespace(f"a-{len(said)}").connection_string)
    done = Command(capsys)("syphon", "--metrics", place)
    assert done.code != 0 and said in done.err and "Traceback" not in done.err


def test_destination_that_failed_is_suspect_until_messages_come_home() -> None:
    """As the states of a client: 0 healthy, 1 suspect."""
    from pairbus.cli.pipeline.syphon_metrics import SyphonMetrics

    metrics = SyphonMetrics("0", "fabrikam", lambda: (SyphonProgress(1, 0, 0.0, 0, 0, 0), None))

    def states() -> list[float]:
        [family] = [one for one in metrics.families() if one.name == "pairbus_entity_state"]
        return [value for _, _, value in family.samples]

    metrics.heard(DestinationSkipped("orders", QUEUE, "refused"))
    assert states() == [1]
    metrics.heard(Moved("orders", QUEUE, 1, ("a",)))
    assert states() == [0]
    assert "pairbus_backlog_messages" not in [one.name for one in metrics.families()]


def test_counters_of_clients_have_the_names_of_opentelemetrys_exporter() -> None:
    """Two clients share the families."""
    first, second = Counters(), Counters()
    first.entity("orders").sent += 3
    second.entity("orders").failovers += 1
    found = {one.name: one for one in client_families([("a", first.snapshot()), ("b", second.snapshot())])}
    sent = found["messaging_client_sent_messages_total"]
    assert (sent.kind, len(sent.samples)) == ("counter", 8)
    assert sum(value for _, labels, value in sent.samples if 'pairbus_place="primary"' in labels) == 3
    assert {labels.split(",")[1] for _, labels, _ in found["pairbus_failovers_total"].samples} == {
        'messaging_client_id="a"',
        'messaging_client_id="b"',
    }
