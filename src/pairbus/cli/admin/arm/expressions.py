"""The expressions of ARM templates, such as `[format('{0}/orders', parameters('name'))]`, as far as names need them.

A text in brackets is an expression, and `[[` begins a plain text. Functions are a table; a function that asks Azure for
something is not in it, and its name is in the error.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from collections.abc import Callable, Mapping
from typing import Any

from pairbus.errors import ConfigError

DEPTH_MAX = 64
CALLS_MAX = 20_000  # of one template: variables that use each other twice would double the calls at each level
TEXT_MAX = 256 * 1024  # characters of one text, which `format` and `replace` can multiply
_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(-?\d+)|([A-Za-z_][\w]*)|([\[\]().,]))", re.ASCII)
_SLOT = re.compile(r"\{\{|\}\}|\{(\d{1,3})\}")
PLACEHOLDER_SIZE = 13

SCOPE: dict[str, dict[str, Any]] = {
    "resourcegroup": {"id": "/subscriptions/0/resourceGroups/local", "name": "local", "location": "local", "tags": {}},
    "subscription": {"id": "/subscriptions/0", "subscriptionId": "0", "tenantId": "0", "displayName": "local"},
    "deployment": {"name": "local"},
    "environment": {"name": "local", "suffixes": {}},
    "tenant": {"tenantId": "0"},
}
"Answers to functions about the place of a deployment, which an import has not."


class Evaluator:
    """Evaluates the expressions of one template, with its parameters and variables."""

    def __init__(self, parameters: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
        """`parameters`: functions that return a value or raise ConfigError, by name in lower case."""
        self._parameters = parameters
        self._variables = {name.lower(): value for name, value in variables.items()}
        self._depth = 0
        self._calls = 0
        self.made_up: set[str] = set()
        "Texts that stand for what only Azure knows; no entity may have one in its name."

    def value(self, expression: Any) -> Any:
        """Evaluate a value of the template with everything inside it."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConfigError(f"the template is nested deeper than {DEPTH_MAX} levels, or a variable uses itself")
        try:
            if isinstance(expression, str):
                return self._text(expression)
            if isinstance(expression, list):
                return [self.value(each) for each in expression]
            if isinstance(expression, dict):
                return {name: self.value(each) for name, each in expression.items()}
            return expression
        finally:
            self._depth -= 1

    def _text(self, text: str) -> Any:
        if text.startswith("[[") or not (text.startswith("[") and text.endswith("]")):
            return text.removeprefix("[") if text.startswith("[[") else text
        try:
            return _Parser(text[1:-1], self).whole()
        except ConfigError as error:
            raise ConfigError(f"the expression {text!r:.200} cannot be evaluated: {error}") from None

    def parameter(self, name: str) -> Any:
        read = self._parameters.get(str(name).lower())
        if read is None:
            raise ConfigError(f"there is no parameter {name!r}")
        return read()

    def variable(self, name: str) -> Any:
        key = str(name).lower()
        if key not in self._variables:
            loops = self._variables.get("copy")
            if isinstance(loops, list) and any(str(each.get("name")).lower() == key for each in loops):
                raise ConfigError(f"variable {name!r} is made by a copy loop, which is not carried out")
            raise ConfigError(f"there is no variable {name!r}")
        return self.value(self._variables[key])

    def call(self, name: str, arguments: list[Any]) -> Any:
        self._calls += 1
        if self._calls > CALLS_MAX:
            raise ConfigError(f"more than {CALLS_MAX} calls of functions")
        key = name.lower()
        if key in SCOPE:
            return SCOPE[key]
        own = {
            "parameters": self.parameter,
            "variables": self.variable,
            "uniquestring": self._unique,
            "guid": self._unique,
        }
        function = own.get(key) or FUNCTIONS.get(key)
        if function is None:
            raise ConfigError(f"the function {name} is not known, or only Azure can answer it")
        try:
            return function(*arguments)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise ConfigError(f"{name}: {error}") from None

    def _unique(self, *values: Any) -> str:
        digest = hashlib.sha256(repr(values).encode()).digest()
        text = b32encode(digest).decode().lower()[:PLACEHOLDER_SIZE]
        self.made_up.add(text)
        return text


