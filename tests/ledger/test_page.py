"""docs/ledger.md and the code say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from pairbus.ledger import SCHEMA, Cause, Ledger, MeterKind, Row, rows
from pairbus.pairing.events import Diverted, FailedOver, Moved
from pairbus.pairing.policy import Kind
from tests.ledger.world import FLUSH_S, HOST, NOON_S, Clock
from tests.pages import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text(encoding="utf-8")
EXAMPLES = [block.text.strip() for block in blocks_of("test_the_examples_are_lines_that_the_code_writes_and_reads")]
TYPES = {int: "integer", int | None: "integer", str: "text", str | None: "text", Mapping[str, Any] | None: "object"}


def table(first_column: str) -> list[list[str]]:
    """The rows of the table whose heading starts with this column."""
    text = PAGE.split(f"\n| {first_column} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()[2:]]


def test_the_page_has_every_field_with_its_type_in_order() -> None:
    """The page has no others."""
    hints = get_type_hints(Row)
    documented = [(row[0].strip("`"), row[1]) for row in table("field")]
    assert documented == [(field.name, TYPES[hints[field.name]]) for field in fields(Row)]
    assert f"Version {SCHEMA} of the schema" in PAGE


def test_the_page_has_every_kind_cause_and_outcome() -> None:
    """The page has no others."""
    kinds = [*get_args(MeterKind), rows.EVENT, *rows.KIND_OF_EVENT.values(), rows.LOST_ROWS]
    assert [row[0].strip("`") for row in table("kind")] == kinds
    assert [row[0].strip("`") for row in table("cause")] == list(get_args(Cause))
    [outcome] = [row for row in table("field") if row[0] == "`outcome`"]
    assert re.findall(r"`([^`]+)`", outcome[-1]) == ["ok", *(kind.value for kind in Kind)]
    assert Kind.COMMUNICATION.value == rows.UNREACHED


def test_the_examples_are_lines_that_the_code_writes_and_reads() -> None:
    """To the byte: field order, formats and types included."""
    assert len(EXAMPLES) == 6
    for example in EXAMPLES:
        assert rows.encode(rows.decode(example.encode())) == example.encode() + b"\n"


def test_the_code_writes_the_fields_of_the_example_of_each_kind(tmp_path: Path) -> None:
    """Programs find every field that the page documents."""
    shown = {json.loads(example)["kind"]: list(json.loads(example)) for example in EXAMPLES}
    ledger = Ledger(tmp_path, client="orders-api", clock=Clock())
    ledger.meter("primary", HOST, "orders", "send", 812)
    ledger.meter("primary", HOST, "orders", "ping", 96, outcome="timeout", cause="failover")
    ledger.record(FailedOver("orders", 60.0, 4, "no answer within 5 s"), NOON_S)
    ledger.record(Diverted("orders", "contoso/x-servicebus-transfer/3", 1, ("order-17",), False), NOON_S)
    ledger.record(Moved("orders", "contoso/x-servicebus-transfer/3", 1, ("order-17",)), NOON_S)
    ledger._lost.add(NOON_S, {}, 1)  # rows are lost only when 100 000 wait
    assert ledger.close(FLUSH_S)
    [path] = tmp_path.iterdir()
    written = {(row := json.loads(line))["kind"]: list(row) for line in path.read_text().splitlines()}
    assert written == shown


def test_ledger_is_read_as_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Operations are added up, and a line that a kill has torn is counted."""
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "2026-03-01-contoso-4711-9f3c2a1b-0.jsonl").write_text(f"{EXAMPLES[0]}\n{EXAMPLES[1]}\n{{")
    monkeypatch.chdir(tmp_path)
    [block] = blocks_of("test_ledger_is_read_as_on_the_page")
    exec(block.text, {})
    assert capsys.readouterr().out == "1201 billable operations; 1 lines were torn\n"
