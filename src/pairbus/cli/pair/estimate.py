"""`pairbus estimate`: an estimate of the cost of pairing, before a pair exists."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.outputs import check_output
from pairbus.errors import ConfigError
from pairbus.settings.durations import UNIT_S, seconds_of

if TYPE_CHECKING:
    from pairbus.ledger.estimate import Assumptions, Estimate, EstimatedBill

EPILOG = """\b
Examples:
  pairbus estimate --entities 50 --clients 100 --rate 200/s --size 1KB --outage 1h
  pairbus estimate --rate 3/m --outage 15m --backlog-queue-count 4 --counting strict
  pairbus estimate --prices premium --units 2 --outage 2d
  pairbus estimate --prices contract.toml --operations-before 0 --json estimate.json
"""
GEO = "geo-replication"

_UNITS_BYTES = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20}  # the 64 KB of an operation are 65536 bytes too
_OPTIONS = {"messages_per_second": "rate", "size_bytes": "size", "budget_per_second": "budget"}
"Assumption → option that has another name."
_SIZE = re.compile(r"(\d{1,9}) ?([KM]?B?)", re.ASCII)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:/([smhd]))?", re.ASCII)


class CountingChoice(StrEnum):
    documented = "documented"
    strict = "strict"


def register(app: typer.Typer) -> None:
    """Add the command `pairbus estimate`."""
    app.command(name="estimate", epilog=EPILOG)(estimate)


def estimate(
    entities: Annotated[int, typer.Option(min=1, help="Number of queues and topics that the clients send to.")] = 10,
    clients: Annotated[int, typer.Option(min=1, help="Number of client processes; each sends to every entity.")] = 1,
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Messages that all clients together send: 200/s, 3/m, 50/h, 1000/d.")
    ] = "10/s",
    size: Annotated[str, typer.Option(metavar="SIZE", help="Size of a message: 1024, 1KB, 64KB, 1MB.")] = "1KB",
    outage: Annotated[
        str, typer.Option(metavar="DURATION", help="Outage of the whole primary: 90, 90s, 15m, 1h, 2d; 0: none.")
    ] = "1h",
    backlog_queue_count: Annotated[int, typer.Option(min=1, help="Number of backlog queues.")] = 10,
    syphons: Annotated[int, typer.Option(min=1, help="Number of processes that run the syphon.")] = 1,
    ping_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Time between two pings of an entity that is failed over.")
    ] = "60s",
    failover_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for which sends fail before they are diverted.")
    ] = "60s",
    budget: Annotated[
        str, typer.Option(metavar="RATE", help="Messages that all syphons together may move home.")
    ] = "200/s",
    days: Annotated[int, typer.Option(min=1, max=31, help="Number of billed days, including the outage.")] = 30,
    prices: Annotated[
        str, typer.Option(metavar="SHEET", help="basic, standard, premium, or a file; see docs/prices.md.")
    ] = "standard",
    units: Annotated[
        int, typer.Option(min=1, help="Messaging units of each namespace, for premium and geo-replication.")
    ] = 1,
    counting: Annotated[
        CountingChoice, typer.Option(help="documented: settlements are free; strict: each settlement is an operation.")
    ] = CountingChoice.documented,
    operations_before: Annotated[
        int | None, typer.Option(min=0, help="Earlier operations of the month, for the tier. Default: all included.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to this file, as JSON.")
    ] = None,
) -> None:
    """Estimate the cost of pairing in a month with one outage: operations, money, connections, time to drain.

    Shows the cost of the application alone, the cost that pairing adds while idle, during the outage and after it, and
    the cost of Azure's geo-replication for the same traffic. Connects to nothing. All amounts are estimates of the
    worst case within the assumptions.
    """
    # Imported when needed: other commands should not wait for it.
    from pairbus.ledger.estimate import Assumptions
    from pairbus.ledger.estimate import estimate as estimated
    from pairbus.ledger.prices import load

    check_output("--json", json_file)
    assumptions = Assumptions(
        sheet=load(prices),
        geo=load(GEO),
        entities=entities,
        clients=clients,
        messages_per_second=parse_rate(rate, "--rate"),
        size_bytes=parse_size(size, "--size"),
        outage_s=parse_duration(outage, "--outage"),
        days=days,
        backlog_queue_count=backlog_queue_count,
        syphons=syphons,
        ping_interval_s=parse_duration(ping_interval, "--ping-interval"),
        failover_interval_s=parse_duration(failover_interval, "--failover-interval"),
        budget_per_second=parse_rate(budget, "--budget"),
        units=units,
        counting=counting.value,
        operations_before=operations_before,
    )
    try:
        made = estimated(assumptions)
    except ValueError as error:
        raise typer.BadParameter(_in_words_of_options(str(error))) from None
    _show(assumptions, made)
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(as_json(assumptions, made), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--json {json_file}: {error.strerror or error}") from None


# ── options ──


def parse_duration(text: str, option: str) -> int:
    seconds = seconds_of(text)
    if seconds is None or seconds != int(seconds):
        raise _wrong(text, option, "a duration in whole seconds, such as 90, 90s, 15m, 1h30m or 2d")
    return int(seconds)


def parse_size(text: str, option: str) -> int:
    """Parse a size and return bytes. A KB has 1024."""
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None or match[2] not in _UNITS_BYTES:
        raise _wrong(text, option, "a size such as 1024, 1KB, 64KB or 1MB")
    return int(match[1]) * _UNITS_BYTES[match[2]]


def parse_rate(text: str, option: str) -> Decimal:
    """Parse a rate and return messages a second."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise _wrong(text, option, "a rate such as 200/s, 3/m, 50/h or 1000/d")
    return Decimal(match[1]) / int(UNIT_S[match[2] or "s"])


