"""Groups of commands whose list in `--help` shows each summary whole."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

NUMBERS = {
    **dict.fromkeys(("integer", "int", "integer range", "int range"), "whole number"),
    **dict.fromkeys(("float", "float range"), "number"),
}
"Type of a value → its name in errors, as in `'abc' is not a valid whole number`."
PLACEHOLDERS = {
    "text": "TEXT",
    "str": "TEXT",
    "whole number": "N",
    "number": "NUMBER",
    "path": "PATH",
    "filename": "PATH",
}
"Type of a value → its name in the help; a choice shows its words."
WHOLE = 10_000  # characters of a summary: more than any summary has


def _placeholder(kind: Any) -> str | None:
    choices = getattr(kind, "choices", None)
    if choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in choices)
    return PLACEHOLDERS.get(kind.name)


class WrappingGroup(TyperGroup):
    """A group that wraps long summaries instead of cutting them, and names values in capitals."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; a value without a name of its own is called by its type, in words of users."""
        command = super().get_command(ctx, cmd_name)
        for parameter in [] if command is None else command.params:
            kind = parameter.type
            kind.name = NUMBERS.get(kind.name, kind.name)
            if parameter.metavar is None and not getattr(parameter, "is_flag", False):
                parameter.metavar = _placeholder(kind)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(WHOLE)) for name, command in commands if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
