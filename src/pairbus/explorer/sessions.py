"""Lists the sessions of an entity: their ids, and their states."""

from __future__ import annotations

import base64
from typing import Any

from pairbus.amqp.types import Int, Timestamp
from pairbus.explorer.address import Address
from pairbus.explorer.calls import explained
from pairbus.transport import Carrier, Refused, TransportError

PAGE = 100
_ALL_MS = 253_402_300_800_000  # a time at the end of the calendar means: all sessions
_LOCKED = "com.microsoft:session-cannot-be-locked"


async def session_ids(carrier: Carrier, address: Address) -> list[str]:
    """List the sessions that have messages or a state."""
    ids: list[str] = []
    try:
        management = await carrier.management(address.path)
        while True:
            body = {"last-updated-time": Timestamp(_ALL_MS), "skip": Int(len(ids)), "top": Int(PAGE)}
            answer = await management.request("get-message-sessions", body)
            page = [str(one) for one in answer.get("sessions-ids", [])]
            ids += page
            if not page:
                return ids
    except TransportError as error:
        raise explained(error, carrier, address.path) from error


async def sessions(carrier: Carrier, address: Address, *, states: bool = True) -> list[dict[str, Any]]:
    """Describe the sessions; with `states`, each is locked for a moment, as the service demands to read its state."""
    descriptions = []
    for session in await session_ids(carrier, address):
        described: dict[str, Any] = {"session_id": session}
        if states:
            described |= await session_state(carrier, address, session)
        descriptions.append(described)
    return descriptions


async def session_state(carrier: Carrier, address: Address, session: str) -> dict[str, Any]:
    """Read the state of one session: `state`, `state_type` (text or base64), and whether another receiver has it."""
    try:
        connection = await carrier.connection()
        receiver = await connection.receiver(address.path, credit=0, session=session)
        try:
            management = await connection.management(address.path)
            answer = await management.request("get-session-state", {"session-id": session})
        finally:
            await receiver.close()
    except Refused as error:
        if error.condition == _LOCKED:
            return {"is_locked": True, "state": None}
        raise explained(error, carrier, address.path) from error
    except TransportError as error:
        raise explained(error, carrier, address.path) from error
    state = answer.get("session-state")
    if not isinstance(state, bytes):
        return {"is_locked": False, "state": None}
    try:
        return {"is_locked": False, "state": state.decode(), "state_type": "text"}
    except UnicodeDecodeError:
        return {"is_locked": False, "state": base64.b64encode(state).decode(), "state_type": "base64"}
