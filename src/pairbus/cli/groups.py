"""Groups of commands whose list in `--help` shows each summary whole."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

WHOLE = 10_000  # characters of a summary: more than any summary has


class WrappingGroup(TyperGroup):
    """A group that wraps long summaries instead of cutting them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, found.get_short_help_str(WHOLE)) for name, found in commands if found and not found.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
