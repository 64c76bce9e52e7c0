"""Price sheets: exact at the edges of their tiers, additive, never a float; a bad file says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from decimal import Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.errors import ConfigError
from pairbus.ledger.prices import PriceSheet, Tier, load, names

STANDARD = load("standard")
MILLION = 1_000_000
FREE, SECOND, THIRD = 13 * MILLION, 100 * MILLION, 2_500 * MILLION
"Steps of the Standard tier: where operations begin to cost, and where they become cheaper."


# ── operations ──


@pytest.mark.parametrize(
    ("before", "operations", "money"),
    [
        (0, 0, "0"),
        (0, FREE - 1, "0"),
        (0, FREE, "0"),
        (0, FREE + 1, "0.0000008"),
        (FREE - 1, 2, "0.0000008"),
        (FREE, 1, "0.0000008"),
        (FREE, MILLION, "0.80"),
        (0, SECOND - 1, "69.5999992"),
        (0, SECOND, "69.60"),
        (0, SECOND + 1, "69.6000005"),
        (SECOND - 1, 1, "0.0000008"),
        (SECOND - 1, 2, "0.0000013"),
        (SECOND, 1, "0.0000005"),
        (0, THIRD - 1, "1269.5999995"),
        (0, THIRD, "1269.60"),
        (0, THIRD + 1, "1269.6000002"),
        (THIRD - 1, 2, "0.0000007"),
        (THIRD, 1, "0.0000002"),
        (0, 3_000 * MILLION, "1369.60"),
        (50 * MILLION, 2_550 * MILLION, "1260"),
        (SECOND, 0, "0"),
    ],
)
def test_operations_cost_what_their_tier_says(before: int, operations: int, money: str) -> None:
    """The counts are around each edge of a tier, across several tiers, and within one. 1369.60 is Infracost's sum."""
    assert STANDARD.charge(before, operations) == Decimal(money)


COUNTS = st.integers(0, 4_000 * MILLION)


@given(st.sampled_from(names()), COUNTS, COUNTS, COUNTS)
@example("standard", FREE - 1, 1, 1)
@example("standard", SECOND - 1, 1, 1)
@example("standard", 0, FREE, THIRD)
def test_charges_add_up_however_operations_are_split(name: str, before: int, first: int, second: int) -> None:
    """The parts of a bill, hour by hour, then add up to the bill."""
    sheet = load(name)
    assert sheet.charge(before, first + second) == sheet.charge(before, first) + sheet.charge(before + first, second)


@given(COUNTS, COUNTS)
def test_a_charge_is_the_sum_of_what_lies_in_each_tier(before: int, operations: int) -> None:
    """Against another way to say the same: the overlap of two ranges, tier by tier."""
    edges = [(FREE, SECOND, "0.80"), (SECOND, THIRD, "0.50"), (THIRD, 10**12, "0.20")]
    after = before + operations
    parts = (max(0, min(after, end) - max(before, begin)) * Decimal(price) for begin, end, price in edges)
    assert STANDARD.charge(before, operations) == sum(parts) / MILLION


def test_a_caller_with_little_precision_gets_the_exact_charge() -> None:
    """The context of the decimal module belongs to the thread, and other code may change it."""
    with localcontext(Context(prec=3)):
        charge = STANDARD.charge(0, SECOND + 1)
    assert str(charge) == "69.6000005"


# ── what else is charged ──


def test_the_documented_example_of_connections_costs_120() -> None:
    """10 000 devices, 12 hours a day, 31 days: 5 000 on average, 4 000 of them charged at $0.03."""
    day = [10_000] * 12 + [0] * 12
    assert STANDARD.connections(day * 31) == 120


@pytest.mark.parametrize(
    ("connections", "money"),
    [
        (0, "0"),
        (1_000, "0"),
        (1_001, "0.03"),
        (100_000, "2970"),
        (100_001, "2970.025"),
        (500_000, "12970"),
        (500_001, "12970.015"),
    ],
)
def test_connections_cost_what_their_tier_says(connections: int, money: str) -> None:
    """Open for every hour of the longest month; those included are counted in the limits of the tiers."""
    assert STANDARD.connections([connections] * 744) == Decimal(money)


def test_the_base_charge_of_standard_is_paid_once_for_a_subscription() -> None:
    """A second namespace costs no more; price lists count 730 hours as a month."""
    assert STANDARD.base(Decimal(730), 2) == STANDARD.base(730, 1) == Decimal("9.8112")
    assert STANDARD.base(730, 0) == 0


