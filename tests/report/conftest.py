"""Ledgers and their reports, each made once: starting Spark takes ten seconds, and a report a few."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pairbus.ledger.prices import PriceSheet, load
from pairbus.report.passes.sources import SMALL_CONF
from tests.report import plain
from tests.report.worlds import RandomWorld, hand_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.report.model import Report

NOW_S = 1_772_500_000.0
BEFORE = 99_999_000  # operations before the ledger: the price tier ends within each ledger of these tests
HAND = "by hand"
SEEDS = os.environ.get("PAIRBUS_REPORT_SEEDS", "1 3").split()
"Random ledgers; the variable names others."
SHEET = """
name = "plain"
currency = "EUR"
date = "2026-01-01"
source = "made up"
base_per_hour = "0.01"
base_per = "namespace"
included_operations = 0
tiers = [ { up_to = 100_000_000, per_million = "1.00" }, { per_million = "0.30" } ]
bandwidth_per_gb = "1000"
included_connections = 0
connection_tiers = []
messaging_unit_per_hour = "0"
replication_per_gb = "0"
"""


@dataclass(frozen=True)
class World:
    folder: Path
    read: plain.Read
    report: Report
    counting: str
    sheet: PriceSheet
    geo: PriceSheet


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one that is running in this process, or a new one."""
    from pairbus.spark import local_session

    session = local_session("tests", "local[2,1]", **SMALL_CONF | {"spark.driver.memory": "512m"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sheet(tmp_path_factory: pytest.TempPathFactory) -> PriceSheet:
    path = tmp_path_factory.mktemp("prices") / "plain.toml"
    path.write_text(SHEET, encoding="utf-8")
    return load(path)


MakeWorld = Callable[[str], World]


@pytest.fixture(scope="session")
def make_world(spark: SparkSession, sheet: PriceSheet, tmp_path_factory: pytest.TempPathFactory) -> MakeWorld:
    from pairbus.report.job import make_report

    @cache
    def make(name: str) -> World:
        folder = tmp_path_factory.mktemp("ledger")
        if name == HAND:
            hand_ledger(folder)
        else:
            RandomWorld(int(name.removeprefix("seed "))).write(folder)
        counting = "strict" if name == "seed 3" else "documented"
        geo = replace(load("geo-replication"), currency=sheet.currency)
        report = make_report(
            spark, [folder], prices=sheet, geo=geo, counting=counting, operations_before=BEFORE, now_s=NOW_S
        )
        return World(folder, plain.read(folder), report, counting, sheet, geo)

    return make


@pytest.fixture(params=[HAND, *(f"seed {number}" for number in SEEDS)])
def world(request: pytest.FixtureRequest, make_world: MakeWorld) -> World:
    return make_world(request.param)


@pytest.fixture
def by_hand(make_world: MakeWorld) -> World:
    return make_world(HAND)
