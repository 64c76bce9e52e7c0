"""Write docs/cli.md from the commands themselves: `python tools/write_cli_docs.py`.

The page is made from the functions' signatures and not from the text of `--help`, whose layout changes with the
version of the library that prints it. `tests/test_docs.py` fails when the page is stale.
"""

from __future__ import annotations

import inspect
import textwrap
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, CommandInfo, OptionInfo

from pairbus.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """\
# The command line

This page is made by `tools/write_cli_docs.py`; `pairbus COMMAND --help` says the same.

Exit codes: 0 done · 1 it could not be done, with one line on standard error that says why · 2 wrong usage.
Ctrl-C ends commands with 130; `pairbus message` leaves nothing locked. `broker`, `proxy`, `dashboard` and
`message tail` are meant to be ended by it, with 0; `redrive` and `syphon --once` at work then end with 1, because
messages may be left.

Durations are seconds (`90`), have units (`30s`, `5m`, `1h30m`, `14d`), or are ISO-8601 (`PT5M`).
`pairbus --install-completion` teaches your shell to complete commands; `--show-completion` prints the script.

Wherever a connection string (`CS`) is taken, `@FILE` gives the text of a file and `env:NAME` that of a variable of the
environment. Both keep the key off the command line, where every process of the machine can read it.

`pairbus --version` prints the version.
"""


def commands(group: typer.Typer = app, prefix: str = "pairbus") -> Iterator[tuple[str, CommandInfo]]:
    """Yield (full name, command) of every command."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{prefix} {command.name or command.callback.__name__}", command
    for child in group.registered_groups:
        assert child.typer_instance is not None and child.name is not None
        yield from commands(child.typer_instance, f"{prefix} {child.name}")


def parameters(callback: Callable[..., Any]) -> Iterator[tuple[str, OptionInfo | ArgumentInfo, Any]]:
    """Yield (name as typed, what typer knows, default) of every parameter."""
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, info = typing.get_args(hints[name])
        if isinstance(info, ArgumentInfo):
            yield info.metavar or name.upper(), info, parameter.default
            continue
        assert isinstance(info, OptionInfo)
        # In an Annotated the first spelling is in the place of the default.
        first = (info.default,) if isinstance(info.default, str) else ()
        spelled = [*first, *(info.param_decls or ())]
        typed = ", ".join(spelled or [f"--{name.replace('_', '-')}"])
        if bool in (kind, *typing.get_args(kind)):
            if not spelled:
                typed += f" / --no-{typed[2:]}"
        else:
            typed += f" {info.metavar or _value(kind)}"
        yield typed, info, parameter.default


def _value(kind: Any) -> str:
    return "NUMBER" if int in (kind, *typing.get_args(kind)) else "TEXT"


def _meaning(info: OptionInfo | ArgumentInfo, default: Any) -> str:
    words = info.help or ""
    extra = []
    if isinstance(info.envvar, str):
        extra.append(f"environment: `{info.envvar}`")
    if default is inspect.Parameter.empty:
        extra.append("required")
    elif default not in (None, False, "") and not callable(default):
        extra.append(f"default: `{default}`")
    return f"{words} ({'; '.join(extra)})" if extra else words


def _section(name: str, command: CommandInfo) -> str:
    assert command.callback is not None
    lines = [f"## {name}", "", inspect.getdoc(command.callback) or "", "", "| | |", "| --- | --- |"]
    lines += [f"| `{typed}` | {_meaning(info, default)} |" for typed, info, default in parameters(command.callback)]
    # Paragraphs begin with \b, which keeps their lines apart in `--help`; text behind the examples is prose.
    examples, _, prose = (command.epilog or "").strip("\b\n ").partition("\b")
    shown = examples.removeprefix("Examples:").removeprefix("Example:").strip("\n")
    if shown:
        lines += ["", "```sh", textwrap.dedent(shown).strip(), "```"]
    if prose:
        lines += ["", prose.strip()]
    return "\n".join(lines) + "\n"


def render() -> str:
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands())])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
