"""Tables for terminals and for pipes."""

from __future__ import annotations

from collections.abc import Sequence

import typer

WIDE = 10_000


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal; elsewhere one line per row, tab-separated, so that `cut -f1` works.

    In a narrow terminal long lines wrap, because a name that is cut off is of no use.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # a message id may hold [brackets]
    if not console.is_terminal:
        for row in (columns, *rows):
            typer.echo("\t".join(str(cell) for cell in row))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column, sample in zip(columns, rows[0] if rows else columns, strict=True):
        table.add_column(column.replace("_", " "), justify="right" if isinstance(sample, int | float) else "left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.width = max(console.width, console.measure(table, options=console.options.update(width=WIDE)).maximum)
    console.print(table)
