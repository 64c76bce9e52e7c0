"""The texts of refusals by faults: conditions, statuses and texts as the service has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pairbus.amqp.errors import INTERNAL_ERROR, RESOURCE_LIMIT_EXCEEDED, UNAUTHORIZED_ACCESS
from pairbus.broker.refusal import ENTITY_DISABLED, SERVER_BUSY, TIMEOUT, Refusal

_CLAIMS = {"send": "Send", "receive": "Listen", "manage": "Manage"}


class _Row(NamedTuple):
    condition: str
    status: int
    "Status of the answer over HTTP."
    sub_code: str
    text: Callable[[str, str, str], str]
    "(namespace, entity, direction) → the sentence."


def _throttled(namespace: str, entity: str, direction: str) -> str:
    return (
        f"The request was terminated because the namespace {namespace} is being throttled. Error code : 50009."
        " Please wait 2 seconds and try again. To know more visit https://aka.ms/sbResourceMgrExceptions"
    )


def _disabled(namespace: str, entity: str, direction: str) -> str:
    status = "SendDisabled" if direction == "send" else "ReceiveDisabled"
    return f"The messaging entity '{entity}' is in status {status}."


def _full(namespace: str, entity: str, direction: str) -> str:
    return f"The maximum entity size has been reached or exceeded for '{entity}'."


def _unauthorized(namespace: str, entity: str, direction: str) -> str:
    return (
        f"Unauthorized access. '{_CLAIMS[direction]}' claim(s) are required to perform this operation."
        f" Resource: '{entity}'."
    )


def _unable(namespace: str, entity: str, direction: str) -> str:
    return (
        "The service was unable to process the request; please retry the operation. For more information on exception"
        " types and proper exception handling, please refer to https://go.microsoft.com/fwlink/?LinkId=761101"
    )


def _timed_out(namespace: str, entity: str, direction: str) -> str:
    return (
        "The operation did not complete within the allotted timeout of 00:01:00. The time allotted to this operation"
        " may have been a portion of a longer timeout."
    )


_ROWS: dict[str, _Row] = {
    "throttle": _Row(SERVER_BUSY, 503, "SubCode=50009. ", _throttled),
    "disable": _Row(ENTITY_DISABLED, 400, "SubCode=40000. ", _disabled),
    "quota": _Row(RESOURCE_LIMIT_EXCEEDED, 403, "SubCode=40300. ", _full),
    "unauthorized": _Row(UNAUTHORIZED_ACCESS, 401, "SubCode=40100. ", _unauthorized),
    "internal-error": _Row(INTERNAL_ERROR, 500, "", _unable),
    "time-out": _Row(TIMEOUT, 408, "", _timed_out),
    "restart": _Row(INTERNAL_ERROR, 500, "", _unable),
}


def refusal_by(kind: str, namespace: str, entity: str, direction: str) -> Refusal:
    """Return the refusal over AMQP that a fault of this kind gives."""
    row = _ROWS[kind]
    return Refusal(row.condition, row.text(namespace, entity, direction))


def http_refusal_by(kind: str, namespace: str, path: str) -> tuple[int, str]:
    """Return (status, detail) of the refusal over HTTP that a fault of this kind gives."""
    row = _ROWS[kind]
    return row.status, f"{row.sub_code}{row.text(namespace, path, 'manage')}"
