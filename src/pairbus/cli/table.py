"""Tables for terminals and for pipes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

WIDE = 10_000
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"Variables with which a user says that the output counts as a terminal."


def is_terminal() -> bool:
    """Return whether standard output is a terminal. Imports rich, which is slow, only where that is not clear."""
    if not sys.stdout.isatty() and not any(name in os.environ for name in _FORCING):
        return False
    from rich.console import Console

    return Console().is_terminal


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal; elsewhere one line per row, tab-separated, so that `cut -f1` works.

    In a narrow terminal long lines wrap, because a name that is cut off is of no use.
    """
    if not is_terminal():
        for row in (columns, *rows):
            typer.echo("\t".join(str(cell) for cell in row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # a message id may hold [brackets]
    table = Table(box=box.SIMPLE_HEAD)
    for column, sample in zip(columns, rows[0] if rows else columns, strict=True):
        table.add_column(column.replace("_", " "), justify="right" if isinstance(sample, int | float) else "left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDE)).maximum)
    console.print(table)