def _in_words_of_options(error: str) -> str:
    """Return an error that begins with the name of an assumption so that it begins with the option."""
    field, _, rest = error.partition(" ")
    return f"--{_OPTIONS.get(field, field.removesuffix('_s').replace('_', '-'))} {rest}"


def _wrong(text: str, option: str, wanted: str) -> typer.BadParameter:
    return typer.BadParameter(f"{text!r} is not {wanted}", param_hint=option)


# ── output ──


def _show(assumptions: Assumptions, made: Estimate) -> None:
    sheet = assumptions.sheet
    rate = f"{assumptions.messages_per_second:.6g}"
    typer.echo(
        f"An estimate. Days {assumptions.days}, entities {assumptions.entities}, clients {assumptions.clients},"
        f" messages a second {rate}, bytes of a message {assumptions.size_bytes},"
        f" outage {_time(assumptions.outage_s)}."
    )
    typer.echo(f"Prices: {sheet.name}, {sheet.currency}, {sheet.date}; {assumptions.counting} counting.\n")
    _table("The outage", ("what", "amount", "unit"), _outage_rows(assumptions, made))
    columns = ("part", "what", "operations", sheet.currency)
    lines = [[line.part, line.kind, line.operations, line.money] for line in made.lines if line.operations]
    _table("Operations", columns, [*lines, ["total", "", made.paired.operations, made.paired.operations_money]])
    _table("The bill", ("what", "alone", "with pairing", "added"), _bill_rows(made))
    idle = [[i.queues, i.syphons, i.per_hour, i.per_day, i.per_30_days, i.money] for i in made.idle]
    head = ("backlog queues", "syphons", "an hour", "a day", "30 days", sheet.currency)
    _table("Receives of an idle syphon", head, idle)
    for note in made.notes:
        typer.echo(f"Note: {note}")


def _outage_rows(assumptions: Assumptions, made: Estimate) -> list[list[object]]:
    return [
        ["failed over, at most", _time(made.failed_over_s), ""],
        ["sends that fail before that", made.failed, "messages"],
        ["diverted", made.diverted, "messages"],
        ["pings", made.pings, "operations"],
        ["in the backlog", made.backlog_bytes, "bytes"],
        ["between the regions, there and back", made.crossing_bytes, "bytes"],
        [f"drained at {assumptions.budget_per_second:.6g}/s in", _time(made.drain_s), ""],
        ["connections without pairing", made.connections_alone, "connections"],
        ["connections while failed over, at both", made.connections_peak, "connections"],
    ]


def _bill_rows(made: Estimate) -> list[list[object]]:
    def row(what: str, name: str) -> list[object]:
        alone, paired = (getattr(bill, name) for bill in (made.alone, made.paired))
        return [what, alone, paired, paired - alone]

    rows = [
        row("operations", "operations_money"),
        row("bandwidth", "bandwidth_money"),
        row("connections", "connections_money"),
        row("base charge, messaging units", "base_money"),
        row("total", "money"),
    ]
    if made.geo is not None:
        rows.append(["geo-replication, the same traffic", "", made.geo, made.geo - made.alone.money])
    if made.geo_ratio is not None:
        rows.append(["geo-replication, times pairing", "", f"{made.geo_ratio:.1f}", ""])
    return rows


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal; elsewhere a title, and one line per row, tab-separated."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        typer.echo(title)
        for cells in (columns, *rows):
            typer.echo("\t".join(_cell(cell, "") for cell in cells))
        typer.echo()
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        texts = all(isinstance(row[number], str) for row in rows)
        table.add_column(column, justify="left" if texts else "right")
    for row in rows:
        table.add_row(*(_cell(cell, " ") for cell in row), style="bold" if row[0] == "total" else None)
    console.print(table)


def _cell(value: object, gap: str) -> str:
    if isinstance(value, Decimal):
        whole, _, rest = f"{value:.3f}".partition(".")
        return f"{int(whole):,}".replace(",", gap) + f".{rest}" if abs(value) >= 1 else f"{value:.3f}"
    return f"{value:,}".replace(",", gap) if isinstance(value, int) else str(value)


def _time(seconds: int) -> str:
    """Return a length of time as `1 h 30 min`: at most two units, rounded up to the smaller one."""
    for (name, size), (smaller, step) in (
        (("d", 86_400), ("h", 3_600)),
        (("h", 3_600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if seconds >= size:
            whole, rest = divmod(-(-seconds // step) * step, size)
            return f"{whole} {name} {rest // step} {smaller}" if rest else f"{whole} {name}"
    return f"{seconds} s"


# ── JSON ──


def as_json(assumptions: Assumptions, made: Estimate) -> dict[str, Any]:
    """Return the estimate as a JSON object; money and rates are texts, so that they are not read as floats."""
    assumed = {name: value for name, value in asdict(assumptions).items() if name not in ("sheet", "geo")}
    numbers = asdict(made) | {"alone": _bill(made.alone), "paired": _bill(made.paired)}
    sheet = {name: getattr(assumptions.sheet, name) for name in ("name", "currency", "date", "source")}
    extra = {"added": made.added, "geo_ratio": made.geo_ratio}
    whole = {"schema": 1, "estimate": True, "prices": sheet, "assumptions": assumed, **numbers, **extra}
    return {name: _plain(value) for name, value in whole.items()}


def _bill(bill: EstimatedBill) -> dict[str, Any]:
    return asdict(bill) | {"money": bill.money}


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