def test_a_base_charge_for_each_namespace_is_paid_for_each() -> None:
    """A sheet of one's own may say so."""
    assert replace(STANDARD, base_per="namespace").base(Decimal("0.5"), 2) == Decimal("0.01344")


def test_basic_has_no_base_charge_and_one_price() -> None:
    """A billion operations are Infracost's 50 dollars."""
    basic = load("basic")
    assert basic.charge(0, 1_000 * MILLION) == 50
    assert basic.base(730, 2) == 0 and basic.connections([100] * 744) == 0


def test_premium_charges_capacity_and_no_operation() -> None:
    """One unit for a month is Infracost's 677.08, sixteen of them 10 833.20; connections are free."""
    premium = load("premium")
    assert premium.charge(0, 10**12) == 0 and premium.connections([5_000] * 744) == 0
    assert premium.capacity(730, 1, 1) == Decimal("677.075")
    assert premium.base(730, 1, units=16) == Decimal("10833.2")
    assert premium.base(730, 2) == Decimal("1354.15")


def test_geo_replication_charges_both_regions_and_every_byte() -> None:
    """A GB is 10⁹ bytes."""
    geo = load("geo-replication")
    assert geo.capacity(Decimal(720), 1, 2) == Decimal("1335.60")
    assert geo.replication(10**9) == Decimal("0.09") and geo.replication(1) == Decimal("9e-11")


def test_bandwidth_is_charged_by_the_byte() -> None:
    """A started GB is not charged as a whole GB."""
    assert STANDARD.bandwidth(1_500_000_000) == Decimal("0.03")


# ── never a float ──


@pytest.mark.parametrize("name", names())
def test_all_money_is_decimal(name: str) -> None:
    """A float has no exact cent."""
    sheet = load(name)
    amounts = [sheet.charge(0, 10**8), sheet.base(720, 2), sheet.capacity(720, 1, 2), sheet.bandwidth(10**9)]
    amounts += [sheet.replication(10**9), sheet.connections([5_000] * 720)]
    prices = [sheet.base_per_hour, sheet.bandwidth_per_gb, sheet.messaging_unit_per_hour, sheet.replication_per_gb]
    prices += [tier.price for tier in (*sheet.tiers, *sheet.connection_tiers)]
    assert all(type(amount) is Decimal for amount in amounts + prices)


FLOAT: Any = 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: STANDARD.charge(FLOAT, 1),
        lambda: STANDARD.charge(1, FLOAT),
        lambda: STANDARD.base(FLOAT, 1),
        lambda: STANDARD.base(1, FLOAT),
        lambda: STANDARD.bandwidth(FLOAT),
        lambda: STANDARD.replication(FLOAT),
        lambda: STANDARD.connections([1, FLOAT]),
        lambda: STANDARD.capacity(FLOAT, 1, 1),
        lambda: STANDARD.capacity(1, FLOAT, 1),
        lambda: STANDARD.capacity(1, 1, FLOAT),
    ],
)
def test_a_float_is_refused(call: Any) -> None:
    """A float with a whole value is refused too: the next float will not be whole."""
    with pytest.raises(TypeError, match=r"1\.0"):
        call()


