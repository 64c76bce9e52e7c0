"""The code of the pages about Spark and of docs/ledger.md, run as it stands in the one session of the tests.

Hosts, folders and the places of secrets are replaced; each page runs from its top to its end in one scope.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.backlog import put_diverted_sync
from tests.brokers import BrokerProcess
from tests.pages import blocks, blocks_of, taking
from tests.spark.conftest import PAGE_VARIABLES
from tests.storage.azurites import Azurite
from tests.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.classic, pytest.mark.deep]

WITHIN_S = 120
BACKLOG_QUEUES = 10


@pytest.fixture(scope="module")
def reader(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """The second namespace of the shared broker has the entities of the page."""
    with broker.admin("fabrikam") as admin:
        for name in ("orders", "invoices", "reminders", "orders-late"):
            admin.create_queue(name)
        admin.create_topic("news")
        admin.create_subscription("news", "sports")
    with pytest.MonkeyPatch.context() as patch:
        for name, namespace in PAGE_VARIABLES.items():
            patch.setenv(name, broker.connection_string(namespace))
        yield broker


def send(broker: BrokerProcess, queue: str, *subjects: str) -> None:
    messages = [ServiceBusMessage(f"{subject} {queue}", subject=subject) for subject in subjects]
    with (
        ServiceBusClient.from_connection_string(broker.connection_string("fabrikam")) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(messages)


def count(broker: BrokerProcess, queue: str) -> int:
    with broker.admin("fabrikam") as admin:
        return admin.get_queue_runtime_properties(queue).active_message_count or 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Page:
    """Runs the blocks of a page in one scope; `values` has the results of the last block's expressions."""

    def __init__(self, replaced: dict[str, str], **scope: Any) -> None:
        self.scope: dict[str, Any] = dict(scope)
        self.values: list[Any] = []
        self.replaced = replaced

    def run(self, text: str) -> None:
        for placeholder, here in self.replaced.items():
            text = text.replace(placeholder, here)
        self.values = []
        for node in ast.parse(text).body:
            if isinstance(node, ast.Expr):
                self.values.append(eval(compile(ast.Expression(node.value), "page", "eval"), self.scope))
            else:
                exec(compile(ast.Module([node], []), "page", "exec"), self.scope)

    def __getitem__(self, name: str) -> Any:
        return self.scope[name]


