"""The `pairbus` command. Exit codes: 0 done, 1 it could not be done (one line on stderr), 2 wrong usage.

`serve` has brokers, proxies, the dashboard and their switches; `admin` entities and rules; `messages` single messages;
`pair` what operators ask about a pair; `pipeline` syphons, ledgers and reports; `demo` the show.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus import __version__
from pairbus.cli import standard
from pairbus.cli.groups import WrappingGroup
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    app: typer.Typer

__all__ = ["app", "main"]

# Modules of the commands, in the order of the help. Most have the name of their command.
MODULES = {
    "broker": "serve.broker",
    "emulator": "serve.emulator",
    "queue": "admin.queue",
    "topic": "admin.topic",
    "subscription": "admin.subscription",
    "rule": "admin.rule",
    "message": "messages.command",
    "namespace": "admin.namespace",
    "fault": "serve.fault",
    "health": "serve.health",
    "proxy": "serve.proxy",
    "pair": "pair.command",
    "status": "pair.status",
    "dashboard": "serve.dashboard",
    "syphon": "pipeline.syphon",
    "clients": "pair.clients",
    "demo": "demo.command",
    "estimate": "pair.estimate",
    "report": "pipeline.report",
    "ledger": "pipeline.ledger",
    "spool": "pair.spool",
    "store": "serve.store",
}
COLLECT_AT = (20_000, 20, 20)
"""Thresholds of the garbage collector in a process that is a command. Imports and messages make many objects and hardly
any cycle: with Python's own thresholds, walking through them took a tenth of a command's start, and 5 % of a send."""
UsageError: Any = typer.BadParameter.__bases__[0]
"Base of the errors of a wrong usage. Later releases of typer have a copy of click, and do not export the class."
_COMPLETION = "_PAIRBUS_COMPLETE"
"Variable that a shell sets when it asks for completions."


def application(modules: Sequence[str] = tuple(MODULES)) -> typer.Typer:
    """Make the command with the subcommands of these modules."""
    made = typer.Typer(
        name="pairbus",
        help="Send availability for Azure Service Bus, and a durable Service Bus namespace on this machine.",
        epilog="Begin with `pairbus demo`, or with `pairbus broker` for a namespace of your own.",
        no_args_is_help=True,
        cls=WrappingGroup,
        rich_markup_mode=None,  # its panels cut option names off in a terminal of 80 columns
        pretty_exceptions_enable=False,  # their listing of local variables would print connection strings
    )
    for name in modules:
        import_module(f"pairbus.cli.{MODULES[name]}").register(made)
    for child in made.registered_groups:
        assert child.typer_instance is not None
        child.typer_instance.info.cls = WrappingGroup
    made.callback()(_options)
    return made


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = application()
    return made


def _needed(arguments: Sequence[str]) -> Sequence[str]:
    """Return the modules that a command line needs: one, when its first word is a command; importing all takes time."""
    first = arguments[0] if arguments else ""
    return (first,) if first in MODULES and _COMPLETION not in os.environ else tuple(MODULES)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pairbus {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def _say_usage(error: Any) -> None:
    """Print what is wrong with the usage in one line, or the help of a command that needs a word more."""
    if not error.format_message() or error.exit_code != 2 or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    command = error.ctx.command_path if error.ctx is not None else "pairbus"
    message = " ".join(error.format_message().split()).rstrip(".")
    standard.say(f"{command}: {message}; see `{command} --help`")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Errors that we raise on purpose become one line, as do a wrong usage and a full
    disk; other errors are bugs and show a traceback. Standard output that cannot be written is an error too."""
    standard.open_closed()
    handlers = standard.signal_handlers()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        gc.set_threshold(*COLLECT_AT)
    try:
        sys.exit(application(_needed(words))(words, prog_name="pairbus", standalone_mode=False) or 0)
    except UsageError as error:
        _say_usage(error)
        sys.exit(2)
    except typer.Abort:
        standard.say("aborted")
        sys.exit(1)
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
        if arguments is None:  # the process ends, with the exit code that it has
            standard.ignore_signals()
        else:
            standard.restore_signals(handlers)
        if not is_told and (ends_with is None or (isinstance(ends_with, SystemExit) and not ends_with.code)):
            sys.exit(1)
