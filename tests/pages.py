"""Code blocks of the documents, and the test that runs each of them, or prints it.

`HELD` and `NOT_RUN` together have a row for every block; `tests/test_blocks.py` fails where one is missing. A test of
`HELD` gets its blocks from here, by its own name. So a block that is added to a page is run, or fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCED = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PLAIN = "plain"
"Language of a block that names none."

# (page, language, or the beginning of one block) → the test that runs the blocks, or whose output they are.
# A row with a beginning counts before the row with the language.
HELD: dict[tuple[str, str], str] = {
    ("README.md", "python"): "tests/test_readme.py::test_readme_fails_over_a_queue_of_the_reader",
    ("README.md", "sh"): "tests/test_readme.py::test_readme_fails_over_a_queue_of_the_reader",
    ("README.md", "text"): "tests/cli/test_demo.py::test_every_message_comes_home",
    ("CONTRIBUTING.md", "diff"): "tests/test_stories.py::test_first_change_fails_and_passes_as_told",
    ("CONTRIBUTING.md", "sh"): "tests/test_stories.py::test_first_change_fails_and_passes_as_told",
    ("docs/broker.md", "js"): "tests/test_docs.py::test_javascript_code_runs_against_the_broker",
    ("docs/broker.md", "json"): "tests/test_docs.py::test_configuration_files_can_be_read",
    ("docs/broker.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/broker.md", "import asyncio"): "tests/test_docs.py::test_the_embedded_broker_of_the_page_runs",
    (
        "docs/broker.md",
        "pairbus store backup",
    ): "tests/cli/test_store_backup.py::test_backup_of_the_page_is_restored_as_on_the_page",
    ("docs/broker.md", "sh"): "tests/test_stories.py::test_broker_page_is_what_a_broker_does",
    ("docs/broker.md", "text"): "tests/test_stories.py::test_broker_page_is_what_a_broker_does",
    ("docs/broker.md", PLAIN): "tests/test_stories.py::test_broker_page_is_what_a_broker_does",
    ("docs/cli.md", "sh"): "tests/test_docs.py::test_the_command_page_is_not_stale",
    ("docs/dashboard.md", "sh"): "tests/test_stories.py::test_page_and_its_requests_are_served",
    ("docs/failover.md", "diff"): "tests/test_blocks.py::test_migration_changes_two_lines_that_exist",
    ("docs/failover.md", "mermaid"): "tests/test_docs.py::test_the_state_diagram_is_not_stale",
    ("docs/failover-guarantees.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/failover.md", "sh"): "tests/test_runbook.py::test_every_command_of_the_runbook_works",
    ("docs/failover-operating.md", "sh"): "tests/test_runbook.py::test_every_command_of_the_runbook_works",
    ("docs/failover-operating.md", "orders HEALTHY"): "tests/test_blocks.py::test_log_lines_are_those_of_the_events",
    ("docs/failover-operating.md", "<Paired"): "tests/test_blocks.py::test_states_are_shown_as_on_the_page",
    ("docs/failover-operating.md", "waiting: "): "tests/test_blocks.py::test_status_lines_are_those_of_the_command",
    ("docs/filters.md", "sql"): "tests/broker/filters/test_page.py::test_examples_of_the_page_compile",
    ("docs/filters.md", "sql-action"): "tests/broker/filters/test_page.py::test_examples_of_the_page_compile",
    ("docs/integrations.md", "python"): "tests/integrations/test_programs.py::test_page_shows_the_programs_as_they_are",
    ("docs/integrations.md", "yaml"): "tests/integrations/test_programs.py::test_page_shows_the_programs_as_they_are",
    ("docs/ledger.md", "json"): "tests/ledger/test_page.py::test_the_examples_are_lines_that_the_code_writes_and_reads",
    ("docs/ledger.md", "from pairbus.ledger import"): "tests/ledger/test_page.py::test_ledger_is_read_as_on_the_page",
    ("docs/ledger.md", "from pairbus.ledger.table"): "tests/spark/test_pages.py::test_ledger_becomes_a_table",
    ("docs/messages.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/messages.md", "sh"): "tests/test_stories.py::test_messages_are_handled_as_on_the_page",
    ("docs/outages.md", "python"): "tests/faults/test_page.py::test_python_of_the_page_runs",
    ("docs/outages.md", "sh"): "tests/faults/test_page.py::test_example_switches_its_fault_on",
    ("docs/outages.md", "pairbus fault add throttle --entity"): "tests/test_stories.py::test_faults_come_and_go",
    ("docs/outages.md", "pairbus broker"): "tests/test_stories.py::test_faults_come_and_go",
    ("docs/outages.md", "pairbus proxy"): "tests/test_stories.py::test_faults_come_and_go",
    ("docs/outages.md", "curl"): "tests/test_stories.py::test_faults_come_and_go",
    ("docs/prices.md", "sh"): "tests/test_stories.py::test_prices_are_estimated",
    ("docs/quickstart.md", "python"): "tests/test_stories.py::test_quickstart_survives_two_kills",
    ("docs/quickstart.md", "import asyncio"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/quickstart.md", "sh"): "tests/test_stories.py::test_quickstart_survives_two_kills",
    ("docs/quickstart.md", "contoso Endpoint"): "tests/test_stories.py::test_quickstart_survives_two_kills",
    ("docs/quickstart.md", "      sent"): "tests/test_docs.py::test_the_demo_on_the_pages_is_what_the_demo_prints",
    ("docs/quickstart.md", "  3.8 s"): "tests/test_docs.py::test_the_drill_on_the_page_is_what_the_drill_prints",
    ("docs/receiving.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/report.md", "sh"): "tests/cli/test_report.py::test_the_report_is_printed_and_written",
    ("docs/single-client.md", "diff"): "tests/test_blocks.py::test_migration_changes_two_lines_that_exist",
    ("docs/single-client.md", "python"): "tests/test_docs.py::test_python_code_runs_against_the_broker",
    ("docs/spark.md", "python"): "tests/spark/test_pages.py::test_python_of_the_spark_page_runs",
    ("docs/spark-options.md", "python"): "tests/spark/test_pages.py::test_python_of_the_spark_page_runs",
    ("docs/spark-clusters.md", "python"): "tests/spark/test_pages.py::test_python_of_the_spark_page_runs",
    ("docs/spark.md", "sql"): "tests/spark/test_pages.py::test_sql_of_the_spark_page_runs",
    (
        "docs/spark-clusters.md",
        "from pairbus.spark import open_session",
    ): "tests/spark/test_connect.py::test_page_runs_on_a_server",
    (
        "docs/spark-clusters.md",
        "pairbus syphon --engine spark --master spark:",
    ): "tests/spark/test_cluster.py::test_command_drains_the_backlog_without_a_key_on_disk",
    ("docs/spark-clusters.md", "# drain.py"): "tests/spark/test_pages.py::test_syphon_drains_as_on_the_pages",
    ("docs/spark-syphon.md", PLAIN): "tests/spark/test_pages.py::test_syphon_drains_as_on_the_pages",
    ("docs/spark-syphon.md", "sh"): "tests/spark/test_pages.py::test_command_drains_on_one_machine",
    ("docs/spool.md", "sh"): "tests/test_stories.py::test_spool_of_a_dead_client_is_drained",
    ("docs/telemetry.md", "yaml"): "tests/test_stories.py::test_prometheus_finds_what_it_is_told_to_scrape",
    ("docs/testing.md", "python"): "tests/kit/test_examples.py::test_every_example_of_the_page_passes",
    ("docs/testing.md", "sh"): "tests/test_stories.py::test_namespace_is_reset",
}

# Tests that compare a page, or a part of it that a tool has written, as a whole.
GENERATED = {"test_the_command_page_is_not_stale", "test_the_state_diagram_is_not_stale"}

# The same keys → why no test runs the blocks.
NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/receiving.md", "ini"): "a unit of systemd, with paths of the reader",
    ("ARCHITECTURE.md", "text"): "a drawing",
    ("docs/decisions/0032-four-steps-of-a-syphon.md", "text"): "a drawing",
    ("docs/failover.md", " application"): "a drawing",
    ("docs/spool.md", "text"): "a drawing",
    ("CONTRIBUTING.md", "make setup"): "CI runs all three",
    (
        "CONTRIBUTING.md",
        ".venv/bin/pairbus broker --namespace a=0",
    ): "minutes each; `make test` has these folders, with fewer rounds",
    (
        "docs/broker.md",
        "ServiceBusClient.from_connection_string(",
    ): "port 5671 may be taken; tests/sdk_versions/test_versions.py uses these arguments",
    ("docs/quickstart.md", "make setup"): "CI runs both lines as `make demo`, and tests/cli/test_demo.py the second",
    ("docs/nemesis.md", "sh"): "ten minutes; tests/nemesis/test_nemesis.py runs a shorter storm",
    (
        "docs/releasing.md",
        "sh",
    ): "the checks of a release, most of them too long; tests/test_release.py tests the first",
    ("docs/spark.md", "pip install 'pairbus[spark-local]'"): "installs from the network; `make package-test` does it",
    (
        "docs/spark-clusters.md",
        "python -m venv build",
    ): "installs from the network; test_cluster.py submits such an archive",
    ("docs/spark-clusters.md", "spark-submit --master k8s"): "needs Kubernetes; never run",
    ("docs/spark-clusters.md", "properties"): "needs Kubernetes; never run",
    ("docs/spark-clusters.md", "FROM apache/spark"): "builds an image for Kubernetes; never run",
    (
        "docs/spark-clusters.md",
        "pip install 'pairbus[spark-connect]'",
    ): "installs from the network; `make package-test` does it",
    (
        "docs/spark-syphon.md",
        "pairbus syphon --engine spark --once --journal abfss:",
    ): "needs storage in Azure; test_cluster.py runs it on Azurite",
    (
        "docs/spark-syphon.md",
        "pairbus syphon --engine spark --master spark:",
    ): "goes on until it is stopped; test_cluster.py runs it with --once",
    (
        "docs/spark-syphon.md",
        "pairbus syphon --engine spark --remote",
    ): "goes on until it is stopped; test_connect.py runs it with --once",
    ("docs/verified.md", "sh"): "needs two namespaces of Azure; never run",
}

# (page, beginning of a line in a block that is run) → why this line is left out.
LEFT_OUT: dict[tuple[str, str], str] = {
    ("CONTRIBUTING.md", "make check"): "CI begins with it",
    ("CONTRIBUTING.md", ".venv/bin/pytest tests/test_docs.py"): "these tests within themselves",
    ("README.md", "python3 -m venv"): "installs from the network; `make package-test` does it",
}


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    number: int
    "Place among the blocks of the page, from 1."
    text: str

    def __str__(self) -> str:
        return f"{self.page} {self.number}: {self.text.splitlines()[0]}"

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Return the keys of the rows for this block: those with its beginning, or the one with its language."""
        keys = [key for table in (HELD, NOT_RUN) for key in table if key[0] == self.page]
        exact = [key for key in keys if key[1] not in LANGUAGES and self.text.startswith(key[1])]
        return exact or [key for key in keys if key[1] == self.language]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def all_blocks() -> list[Block]:
    """Find every fenced block of every page, without the indentation of a list around it."""
    return [
        Block(page, language or PLAIN, number, text.replace(f"\n{indent}", "\n").removeprefix(indent))
        for page in (path.relative_to(ROOT).as_posix() for path in PAGES)
        for number, (indent, language, text) in enumerate(FENCED.findall(text_of(page)), 1)
    ]


def blocks(page: str, language: str) -> list[str]:
    return [block.text for block in all_blocks() if (block.page, block.language) == (page, language)]


LANGUAGES = {block.language for block in all_blocks()}


def blocks_of(test: str) -> list[Block]:
    """Return the blocks of which the table says that this test runs them."""
    rows = {key for key, held_by in HELD.items() if held_by.endswith(f"::{test}")}
    found = [block for block in all_blocks() if not rows.isdisjoint(block.rows)]
    assert found, f"no row names {test}"
    return found


@contextmanager
def taking(test: str) -> Iterator[Callable[[str], str]]:
    """Give a test its blocks, each by its beginning and without the lines of LEFT_OUT; at the end none may be left."""
    left = blocks_of(test)

    def take(beginning: str) -> str:
        block = next((block for block in left if block.text.startswith(beginning)), None)
        assert block is not None, f"{test}: no block begins with {beginning!r}; there are {[*map(str, left)]}"
        left.remove(block)
        skipped = tuple(line for page, line in LEFT_OUT if page == block.page)
        lines = block.text.splitlines(keepends=True)
        return "".join(line for line in lines if not (skipped and line.startswith(skipped)))

    yield take
    assert not left, f"{test} did not run {[*map(str, left)]}"
