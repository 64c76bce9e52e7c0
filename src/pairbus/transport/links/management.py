"""`$management` of one entity: peek, locks, scheduled and deferred messages. Messages go in and out encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from pairbus.amqp.message import Message
from pairbus.amqp.types import Array, Int, Long, UInt
from pairbus.transport.errors import Refused, Timeout, TransportError, leaves_open
from pairbus.transport.links.requests import Requests
from pairbus.transport.times import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from pairbus.transport.connection.wire import Wire

_PREFIX = "com.microsoft:"
_LONGS, _UUIDS = 0x81, 0x98  # constructors, for arrays that are empty
DispositionStatus = Literal["completed", "abandoned", "defered", "suspended"]
"Status on the wire, where deferred is spelled `defered`; `suspended` is dead-lettered."


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message to schedule. Its annotation x-opt-scheduled-enqueue-time has the time when it is due."""

    message_id: object
    "Id of the message, of the same type as in the message: mostly a text."
    payload: bytes
    session_id: str | None = None
    partition_key: str | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """A deferred message, received by its sequence number."""

    payload: bytes
    lock_token: UUID | None


class RequestRefused(Refused):
    """The node refused a request."""

    operation = ""
    status: int | None = None
    description: str | None = None
    "The description that came with the status."
    named: str | None = None
    "The condition that came with the status; None when there was none."

    @classmethod
    def of(cls, operation: str, answer: Message) -> Self:
        status, named = answer.property("statusCode"), answer.property("errorCondition")
        description = answer.property("statusDescription")
        condition = str(named or f"status:{status}")
        refused = cls(condition, f"{operation}: {description}", outcome_unknown=leaves_open(condition))
        refused.operation = operation
        refused.status = status if isinstance(status, int) else None
        refused.description, refused.named = (None if one is None else str(one) for one in (description, named))
        return refused


