"""JSON of a configuration file, read with its place at hand: comments are tolerated, unknown keys are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pairbus.broker.description import path_key
from pairbus.errors import ConfigError, did_you_mean

_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """A place in the file, for error texts: `config.json: namespace 'contoso': queue 'orders'`."""

    text: str
    unknown: Callable[[str], None] | None = None
    "Told of each key that is not known, which is then ignored; None: such a key is an error."

    def into(self, name: str) -> ConfigPlace:
        return ConfigPlace(f"{self.text}: {name}", self.unknown)

    def strict(self) -> ConfigPlace:
        """Return this place with every unknown key an error."""
        return ConfigPlace(self.text)

    def named(self, kind: str, value: Any) -> ConfigPlace:
        """Go into an object that has a name; the reader of the object refuses one without a name."""
        name = value.get("Name") if isinstance(value, dict) else None
        return self.into(f"{kind} {name!r}") if isinstance(name, str) else self

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.text}: {problem}")

    def table(self, value: Any, allowed: Iterable[str]) -> dict[str, Any]:
        """Return the value as an object that has only these keys; see `unknown`."""
        if not isinstance(value, dict):
            raise self.error(f"expected is an object, found {kind_of(value)}")
        names = tuple(allowed)
        strange = [name for name in value if name not in names]
        for name in strange:
            if self.unknown is None:
                hint = did_you_mean(name, names) or "."
                raise self.error(f"unknown key {name!r}{hint} Allowed are {', '.join(names)}")
            self.unknown(f"{self.text}: unknown key {name!r}")
        return {name: found for name, found in value.items() if name in names} if strange else value

    def member(self, table: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
        """Return one entry of an object; without a default it must be there."""
        value = table.get(name, default)
        if value is None:
            raise self.error(f"{name!r} is missing")
        # JSON's true is an int to Python.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.error(f"{name} must be {_KINDS[kind]}, found {kind_of(value)}")
        return value

    def items(self, table: dict[str, Any], name: str) -> list[Any]:
        """Return a list that may be missing or null."""
        return [] if table.get(name) is None else list(self.member(table, name, list))

    def refuse_repeated(self, names: Iterable[str], kind: str) -> None:
        seen: set[str] = set()
        for name in names:
            key = path_key(name)
            if key in seen:
                raise self.error(f"{kind} {name!r} occurs twice")
            seen.add(key)


_KINDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
}


def kind_of(value: Any) -> str:
    return "null" if value is None else f"{_KINDS.get(type(value), 'a number')} {json.dumps(value)[:40]}"


def parse_json(text: str, root: ConfigPlace) -> Any:
    """Read JSON with comments and trailing commas; no object may have a key twice."""
    plain = _STRING_OR_COMMENT.sub(_blank_comment, text)
    plain = _STRING_OR_TRAILING_COMMA.sub(lambda match: " " if match[0] == "," else match[0], plain)

    def one_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise root.error(f"key {name!r} occurs twice")
            seen.add(name)
        return dict(pairs)

    try:
        return json.loads(plain, object_pairs_hook=one_object)
    except (ValueError, RecursionError) as error:
        raise root.error(f"not JSON: {error}") from None


def _blank_comment(match: re.Match[str]) -> str:
    if match[0].startswith('"'):
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])  # same length, same lines: the positions in error texts stay right
