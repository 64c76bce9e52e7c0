"""Writes values as JSON and reads them back, by the types that the code declares: JSON can become no other value.

| type                              | JSON                                     |
| --------------------------------- | ---------------------------------------- |
| None, bool, int, float, str       | the same                                 |
| a path                            | its text                                 |
| list, tuple, set                  | a list                                   |
| a mapping with texts as keys      | an object                                |
| a dataclass, a named tuple        | an object with its fields                |
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_LISTS: dict[Any, Any] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Container: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
}
"Type in a declaration → type of the value that is made."
_OBJECTS = (dict, collections.abc.Mapping)


def to_plain(value: Any) -> Any:
    """Return a value that `json.dumps` takes. TypeError for a type that is not in the table."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: to_plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, Set)):
        return [to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def from_plain(value: Any, kind: Any) -> Any:  # noqa: PLR0911 - a row of the table for each return
    """Return the value of a declared type. TypeError when the JSON has another form."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _one_of(value, parts)
    if origin is Literal:
        if value in parts:
            return value
    elif kind in (None, type(None)):
        if value is None:
            return None
    elif origin is tuple and parts[-1:] != (Ellipsis,):
        if isinstance(value, list) and len(value) == len(parts):
            return tuple(from_plain(item, part) for item, part in zip(value, parts, strict=True))
    elif (origin or kind) in _LISTS:
        if isinstance(value, list):
            return _LISTS[origin or kind](from_plain(item, parts[0]) for item in value)
    elif (origin or kind) in _OBJECTS:
        if isinstance(value, dict):
            return {str(key): from_plain(item, parts[1]) for key, item in value.items()}
    elif isinstance(kind, type):
        return _instance(value, kind)
    raise TypeError(f"{str(value)[:100]!r} is not {kind}")


def _one_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    # A text stays a text: the URL of a location would lose a slash as a path.
    for kind in sorted(kinds, key=lambda kind: kind is not str):
        try:
            return from_plain(value, kind)
        except TypeError:
            continue
    raise TypeError(f"{str(value)[:100]!r} is none of {kinds}")


def _instance(value: Any, kind: type) -> Any:
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        if isinstance(value, dict) and value.keys() <= hints.keys():
            return kind(**{name: from_plain(item, hints[name]) for name, item in value.items()})
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif kind in (bool, int, str) and type(value) is kind:
        return value
    raise TypeError(f"{str(value)[:100]!r} is not {kind.__name__}")