class Management:
    """The `$management` node of one entity, from `Connection.management`. Any number of requests may be under way."""

    def __init__(self, wire: Wire, requests: Requests, timeout_s: float) -> None:
        self._wire = wire
        self._requests = requests
        self.timeout_s = timeout_s
        self.is_silent = False
        "True when a request got no answer, or no credit, in time: the peer may have lost its end of the links."
        requests.sender.when_silent = self._fell_silent

    @property
    def over(self) -> TransportError | None:
        return self._requests.over

    def _fell_silent(self) -> None:
        self.is_silent = True
        self._wire.loop.call_soon(self._leave_if_idle)  # not at once: the links are just being looked at

    def _leave_if_idle(self) -> None:
        """Leave silent links as soon as no request is under way: later ones go on new links."""
        if self.is_silent and not self._requests.in_flight:
            self._requests.leave()

    async def request(
        self, operation: str, body: dict[str, Any], timeout_s: float | None = None, silence_s: float | None = None
    ) -> dict[str, Any]:
        """Request one operation (`com.microsoft:` may be left out); return the answer's map, empty for status 204.

        `silence_s`: longest silence of the peer; then Timeout is raised.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        name = operation if ":" in operation else _PREFIX + operation
        properties = {
            "operation": name,
            "type": "entity-mgmt",
            f"{_PREFIX}server-timeout": UInt(max(int(timeout_s * 1000), 1)),
        }
        try:
            answer = await self._requests.request(properties, body, self._wire.loop.time() + timeout_s, silence_s)
        except Timeout as error:
            self.is_silent |= error.outcome_unknown
            raise
        finally:
            self._leave_if_idle()
        status = answer.property("statusCode")
        if not isinstance(status, int) or not 200 <= status <= 299:
            raise RequestRefused.of(name, answer)
        return answer.body if isinstance(answer.body, dict) else {}

    async def peek(
        self, from_sequence: int, count: int, timeout_s: float | None = None, *, session_id: str | None = None
    ) -> list[bytes]:
        """Return at most `count` messages from this sequence number on; no message is locked or removed."""
        body = _of_session(session_id, {"from-sequence-number": Long(from_sequence), "message-count": Int(count)})
        answer = await self.request("peek-message", body, timeout_s)
        return [entry["message"] for entry in answer.get("messages", [])]

    async def renew_lock(self, tokens: Sequence[UUID], timeout_s: float | None = None) -> list[int]:
        """Renew locks; return the new expiry of each, in milliseconds since 1970."""
        answer = await self.request("renew-lock", {"lock-tokens": Array(tokens, _UUIDS)}, timeout_s)
        return [int(expiry) for expiry in answer.get("expirations", [])]

    async def schedule(
        self, messages: Sequence[Scheduled], timeout_s: float | None = None, silence_s: float | None = None
    ) -> list[int]:
        """Schedule messages; return the sequence number of each, by which it can be cancelled."""
        entries = []
        for message in messages:
            entry: dict[str, Any] = {"message-id": message.message_id, "message": message.payload}
            if message.session_id is not None:
                entry["session-id"] = message.session_id
            if message.partition_key is not None:
                entry["partition-key"] = message.partition_key
            entries.append(entry)
        answer = await self.request("schedule-message", {"messages": entries}, timeout_s, silence_s)
        return [int(number) for number in answer.get("sequence-numbers", [])]

    async def cancel(
        self, sequence_numbers: Sequence[int], timeout_s: float | None = None, silence_s: float | None = None
    ) -> None:
        """Cancel scheduled messages."""
        body = {"sequence-numbers": _longs(sequence_numbers)}
        await self.request("cancel-scheduled-message", body, timeout_s, silence_s)

    async def receive_deferred(
        self,
        sequence_numbers: Sequence[int],
        mode: Literal["peek-lock", "receive-and-delete"] = "peek-lock",
        timeout_s: float | None = None,
        *,
        session_id: str | None = None,
    ) -> list[Deferred]:
        settle_mode = UInt(1 if mode == "peek-lock" else 0)
        asked = {"sequence-numbers": _longs(sequence_numbers), "receiver-settle-mode": settle_mode}
        body = _of_session(session_id, asked)
        answer = await self.request("receive-by-sequence-number", body, timeout_s)
        return [Deferred(entry["message"], entry.get("lock-token")) for entry in answer.get("messages", [])]

    async def update_disposition(
        self,
        status: DispositionStatus,
        tokens: Sequence[UUID],
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Settle by lock token: the only way for deferred messages, and a way for messages of a link that is gone."""
        body = _of_session(session_id, {"disposition-status": status, "lock-tokens": Array(tokens, _UUIDS)})
        details = {
            "deadletter-reason": reason,
            "deadletter-description": description,
            "properties-to-modify": properties,
        }
        body |= {key: value for key, value in details.items() if value is not None}
        await self.request("update-disposition", body, timeout_s)

    # ── sessions ──

    async def renew_session(self, session_id: str, timeout_s: float | None = None) -> int:
        """Renew the lock of a session; return its new expiry, in milliseconds since 1970."""
        answer = await self.request("renew-session-lock", {"session-id": session_id}, timeout_s)
        return int(answer["expiration"])

    async def session_state(self, session_id: str, timeout_s: float | None = None) -> bytes | None:
        answer = await self.request("get-session-state", {"session-id": session_id}, timeout_s)
        return answer.get("session-state")

    async def set_session_state(self, session_id: str, state: bytes | None, timeout_s: float | None = None) -> None:
        await self.request("set-session-state", {"session-id": session_id, "session-state": state}, timeout_s)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        await self._requests.close(timeout_s)


def _of_session(session_id: str | None, body: dict[str, Any]) -> dict[str, Any]:
    return body if session_id is None else {**body, "session-id": session_id}


def _longs(numbers: Sequence[int]) -> Array:
    return Array([Long(number) for number in numbers], _LONGS)
