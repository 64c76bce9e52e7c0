"""Names of entities in addresses and URLs.

A link address is `amqps://host/path`, `sb://host/path` or a bare path. The path names a queue, a topic or
`<topic>/Subscriptions/<name>`, in any case, and may end in `/$DeadLetterQueue`, `/$Transfer/$DeadLetterQueue` and
`/$management`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pairbus.broker.description import path_key

_AUTHORITY = re.compile(r"[a-z]+://[^/]*", re.IGNORECASE)
_MANAGEMENT = "/$management"
_DEAD_LETTERS = "/$deadletterqueue"
_TRANSFER = "/$transfer"
_BELOW_TOPIC = re.compile(
    r"(?P<root>.+?)/(?P<subscriptions>subscriptions)"
    r"(?:/(?P<subscription>[^/]+)(?:/(?P<rules>rules)(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class EntityName:
    """Name of a queue or topic, or of a part of a topic."""

    root: str
    "Path of the queue or topic."
    subscription: str | None = None
    rule: str | None = None
    lists: str | None = None
    "`subscriptions` or `rules` when the path names all of them; None: it names one entity."


def parse_entity(path: str) -> EntityName:
    """Tell which entity a path names; spelling is kept."""
    path = path.strip("/")
    match = _BELOW_TOPIC.fullmatch(path)
    if match is None:
        return EntityName(path)
    if match["subscription"] is None:
        return EntityName(match["root"], lists="subscriptions")
    if match["rules"] is not None and match["rule"] is None:
        return EntityName(match["root"], match["subscription"], lists="rules")
    return EntityName(match["root"], match["subscription"], match["rule"])


@dataclass(frozen=True, slots=True)
class LinkAddress:
    """Address of a link, split into its parts."""

    text: str
    "The path as the client spelled it, without scheme and host."
    entity: str
    "Key of the entity: lower case, without the suffixes below."
    is_dead_letter: bool = False
    is_transfer_dead_letter: bool = False
    is_management: bool = False

    @property
    def is_cbs(self) -> bool:
        return self.entity == "$cbs"

    @property
    def name(self) -> EntityName:
        return parse_entity(self.entity)


def parse_address(raw: str) -> LinkAddress:
    """Read a link address; the entity need not exist."""
    text = _AUTHORITY.sub("", raw, count=1).strip("/")
    key = path_key(text)
    is_management = key.endswith(_MANAGEMENT)
    key = key.removesuffix(_MANAGEMENT)
    is_dead_letter = key.endswith(_DEAD_LETTERS)
    key = key.removesuffix(_DEAD_LETTERS)
    is_transfer = is_dead_letter and key.endswith(_TRANSFER)
    if is_transfer:
        key = key.removesuffix(_TRANSFER)
    return LinkAddress(text, key, is_dead_letter and not is_transfer, is_transfer, is_management)
