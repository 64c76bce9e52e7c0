"""`pairbus estimate`: what it prints for people and for pipes, what it writes, what it does not understand."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from pairbus.cli import main
from pairbus.cli.pair.estimate import parse_duration, parse_rate, parse_size

BIG = ["--entities", "50", "--clients", "100", "--rate", "200/s", "--size", "1KB", "--outage", "1h"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["estimate", *map(str, arguments)])
    return int(caught.value.code or 0)


def tables(shown: str) -> dict[str, list[list[str]]]:
    """Parse the plain output into title → rows, without the header rows."""
    found = {}
    for block in shown.split("\n\n")[1:-1]:
        title, _, *rows = block.splitlines()
        found[title] = [row.split("\t") for row in rows]
    return found


def test_a_pipe_gets_tables_of_tab_separated_cells(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers without gaps, so that they can be read by a program."""
    assert run(*BIG) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("An estimate.") and "Prices: standard, USD, " in shown
    found = tables(shown)
    assert ["pings", "300000", "operations"] in found["The outage"]
    assert ["diverted", "720000", "messages"] in found["The outage"]
    assert ["drained at 200/s in", "1 h", ""] in found["The outage"]
    assert ["total", "", "1038568800", "545.384"] in found["Operations"]
    assert ["total", "669.338", "670.692", "1.354"] in found["The bill"]
    assert found["Receives of an idle syphon"] == [["10", "1", "40", "960", "28800", "0.023"]]
    assert "Note: 5 101 connections" in shown


def test_drain_that_takes_ages_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The time has more digits than a Decimal could hold with nine decimal places."""
    assert run("--rate", "100000/s", "--budget", "0.000001/d", "--outage", "1h") == 0
    [drained] = [row for row in tables(capsys.readouterr().out)["The outage"] if row[0].startswith("drained")]
    assert int(drained[1].split()[0]) == pytest.approx(360 * 10**12)  # days, for 3600 s × 100 000 messages


def test_a_terminal_gets_aligned_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Large numbers have gaps, and lines have at most 80 columns."""
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "80")):
        monkeypatch.setenv(name, value)
    assert run(*BIG) == 0
    shown = capsys.readouterr().out
    assert "\t" not in shown and "1 038 568 800" in shown and "28 800" in shown and "…" not in shown


def test_the_numbers_can_be_had_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Money as text: a reader that makes floats of numbers must not make them of money."""
    file = tmp_path / "estimate.json"
    assert run(*BIG, "--json", file) == 0
    read = json.loads(file.read_text(encoding="utf-8"), parse_float=pytest.fail)
    assert (read["schema"], read["estimate"], read["pings"], read["diverted"]) == (1, True, 300_000, 720_000)
    assert read["prices"]["name"] == "standard" and read["assumptions"]["messages_per_second"] == "200"
    assert Decimal(read["added"]) == Decimal(read["paired"]["money"]) - Decimal(read["alone"]["money"])
    assert read["idle"][0]["money"] == "0.02304" and read["lines"][0]["part"] == "application"


def test_without_options_it_shows_a_small_system(capsys: pytest.CaptureFixture[str]) -> None:
    """The output says what was assumed, so that the user can change it."""
    assert run() == 0
    assert (
        "entities 10, clients 1, messages a second 10, bytes of a message 1024, outage 1 h" in capsys.readouterr().out
    )


def test_prices_can_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the name and the currency of the file."""
    from pairbus.ledger import prices as pricing

    text = (Path(pricing.__file__).parent / "price_sheets" / "standard.toml").read_text(encoding="utf-8")
    file = tmp_path / "contract.toml"
    file.write_text(text.replace('"standard"', '"contract"').replace('"0.80"', '"8"'), encoding="utf-8")
    assert run("--prices", file, "--rate", "0") == 0
    shown = capsys.readouterr().out
    assert "Prices: contract, USD" in shown
    assert tables(shown)["Receives of an idle syphon"][0][-1] == "0.230"


def test_strict_counting_shows_settlements(capsys: pytest.CaptureFixture[str]) -> None:
    """Settlements of the application and of the syphon both have a row."""
    assert run("--rate", "1/s", "--counting", "strict") == 0
    rows = {row[1]: row[2] for row in tables(capsys.readouterr().out)["Operations"]}
    assert (rows["settlements"], rows["settlements by the syphon"]) == ("2592000", "3600")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--size", "big"), 2, "'big' is not a size such as 1024, 1KB"),
        (("--outage", "1y"), 2, "'1y' is not a duration in whole seconds, such as 90, 90s, 15m, 1h30m or 2d"),
        (("--rate", "fast"), 2, "'fast' is not a rate such as 200/s"),
        (("--ping-interval", "0"), 2, "--ping-interval is 0; it must be at least 1"),
        (("--outage", "31d"), 2, "--outage is 2678400; it must not be longer than the 30 days"),
        (("--days", "32"), 2, "'--days'"),
        (("--prices", "gold"), 1, "pairbus: There is no price sheet 'gold'"),
        (("--json", "nowhere/estimate.json"), 1, "the folder nowhere does not exist"),
    ],
)
def test_what_is_not_understood_is_told(
    arguments: tuple[str, str], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says which values are right; standard output is empty."""
    assert run(*arguments) == code
    shown = capsys.readouterr()
    assert told in shown.err and shown.out == ""


def test_a_json_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is a folder here."""
    assert run("--json", tmp_path) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has an example for the common case, and one for a price sheet of the user's own."""
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert "pairbus estimate --entities 50 --clients 100" in shown and "--prices contract.toml" in shown


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h", 3_600), ("2d", 172_800), ("0", 0)]
)
def test_durations(text: str, seconds: int) -> None:
    """Durations are given in the usual units."""
    assert parse_duration(text, "--outage") == seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [("1024", 1_024), ("1KB", 1_024), ("64KB", 65_536), ("64 kb", 65_536), ("1MB", 1_048_576), ("7B", 7)],
)
def test_sizes(text: str, count: int) -> None:
    """A KB has 1024 bytes here, as in the 64 KB of an operation."""
    assert parse_size(text, "--size") == count


@pytest.mark.parametrize(
    ("text", "rate"), [("200", "200"), ("200/s", "200"), ("0.5/s", "0.5"), ("3/m", "0.05"), ("36/h", "0.01")]
)
def test_rates(text: str, rate: str) -> None:
    """A second, when nothing is said."""
    assert parse_rate(text, "--rate") == Decimal(rate)


def test_a_rate_without_an_end_is_not_rounded_up_to_another_message(capsys: pytest.CaptureFixture[str]) -> None:
    """7 a day are 7 in a day, although 7/86400 cannot be written down."""
    assert run("--rate", "7/d", "--days", "1", "--outage", "0") == 0
    rows = {row[1]: row[2] for row in tables(capsys.readouterr().out)["Operations"]}
    assert rows["receives from the primary"] == "7"
