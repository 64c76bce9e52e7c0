"""Link addresses: `amqps://host/path`, `sb://host/path` or a bare path, and what the path's last segments mean."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pairbus.broker.description import path_key

_AUTHORITY = re.compile(r"[a-z]+://[^/]*", re.IGNORECASE)
_MANAGEMENT = "/$management"
_DEAD_LETTERS = "/$deadletterqueue"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a link leads."""

    text: str
    "The path as the client spelled it, without scheme and host."
    entity: str
    "Key of the entity: lower case, without the suffixes below."
    is_dead_letter: bool = False
    is_management: bool = False

    @property
    def is_cbs(self) -> bool:
        return self.entity == "$cbs"


def parse_address(raw: str) -> Address:
    text = _AUTHORITY.sub("", raw, count=1).strip("/")
    key = path_key(text)
    is_management = key.endswith(_MANAGEMENT)
    if is_management:
        key = key[: -len(_MANAGEMENT)]
    is_dead_letter = key.endswith(_DEAD_LETTERS)
    if is_dead_letter:
        key = key[: -len(_DEAD_LETTERS)]
    return Address(text, key, is_dead_letter, is_management)