def test_negative_numbers_are_refused() -> None:
    """Negative numbers would be money back."""
    calls: list[Callable[[], Decimal]] = [
        lambda: STANDARD.charge(0, -1),
        lambda: STANDARD.base(-1, 1),
        lambda: STANDARD.bandwidth(-1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="-1"):
            call()


def test_a_sheet_cannot_be_changed() -> None:
    """Two bills of one report are made from the same prices."""
    with pytest.raises(FrozenInstanceError):
        STANDARD.included_operations = 0  # type: ignore[misc]


# ── files ──

OWN = """\
name = "contract"
currency = "EUR"
date = "2026-03-01"
source = "our contract"
base_per_hour = "0.01"
base_per = "namespace"
included_operations = 10
tiers = [{ up_to = 20, per_million = "1.5" }, { per_million = "1" }]
bandwidth_per_gb = "0.05"
included_connections = 0
connection_tiers = []
messaging_unit_per_hour = "0"
replication_per_gb = "0"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "contract.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_sheets_that_come_along_are_four() -> None:
    """Each sheet is named like its file, and says when and from where its prices are."""
    assert names() == ("basic", "geo-replication", "premium", "standard")
    for name in names():
        sheet = load(name)
        assert (sheet.name, sheet.currency) == (name, "USD") and sheet.date >= "2026" and "azure" in sheet.source


def test_a_file_of_ones_own_is_a_sheet(tmp_path: Path) -> None:
    """A sheet is named by its path, a text or a Path."""
    sheet = load(written(tmp_path, OWN))
    assert sheet == load(str(tmp_path / "contract.toml")) and isinstance(sheet, PriceSheet)
    assert sheet.tiers == (Tier(20, Decimal("1.5")), Tier(None, Decimal(1)))
    assert sheet.charge(0, 30) == Decimal("0.000025")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('currency = "EUR"\n', "", "currency is missing"),
        ('"EUR"', '""', "currency is ''; it must be a text"),
        ('name = "contract"', "name = 3", "name is 3; it must be a text"),
        ('"2026-03-01"', '"March"', "date is 'March'; it must be a day in quotes"),
        ('"0.01"', "0.01", "base_per_hour is 0.01; it must be an amount in quotes"),
        ('"0.01"', '"-1"', "base_per_hour is '-1'; it must be an amount in quotes"),
        ('"0.01"', '"NaN"', "base_per_hour is 'NaN'; it must be an amount in quotes"),
        ('"namespace"', '"month"', "base_per is 'month'; it must be one of subscription, namespace, none"),
        ('"namespace"', '"none"', "base_per is none; base_per_hour must then be 0, not 0.01"),
        ("included_operations = 10", "included_operations = 1e1", "included_operations is 10.0; it must be a whole"),
        ("included_operations = 10", "included_operations = true", "included_operations is True; it must be a whole"),
        ("included_operations = 10", "included_operations = 20", "up_to is 20; it must be more than the 20 included"),
        ("up_to = 20", "upto = 20", "tiers tier 1: upto is not a field of a price sheet; known are up_to, per_million"),
        ("up_to = 20, ", "", "tiers tier 1: up_to is None; it must be more than 0"),
        ("up_to = 20", "up_to = 0", "tiers tier 1: up_to is 0; it must be more than 0"),
        ('"1.5"', "1.5", "tiers tier 1: per_million is 1.5; it must be an amount in quotes"),
        (
            '{ per_million = "1" }',
            '{ up_to = 9, per_million = "1" }',
            "tiers tier 2: up_to is 9; the last tier must have",
        ),
        ('per_million = "1" }', "}", "tiers tier 2: per_million is missing"),
        ("connection_tiers = []", "connection_tiers = 3", "connection_tiers is 3; it must be a list of tables"),
        ("replication_per_gb", "replication_per_gigabyte", "replication_per_gigabyte is not a field of a price sheet"),
        ('"our contract"', "our contract", "is not TOML"),
        ("included_operations = 10", f"included_operations = {'1' * 5000}", "is not TOML: Exceeds the limit"),
        ("connection_tiers = []", f"connection_tiers = {'[' * 100_000}", "is not TOML"),
    ],
)
def test_a_wrong_file_is_told_by_file_field_and_what_was_expected(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    """A price that is silently 0 would be believed."""
    assert OWN.count(old) == 1
    path = written(tmp_path, OWN.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(path) in str(caught.value) and told in str(caught.value)


def test_tiers_must_rise(tmp_path: Path) -> None:
    """In any other order a count would have two prices."""
    tiers = '{ up_to = 20, per_million = "2" }, { up_to = 20, per_million = "1" }'
    path = written(tmp_path, OWN.replace('{ up_to = 20, per_million = "1.5" }', tiers))
    with pytest.raises(ConfigError, match="tier 2: up_to is 20; it must be more than 20"):
        load(path)


def test_a_sheet_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    """The same error is raised when the name is that of a folder."""
    for name in ("gold", tmp_path):
        with pytest.raises(ConfigError, match="one of basic, geo-replication, premium, standard"):
            load(name)


def test_sheet_that_cannot_be_looked_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be closed to this user, and a name too long for the file system."""
    with pytest.raises(ConfigError, match=r"one of basic|File name too long"):
        load("x" * 300)

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ConfigError, match=r"contract\.toml cannot be read: Permission denied"):
        load(tmp_path / "contract.toml")


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    """A spreadsheet is an example of such a file."""
    (tmp_path / "prices.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(ConfigError, match=r"prices\.xls is not text"):
        load(tmp_path / "prices.xls")