def test_python_of_the_spark_page_runs(
    spark: SparkSession,
    reader: BrokerProcess,
    azurite: Azurite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All messages that the frames and queries of the page should find are found."""
    replaced = {
        "/mnt/shared": str(tmp_path),
        "abfss://staging@contoso.dfs.core.windows.net": azurite.new_container("staging-of-the-page"),
        "env:CONTOSO_STORAGE": f"@{tmp_path / 'storage.txt'}",
        '"…"': f'"{tmp_path / "checkpoint"}"',
    }
    (tmp_path / "storage.txt").write_text(azurite.connection_string)
    page = Page(replaced)
    with taking("test_python_of_the_spark_page_runs") as take:
        batches(page, take, reader)
        streams(page, take, reader, tmp_path, monkeypatch)
        sinks(page, take, reader, spark, tmp_path)
    assert "|   late|    1|" in capsys.readouterr().out


def batches(page: Page, take: Callable[[str], str], reader: BrokerProcess) -> None:
    send(reader, "orders", "late", "early", "early")
    page.run(take("from pairbus.spark import local_session"))
    assert count(reader, "reminders") == 1
    page.run(take("from pyspark.sql import functions as F\n\norders.select"))
    page.values[1].count()
    page.run(take('spark.read.format("servicebus").option("entity"'))
    assert [frame.count() for frame in page.values] == [0, 0, 0]


def streams(
    page: Page, take: Callable[[str], str], reader: BrokerProcess, folder: Path, patch: pytest.MonkeyPatch
) -> None:
    def received(frame: Any) -> Any:
        """Read everything that is there, and return the progress of the last micro-batch that had rows."""
        query: StreamingQuery = frame.writeStream.format("noop").trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S)
        return [progress for progress in query.recentProgress if progress["numInputRows"]][-1]

    batch = page["orders"]
    page.run(take('orders = spark.readStream.format("servicebus").option("stagingLocation"'))
    assert page.values[0].awaitTermination(WITHIN_S)
    assert page["spark"].read.parquet(str(folder / "orders")).count() == 3
    for queue in ("orders", "invoices", "orders-late"):
        send(reader, queue, "late")
    page.run(take("reader = spark.readStream"))
    assert received(page["both"])["numInputRows"] == 2
    page.run(take('orders = spark.readStream.format("servicebus").load'))
    page.run(take("seen = "))
    added: list[Any] = []
    manager = type(page["spark"].streams)
    add = manager.addListener

    def remember(self: Any, listener: Any) -> None:
        added.append(listener)
        add(self, listener)

    patch.setattr(manager, "addListener", remember)
    page.run(take("from pyspark.sql.streaming import"))
    page.run(take("from pyspark.sql import functions as F\n\ncounted"))
    send(reader, "orders", "late", "early")
    assert received(page["counted"])["observedMetrics"]["taken"]["messages"] == 2
    page["spark"].streams.removeListener(added[0])
    page.scope["orders"] = batch


def sinks(page: Page, take: Callable[[str], str], reader: BrokerProcess, spark: SparkSession, folder: Path) -> None:
    send(reader, "orders", "late")
    before = count(reader, "reminders")
    page.scope["orders"] = spark.read.format("servicebus").load("orders")
    page.run(take("from threading import Thread"))
    until(lambda: count(reader, "reminders") == before + 1)
    page.run(take('stream = spark.readStream.format("servicebus").option('))
    query = page["orders"].writeStream.format("noop").trigger(availableNow=True).start()
    assert query.awaitTermination(WITHIN_S) and count(reader, "orders") == 0
    (folder / "rows").mkdir()
    (folder / "rows" / "1.json").write_text(json.dumps({"body": "from a file"}))
    page.scope["frame"] = spark.createDataFrame([("a row",)], "body string")
    page.scope["stream"] = spark.readStream.schema("body string").json(str(folder / "rows"))
    page.replaced['"…"'] = f'"{folder / "another checkpoint"}"'
    page.run(take("frame.write.format"))
    page.values[1].processAllAvailable()
    page.values[1].stop()
    assert count(reader, "orders") == 2


def test_sql_of_the_spark_page_runs(spark: SparkSession, reader: BrokerProcess) -> None:
    """Views are read and written, and a table reads dead letters."""
    send(reader, "orders", "late")
    before = count(reader, "reminders")
    text = "".join(block.text for block in blocks_of("test_sql_of_the_spark_page_runs"))
    try:
        rows = [spark.sql(statement).collect() for statement in text.split(";\n") if statement.strip()]
    finally:
        spark.catalog.dropTempView("orders")
        spark.catalog.dropTempView("reminders")
        spark.sql("DROP TABLE IF EXISTS bus")
    assert ("late", 1) in [tuple(row) for row in rows[1]]
    assert count(reader, "reminders") == before + 1
    assert rows[-1][0][0] == 0


HOME = "of-the-pages"
"Queue of the primary to which diverted messages belong."


@pytest.fixture(scope="module")
def backlog(broker: BrokerProcess) -> str:
    """Paths of the backlog queues that `pairbus pair create` would make, without their numbers."""
    path = f"127-0-0-1-{broker.ports['contoso']}/x-servicebus-transfer"
    with broker.admin() as home, broker.admin("fabrikam") as away:
        home.create_queue(HOME)
        for index in range(BACKLOG_QUEUES):
            away.create_queue(f"{path}/{index}")
    return path


def divert(broker: BrokerProcess, backlog: str) -> None:
    put_diverted_sync(broker.connection_string("fabrikam"), f"{backlog}/3", HOME, [ServiceBusMessage("late")])


def test_command_drains_on_one_machine(broker: BrokerProcess, backlog: str, tmp_path: Path) -> None:
    """The first line of docs/spark-syphon.md, with a Spark of its own."""
    divert(broker, backlog)
    given = {
        "PAIRBUS_PRIMARY": broker.connection_string(),
        "PAIRBUS_SECONDARY": broker.connection_string("fabrikam"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    with (
        Terminal(tmp_path / "reader", **given) as terminal,
        taking("test_command_drains_on_one_machine") as take,
    ):
        assert terminal.typed(take("pairbus syphon")).startswith("moved 1 message")


def test_syphon_drains_as_on_the_pages(
    spark: SparkSession, reader: BrokerProcess, backlog: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first program of docs/spark-syphon.md, and the application for spark-submit in the session that is there."""
    for name in ("contoso", "fabrikam"):
        (tmp_path / name).write_text(reader.connection_string(name))
    replaced = {"/run/secrets": str(tmp_path), "/mnt/pairbus": str(tmp_path / "journal")}
    with taking("test_syphon_drains_as_on_the_pages") as take:
        for beginning in ("from pairbus.spark import compact", "# drain.py"):
            divert(reader, backlog)
            page = Page(replaced)
            page.run(take(beginning))
            assert page["drain"].progress().moved == 1 and not page["drain"].left
    assert f"|{HOME}|    1|" in capsys.readouterr().out


def test_ledger_becomes_a_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples of rows on the page are the ledger."""
    (tmp_path / "ledger").mkdir()
    file = tmp_path / "ledger" / "2026-03-01-contoso-4711-9f3c2a1b-0.jsonl"
    file.write_text("".join(blocks("docs/ledger.md", "json")))
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of("test_ledger_becomes_a_table")
    try:
        Page({"/data": str(tmp_path)}, spark=spark).run(block.text)
        assert "no answer within 5 s" in capsys.readouterr().out
    finally:
        for view in ("outages", "moves", "bill_lines"):
            spark.catalog.dropTempView(view)
