"""The `pairbus` command. Exit codes: 0 done, 1 it could not be done (one line on stderr), 2 wrong usage."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pairbus import __version__
from pairbus.cli import (
    broker,
    clients,
    demo,
    estimate,
    fault,
    ledger,
    namespace,
    pair,
    proxy,
    queue,
    report,
    rule,
    spool,
    standard,
    status,
    store,
    subscription,
    syphon,
    topic,
)
from pairbus.errors import PairbusError

__all__ = ["app", "main"]

app = typer.Typer(
    name="pairbus",
    help="Send availability for Azure Service Bus, and a durable Service Bus namespace on this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its panels cut option names off in a terminal of 80 columns
    pretty_exceptions_enable=False,  # their listing of local variables would print connection strings
)
for command in (
    broker,
    queue,
    topic,
    subscription,
    rule,
    namespace,
    fault,
    proxy,
    pair,
    status,
    syphon,
    clients,
    demo,
    estimate,
    report,
    ledger,
    spool,
    store,
):
    command.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pairbus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. Errors that we raise on purpose become one line, as does a full disk; others are
    bugs and show. Standard output that cannot be written is an error too."""
    standard.open_closed()
    try:
        app(arguments if arguments is None else list(arguments), prog_name="pairbus")
    except PairbusError as error:
        standard.say(f"pairbus: {error}")
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        standard.say(f"pairbus: {error}")
        sys.exit(1)
    finally:
        ends_with = sys.exception()
        is_told = standard.flush(sys.stdout)
        if not is_told:
            standard.say("pairbus: standard output cannot be written")
        standard.flush(sys.stderr)
        if not is_told and (ends_with is None or (isinstance(ends_with, SystemExit) and not ends_with.code)):
            sys.exit(1)
