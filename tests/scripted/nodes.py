"""The services of a scripted endpoint: answers of `$cbs` and `$management`, and sessions without locks."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import Any

from pairbus.amqp.link import ReceiverLink, SenderLink, address_of
from pairbus.amqp.message import Message, Properties
from pairbus.amqp.performatives import Attach, Coordinator
from pairbus.amqp.types import Array, Long, Symbol, Timestamp
from tests.scripted.mailbox import LOCK_MS, Mailbox
from tests.scripted.script import Reply

SESSION_FILTER = Symbol("com.microsoft:session-filter")
ANY_SESSION = "scripted-session"
"Session given to a client that asks for the next one while no message has a session."
_TICKS_AT_1970 = 621_355_968_000_000_000  # .NET counts from the year 1, in units of 100 ns
_LONGS, _TIMESTAMPS = 0x81, 0x83


class Responder:
    """Sends answers of nodes to the links on which their requesters listen, as credit allows."""

    def __init__(self) -> None:
        self._unsent: deque[tuple[SenderLink, bytes]] = deque()
        self._tag = 0

    def respond(self, asked_on: ReceiverLink, request: Message, properties: dict[str, Any], body: Any) -> None:
        asked = request.properties or Properties()
        listening = [
            link
            for link in asked_on.session.links
            if isinstance(link, SenderLink) and link.is_open and link.context == asked_on.context
        ]
        named = [link for link in listening if _reply_address(link) == asked.reply_to is not None]
        answer = Message(
            properties=Properties(correlation_id=asked.message_id),
            application_properties=properties,
            value=body,
            has_value=True,
        )
        for link in (named or listening)[:1]:
            self._unsent.append((link, answer.encode()))
        self.pump()

    def pump(self) -> None:
        waiting, self._unsent = self._unsent, deque()
        for link, payload in waiting:
            if link.sendable:
                self._tag += 1
                link.send(payload, self._tag.to_bytes(4, "big"), settled=True)
            elif link.is_open:
                self._unsent.append((link, payload))


def _reply_address(link: SenderLink) -> str | None:
    return address_of(link.remote_attach.target) if link.remote_attach is not None else None


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """Choice of the messages that a receiver is meant to get."""

    session_id: str | None
    "None: messages of all sessions."

    def take(self, waiting: deque[bytes]) -> bytes | None:
        for payload in waiting:
            if self.session_id is None or session_id_of(payload) == self.session_id:
                waiting.remove(payload)
                return payload
        return None


def session_id_of(payload: bytes) -> str | None:
    properties = Message.decode(payload).properties
    return properties.group_id if properties is not None else None


def session_of(link: SenderLink) -> Session:
    source = link.remote_attach.source if link.remote_attach is not None else None
    if source is None or not source.filter or SESSION_FILTER not in source.filter:
        return Session(None)
    return Session(source.filter[SESSION_FILTER])


def attach_receiver(link: SenderLink, attach: Attach, waiting: deque[bytes]) -> None:
    """Answer a client that wants to receive; one that asks for a session gets it, without any lock behind it."""
    assert not isinstance(attach.target, Coordinator)
    source, properties = attach.source, None
    if source is not None and source.filter and SESSION_FILTER in source.filter:
        if source.filter[SESSION_FILTER] is None:
            ids = [found for found in map(session_id_of, waiting) if found is not None]
            source.filter[SESSION_FILTER] = ids[0] if ids else ANY_SESSION
        until = (time.time_ns() // 100) + LOCK_MS * 10_000 + _TICKS_AT_1970
        properties = {Symbol("com.microsoft:locked-until-utc"): Long(until)}
    link.attach(
        source=source,
        target=attach.target,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=attach.rcv_settle_mode,
        properties=properties,
    )


def reply_to_request(mailbox: Mailbox, entity: str, operation: str, body: Any) -> Reply:  # noqa: PLR0911 - one return for each case
    """Answer an operation of `$management` as if all is well; the least that the SDKs can work with."""
    asked = body if isinstance(body, dict) else {}
    now_ms = time.time_ns() // 1_000_000
    match operation.removeprefix("com.microsoft:"):
        case "schedule-message":
            messages = tuple(each["message"] for each in asked.get("messages", []))
            mailbox.schedule(entity, messages)
            return Reply(200, {"sequence-numbers": Array([Long(mailbox.next_sequence()) for _ in messages], _LONGS)})
        case "renew-lock":
            until = [Timestamp(now_ms + LOCK_MS) for _ in asked.get("lock-tokens", [])]
            return Reply(200, {"expirations": Array(until, _TIMESTAMPS)})
        case "renew-session-lock":
            return Reply(200, {"expiration": Timestamp(now_ms + LOCK_MS)})
        case "get-session-state":
            return Reply(200, {"session-state": None})
        case "peek-message":
            found = [{"message": message} for message in mailbox.waiting(entity)]
            return Reply(200, {"messages": found}) if found else Reply(204, None)
        case "receive-by-sequence-number":
            return Reply(404, None, "com.microsoft:message-not-found", "No message is deferred here.")
        case _:
            return Reply(200, {})
