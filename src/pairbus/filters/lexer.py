"""The words of filter and action texts. `words` cuts a text into lexemes, each with its column."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from pairbus.filters.errors import FilterSyntaxError

TEXT_LENGTH_MAX = 1024  # of a filter or an action, as on Azure; this limits conditions, lists and work of one rule

NUMBER, TEXT, NAME, QUOTED, PARAMETER, SYMBOL, END = "number", "text", "name", "quoted", "parameter", "symbol", "end"

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?", re.ASCII)
_SYMBOLS = ("<>", "!=", ">=", "<=", "=", ">", "<", "+", "-", "*", "/", "%", "(", ")", ",", ".", ";")
_CLOSING = {"'": "'", '"': '"', "[": "]"}


class Lexeme(NamedTuple):
    """One word of the text."""

    kind: str
    value: Any
    "A number, a text without its quotes, a name or a symbol."
    column: int
    "Position in the text, counted from 1."
    source: str
    "The word as it stands in the text; empty at the end."

    @property
    def shown(self) -> str:
        """The lexeme as error texts name it."""
        return f"{self.source!r:.42}" if self.source else "the end of the text"

    def is_word(self, *words: str) -> bool:
        """Return True when the lexeme is one of these keywords, in any case."""
        return self.kind == NAME and self.value.upper() in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind == SYMBOL and self.value in symbols


def words(text: str) -> list[Lexeme]:
    """Cut a text into lexemes, the last one of kind END; FilterSyntaxError for a character that begins no word."""
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterSyntaxError(
            TEXT_LENGTH_MAX + 1, f"the text has {len(text)} characters; {TEXT_LENGTH_MAX} are allowed"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterSyntaxError(error.start + 1, "half of a surrogate pair is not a character") from error
    lexemes, at = [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        kind, value, end = _word(text, at)
        lexemes.append(Lexeme(kind, value, at + 1, text[at:end]))
        at = end
    lexemes.append(Lexeme(END, None, len(text) + 1, ""))
    return lexemes


def _word(text: str, at: int) -> tuple[str, Any, int]:
    """Return kind, value and end of the word that begins at `at`."""
    first = text[at]
    if first in _CLOSING:
        value, end = _quoted(text, at, _CLOSING[first])
        return (TEXT if first == "'" else QUOTED), value, end
    if first.isalpha():
        end = _name_end(text, at)
        return NAME, text[at:end], end
    number = _NUMBER.match(text, at)
    if number:
        return NUMBER, _number(text, number), number.end()
    if first == "@":
        end = _name_end(text, at + 1)
        if end == at + 1:
            raise FilterSyntaxError(at + 1, "expected the name of a parameter after '@'")
        return PARAMETER, text[at + 1 : end], end
    for symbol in _SYMBOLS:
        if text.startswith(symbol, at):
            return SYMBOL, symbol, at + len(symbol)
    hint = "; names that do not begin with a letter stand in brackets: [_name]" if first == "_" else ""
    raise FilterSyntaxError(at + 1, f"unexpected character {first!r}{hint}")


def _name_end(text: str, at: int) -> int:
    while at < len(text) and (text[at].isalpha() or text[at].isdecimal() or text[at] == "_"):
        at += 1
    return at


def _quoted(text: str, start: int, closing: str) -> tuple[str, int]:
    """Return the text between the quotes and the end behind them; a doubled closing quote stands for itself."""
    parts, at = [], start + 1
    while True:
        end = text.find(closing, at)
        if end < 0:
            raise FilterSyntaxError(start + 1, f"the {text[start]!r} has no closing {closing!r}")
        parts.append(text[at:end])
        if not text.startswith(closing, end + 1):
            break
        parts.append(closing)
        at = end + 2
    value = "".join(parts)
    if not value and closing != "'":
        raise FilterSyntaxError(start + 1, "the name of a property is empty")
    return value, end + 1


def _number(text: str, digits: re.Match[str]) -> int | float:
    end = digits.end()
    if end < len(text) and (text[end].isalnum() or text[end] == "_"):
        raise FilterSyntaxError(end + 1, f"unexpected {text[end]!r} in a number")
    if digits[0].isdecimal():
        return int(digits[0])
    value = float(digits[0])
    if math.isinf(value):
        raise FilterSyntaxError(digits.start() + 1, f"the number {digits[0]:.40} is too large")
    return value
