"""Paths of requests about messages: `ENTITY/messages`, `ENTITY/messages/head`, `ENTITY/messages/MESSAGE/LOCK`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from uuid import UUID


class PathKind(Enum):
    MESSAGES = auto()
    "All messages of an entity: sends go there."
    HEAD = auto()
    "The next message: receives go there."
    LOCKED = auto()
    "A message that is locked: settlements go there."


METHODS = {PathKind.MESSAGES: ("POST",), PathKind.HEAD: ("POST", "DELETE"), PathKind.LOCKED: ("POST", "PUT", "DELETE")}


@dataclass(frozen=True, slots=True)
class MessagePath:
    """The parts of a path that names messages."""

    entity: str
    "Path of the entity as the client spelled it, also `…/$DeadLetterQueue`."
    kind: PathKind
    message: str = ""
    "Sequence number or id of a locked message."
    lock: UUID | None = None
    "Its lock token; None: the text in the path is none."
    text: str = ""
    "The whole path."


def message_path(method: str, segments: Sequence[str]) -> MessagePath | None:
    """Read the path of a request, its segments decoded; None: the request is about something else.

    A queue may be called `a/messages`, so requests with other methods belong to the administration. A PUT is about a
    message only when the path ends in a lock token.
    """
    if not segments or segments[0].startswith("$"):
        return None
    text = "/".join(segments)
    words = [segment.lower() for segment in segments]
    if words[-1] == "messages":
        path = MessagePath("/".join(segments[:-1]), PathKind.MESSAGES, text=text)
    elif words[-2:] == ["messages", "head"]:
        path = MessagePath("/".join(segments[:-2]), PathKind.HEAD, text=text)
    elif words[-3:-2] == ["messages"]:
        lock = _uuid(segments[-1])
        if lock is None and method == "PUT":
            return None
        path = MessagePath("/".join(segments[:-3]), PathKind.LOCKED, segments[-2], lock, text)
    else:
        return None
    return path if path.entity and method in METHODS[path.kind] else None


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