class _Parser:
    """Parses an expression and evaluates it meanwhile: literals, calls, and access by `.name` and `[index]`."""

    def __init__(self, text: str, evaluator: Evaluator) -> None:
        self._text = text
        self._at = 0
        self._evaluator = evaluator
        self._depth = 0

    def whole(self) -> Any:
        value = self._expression()
        if self._text[self._at :].strip():
            raise ConfigError(f"unexpected {self._text[self._at :].strip()!r:.40}")
        return value

    def _next(self) -> re.Match[str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise ConfigError(f"unexpected {self._text[self._at :].strip()!r:.40}")
        self._at = match.end()
        return match

    def _is_next(self, sign: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match[4] != sign:
            return False
        self._at = match.end()
        return True

    def _expression(self) -> Any:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ConfigError(f"deeper than {DEPTH_MAX} calls")
        literal, number, name, sign = self._next().groups()
        if literal is not None:
            value: Any = literal[1:-1].replace("''", "'")
        elif number is not None:
            value = int(number)
        elif name is not None:
            value = self._evaluator.call(name, self._arguments())
        else:
            raise ConfigError(f"unexpected {sign!r}")
        self._depth -= 1
        return self._accessed(value)

    def _arguments(self) -> list[Any]:
        if not self._is_next("("):
            raise ConfigError("a function needs '('")
        arguments: list[Any] = []
        if self._is_next(")"):
            return arguments
        while True:
            arguments.append(self._expression())
            if self._is_next(")"):
                return arguments
            if not self._is_next(","):
                raise ConfigError("',' or ')' is missing")

    def _accessed(self, value: Any) -> Any:
        while True:
            if self._is_next("."):
                key: Any = self._next()[3]
            elif self._is_next("["):
                key = self._expression()
                if not self._is_next("]"):
                    raise ConfigError("']' is missing")
            else:
                return value
            value = _member(value, key)


def _member(value: Any, key: Any) -> Any:
    if isinstance(value, dict):
        for name, member in value.items():
            if str(name).lower() == str(key).lower():
                return member
    elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
        return value[key]
    raise ConfigError(f"there is no {key!r} in {value!r:.60}")


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    return "" if value is None else str(value)


def _format(pattern: str, *values: Any) -> str:
    def fill(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else _text_of(values[int(match[1])])

    texts = [fill(match) for match in _SLOT.finditer(pattern)]
    _check_length(len(pattern) + sum(map(len, texts)))
    return _SLOT.sub(fill, pattern)


def _check_length(length: int) -> None:
    if length > TEXT_MAX:
        raise ValueError(f"a text of more than {TEXT_MAX} characters")


def _concat(*values: Any) -> Any:
    if values and all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    texts = [_text_of(value) for value in values]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _resource_id(*values: Any) -> str:
    """Return the id, with the type and its names alternating; group and subscription before the type are left out."""
    at = next(place for place, value in enumerate(values) if "/" in str(value) and str(value)[0] != "/")
    provider, *kinds = str(values[at]).split("/")
    names = [name for value in values[at + 1 :] for name in str(value).split("/")]
    pairs = [part for pair in zip(kinds, names, strict=True) for part in pair]
    return "/".join([SCOPE["resourcegroup"]["id"], "providers", provider, *pairs])


def _coalesce(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _equals(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _replace(text: str, old: str, new: str) -> str:
    _check_length(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _substring(text: str, start: int, length: int | None = None) -> str:
    return text[start:] if length is None else text[start : start + length]


def _split(text: str, separators: Any) -> list[str]:
    each = separators if isinstance(separators, list) else [separators]
    return re.split("|".join(map(re.escape, each)), text)


def _flag(value: Any) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False}[value.lower()]
    return bool(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: all(values),
    "bool": _flag,
    "coalesce": _coalesce,
    "concat": _concat,
    "contains": lambda whole, part: part in whole,
    "createarray": lambda *values: list(values),
    "createobject": lambda *values: dict(zip(values[::2], values[1::2], strict=True)),
    "empty": lambda value: not value,
    "endswith": lambda text, end: text.lower().endswith(end.lower()),
    "equals": _equals,
    "false": lambda: False,
    "first": lambda value: value[0],
    "format": _format,
    "if": lambda condition, yes, no: yes if condition else no,
    "int": int,
    "last": lambda value: value[-1],
    "length": len,
    "not": lambda value: not value,
    "null": lambda: None,
    "or": lambda *values: any(values),
    "replace": _replace,
    "resourceid": _resource_id,
    "skip": lambda value, count: value[count:],
    "split": _split,
    "startswith": lambda text, start: text.lower().startswith(start.lower()),
    "string": _text_of,
    "substring": _substring,
    "take": lambda value, count: value[:count],
    "tolower": lambda text: text.lower(),
    "toupper": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "true": lambda: True,
    "union": lambda *values: {name: found for value in values for name, found in value.items()},
}
