"""Reports of the kept ledgers, figure by figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.ledger.prices import PriceSheet
from tests.report.kept import GOLDEN, KEPT, file_of, make_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.parametrize("name", KEPT)
def test_report_of_kept_ledger_stays_the_same(
    spark: SparkSession, sheet: PriceSheet, tmp_path: Path, name: str
) -> None:
    """Bills were paid by these figures. `python -m tests.report.kept` stores new ones, for a change that means to."""
    stored = file_of(name).read_text(encoding="utf-8")
    assert make_json(spark, name, tmp_path, sheet).splitlines() == stored.splitlines()


def test_every_stored_report_has_its_ledger() -> None:
    assert sorted(GOLDEN.glob("*")) == sorted(map(file_of, KEPT))
