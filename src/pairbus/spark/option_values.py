"""Checks the user's options one by one against the table: names, words, numbers. ConfigError names the wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pairbus.errors import ConfigError
from pairbus.spark.option_table import ALIASES, BY_NAME, ELSEWHERE, SPARKS_OWN, USES, Option

_NAMES = {alias.lower(): name for alias, name in ALIASES.items()}
_ELSEWHERE = {name.lower(): ours for name, ours in ELSEWHERE.items()}
_OF_A_TABLE = "provider"  # given only when a table is created
_TABLES_OWN = frozenset({"provider", "owner", "comment"})
LOST_IN_TABLES = (
    "Spark does not keep the OPTIONS of CREATE TABLE for formats written in Python, so that the table could not be"
    " read: use CREATE TEMPORARY VIEW … USING servicebus OPTIONS (…), or give the options with each query, as in"
    " SELECT … FROM t WITH (…)"
)


def refuse_tables(options: Mapping[str, str]) -> None:
    """Raise ConfigError when the options are those of CREATE TABLE, and the user has given some."""
    names = {name.lower() for name in options}
    if _OF_A_TABLE in names and names - _TABLES_OWN:
        raise ConfigError(f"CREATE TABLE … USING servicebus: {LOST_IN_TABLES}")


class OptionValues:
    """Given options by their name in the table; an option that was not given has its default."""

    def __init__(self, options: Mapping[str, str], use: str) -> None:
        """Take the options that were given to `read`, `stream` or `write`; an option of another use is refused."""
        refuse_tables(options)
        self._user_values: dict[str, str] = {}
        spellings: dict[str, str] = {}
        for name, value in options.items():
            key = name.lower()
            if key in SPARKS_OWN:
                continue
            option = _option(name)
            if value and not option.is_used_to(use):
                raise ConfigError(f"option {name} is for {USES[option.used_by]}, not for {USES[use]}: leave it out")
            before = spellings.setdefault(option.name, name)
            if self._user_values.setdefault(option.name, value) != value:
                raise ConfigError(f"option {option.name} is given twice, as {before} and as {name}, and not the same")

    @property
    def any_given(self) -> bool:
        """True when the user has given any option of the format."""
        return bool(self._user_values)

    def __contains__(self, name: str) -> bool:
        return name in self._user_values

    def user_value(self, name: str) -> str | None:
        """Return the value that was given, without a default; None when it is missing or empty."""
        return self._user_values.get(name) or None

    def text(self, name: str) -> str | None:
        """Return the value, one of the option's words if it has such."""
        option = BY_NAME[name.lower()]
        value = self._user_values.get(name, option.default)
        if value is None or not option.words:
            return value
        if value.lower() not in option.words:
            raise ConfigError(f"option {name} must be {' or '.join(option.words)}, not {value!r}")
        return value.lower()

    def flag(self, name: str) -> bool:
        return self.text(name) == "true"

    def number(self, name: str) -> float:
        return self._ranged(name, float)

    def whole(self, name: str) -> int:
        return int(self._ranged(name, int))

    def _ranged(self, name: str, kind: type[float] | type[int]) -> float:
        option = BY_NAME[name.lower()]
        text = self._user_values.get(name, option.default or "")
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not is_within(option, value):
            noun = "a whole number" if kind is int else "a number"
            raise ConfigError(f"option {name} must be {noun} in {option.accepts}, not {text!r}")
        return value


def is_within(option: Option, value: float) -> bool:
    """Tell whether a number is one that the option accepts."""
    assert option.low is not None and option.high is not None
    return option.low <= value <= option.high


def _option(name: str) -> Option:
    key = name.lower()
    option = BY_NAME.get(_NAMES.get(key, key).lower())
    if option is not None:
        return option
    if key in _ELSEWHERE:
        hint = f"; here it is {_ELSEWHERE[key]}"
    else:
        near = difflib.get_close_matches(key, [*BY_NAME, *_NAMES], n=1, cutoff=0.5)
        hint = f"; did you mean {BY_NAME[_NAMES.get(near[0], near[0]).lower()].name}?" if near else ""
    raise ConfigError(f"option {name} is not known to format servicebus{hint}")
