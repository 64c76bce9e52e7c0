"""`pairbus demo`: applications go on sending while their namespace is dead, and every message comes home.

`story.py` runs the steps, `pair.py` has the namespaces and entities, `book.py` checks the messages, `serve.py` is
`--serve`; this file has the command and its output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Coroutine
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pairbus.cli.outputs import check_output
from pairbus.cli.pipeline.spark_options import EngineName
from pairbus.cli.serve.broker import check_extra
from pairbus.errors import ConfigError, PairbusError

if TYPE_CHECKING:
    from pairbus.cli.demo.book import DemoVerdict

EPILOG = """\b
Examples:
  pairbus demo
  pairbus demo --messages 10000 --seed 7
  pairbus demo --engine local --json demo.json
  # a pair to play with: applications that send and receive, and the page with a button for outages
  pairbus demo --serve
"""

T = TypeVar("T")
INSTALL_SPARK = "pip install 'pairbus[spark-local]'"
COLOURS = {"outage": "bold red", "diverted": "bold yellow", "recovered": "bold green", "checked": "bold green"}


def register(app: typer.Typer) -> None:
    app.command(name="demo", epilog=EPILOG)(demo)


def demo(
    messages: Annotated[int, typer.Option(help="Messages that are sent.", min=10, max=1_000_000)] = 400,
    seed: Annotated[int | None, typer.Option(help="Seed of contents and time of the kill. Default: a new one.")] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="Engine of the syphon. local: no Spark; spark: a Spark job, and a report of the outage at the end."
            " Default: spark if it is installed."
        ),
    ] = None,
    page: Annotated[Path, typer.Option("--report", metavar="FILE", help="HTML report.")] = Path("pairbus-demo.html"),
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="The numbers, as JSON.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Run a pair and its page until Ctrl-C instead.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page of --serve; 0: any free one.")] = 8080,
) -> None:
    """Kill the primary namespace under load and show that every message arrives.

    Starts two namespaces, pairs them, sends with three applications to queues, sessions and a topic, kills the primary
    with SIGKILL meanwhile, lets the secondary take the messages, starts the primary again, moves the messages home and
    checks each of them.
    Exits with 1 when a message was lost or altered. Leaves only the report and the file of --json behind.

    With --serve nothing is killed: the pair, the applications and the page run until Ctrl-C, and the page has buttons
    for outages.
    """
    check_extra()
    for name in ("azure", "pairbus"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # warnings about broken connections, which the demo shows
    # Both are imported when needed: it takes a third of a second, for which other commands should not wait.
    if serve:
        from pairbus.cli.demo.serve import serve as serve_pair

        _run(serve_pair(port, typer.echo))
        return
    check_output("--json", json_file)
    check_output("--report", page)
    has_spark = find_spec("pyspark") is not None
    engine = engine or (EngineName.spark if has_spark else EngineName.local)
    if engine is EngineName.spark:
        _check_spark(has_spark=has_spark)
    from pairbus.cli.demo.story import Story

    seed = random.randrange(1_000_000) if seed is None else seed
    stage = Stage()
    verdict = _run(Story(messages, seed, engine, page, stage.say).tell())
    stage.show(verdict)
    if json_file is not None:
        json_file.write_text(json.dumps(asdict(verdict), indent=2) + "\n", encoding="utf-8")
    if not verdict.is_good:
        raise typer.Exit(1)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:  # Ctrl-C would be a KeyboardInterrupt
        raise PairbusError("stopped by SIGTERM; nothing was left behind") from None
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors  # the user gets the first error


def _check_spark(*, has_spark: bool) -> None:
    """Raise ConfigError when Spark or Java is missing, before the demo starts anything."""
    if not has_spark:
        raise ConfigError(f"--engine spark needs pyspark: {INSTALL_SPARK}, or take --engine local")
    from pairbus.spark.java import find_java

    find_java()


class Stage:
    """Output of the demo: in colours on a terminal, in plain lines elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True)
        self._began_s = time.monotonic()

    def say(self, word: str, text: str) -> None:
        colour = COLOURS.get(word, "bold")
        self._console.print(f"[dim]{time.monotonic() - self._began_s:5.1f} s[/dim]  [{colour}]{word}[/]: {text}")

    def show(self, verdict: DemoVerdict) -> None:
        from pairbus.cli.demo.book import MEANINGS

        billable = verdict.cost["billable_operations"]
        causes = ", ".join(f"{cause} {count}" for cause, count in billable.items())
        shown = asdict(verdict) | {"cost": sum(billable.values()), "report": verdict.report or "-"}
        meanings = MEANINGS | {"cost": f"billable operations: {causes}"}
        if verdict.report is None:
            meanings["report"] = f"the report of the outage needs --engine spark: {INSTALL_SPARK}".replace("[", r"\[")
        width = max(len(str(value)) for value in shown.values())
        self._console.print()
        for name, value in shown.items():
            self._console.print(f"{name:>10}  [bold]{value!s:>{width}}[/]  [dim]{meanings[name]}[/]")
        if verdict.is_good:
            self._console.print("[green]Every accepted message is in the primary, unaltered.[/]")
        else:
            self._console.print("[bold red]The pair broke its promise: see lost and altered.[/]")
