"""Messages on standard output: a table, one JSON array, or JSON lines. Terminal escapes are shown as text.

Characters that the encoding of standard output lacks are escaped: a message that is deleted must not be lost for them.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import typer

from pairbus.cli.table import print_table

BODY_WIDTH = 60  # characters of a body in a table on a terminal
# Characters that JSON leaves as they are, and that control terminals: C1 controls, line separators, direction marks.
_STEERING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Format(StrEnum):
    table = "table"
    json = "json"
    jsonl = "jsonl"


def visible(text: str) -> str:
    """Write characters that cannot be printed as escapes: `\\x1b`, `\\n`, `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _ESCAPES.get(one) or _escaped(one) for one in text)


def _escaped(one: str) -> str:
    code = ord(one)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def json_text(shown: dict[str, Any]) -> str:
    """Write one object; characters that control a terminal are escaped as JSON allows."""
    text = json.dumps(shown, ensure_ascii=False)
    text = _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return text.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair is \udXXX, as in JSON


def writable(text: str) -> str:
    """Write characters that standard output cannot encode as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def writable_json(text: str) -> str:
    """Return JSON for standard output: in ASCII, unless that is UTF-8. Readers of JSON expect UTF-8."""
    if codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8":
        return text
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


class Output:
    """Prints messages in one format. `end` must be called, also when there were none."""

    def __init__(self, chosen: Format, *, dead_letter: bool = False, live: bool = False) -> None:
        self._format = chosen
        self._dead_letter = dead_letter
        self._live = live
        "True to print rows of the table as they come."
        self._count = 0
        self._rows: list[Sequence[object]] = []

    def add(self, shown: list[dict[str, Any]]) -> None:
        """Print messages; they are written when this returns, except in a table."""
        for one in shown:
            if self._format is Format.jsonl:
                typer.echo(writable_json(json_text(one)))
            elif self._format is Format.json:
                typer.echo(f"{',' if self._count else '['}\n{writable_json(json_text(one))}", nl=False)
            elif self._live:
                if not self._count:
                    typer.echo("\t".join(self._columns()))
                typer.echo("\t".join(str(cell) for cell in self._row(one)))
            else:
                self._rows.append(self._row(one))
            self._count += 1
        sys.stdout.flush()

    def end(self) -> None:
        """Print the rest."""
        if self._format is Format.json:
            typer.echo("\n]" if self._count else "[]")
        elif self._format is Format.table and not self._live:
            print_table(self._columns(), self._rows)
        sys.stdout.flush()

    def _columns(self) -> tuple[str, ...]:
        reason = ("dead_letter_reason",) if self._dead_letter else ()
        return ("sequence_number", "enqueued_time", "message_id", "state", "subject", "session_id", *reason, "body")

    def _row(self, shown: dict[str, Any]) -> list[object]:
        row: list[object] = []
        for column in self._columns():
            value = shown.get(column)
            if isinstance(value, str):
                value = visible(value)
                if column == "body" and sys.stdout.isatty() and len(value) > BODY_WIDTH:
                    value = f"{value[: BODY_WIDTH - 1]}…"
                value = writable(value)
            row.append("-" if value is None else value)
        return row
