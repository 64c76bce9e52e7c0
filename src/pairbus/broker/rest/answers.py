"""Answers over HTTP: the status of each refusal, and the way of an answer to its client."""

from __future__ import annotations

import asyncio

from aiohttp import web

from pairbus.amqp.errors import (
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
)
from pairbus.broker.admin.atom import error_body
from pairbus.broker.outages import NamespaceFaults
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    SERVER_BUSY,
    TIMEOUT,
    Refusal,
)

ANSWER_WAIT_S = 60.0  # until the client has read an answer
LOOK_S = 0.02  # between two looks whether all bytes have left
RETRY_AFTER_S = 2
EMPTY_CONTENT_TYPE = "application/xml; charset=utf-8"

STATUS_OF: dict[str, tuple[int, str]] = {
    ARGUMENT_ERROR: (400, "SubCode=40000. "),
    DECODE_ERROR: (400, "SubCode=40000. "),
    INVALID_FIELD: (400, "SubCode=40000. "),
    NOT_ALLOWED: (400, "SubCode=40000. "),
    ENTITY_DISABLED: (400, "SubCode=40000. "),
    UNAUTHORIZED_ACCESS: (401, "SubCode=40100. "),
    RESOURCE_LIMIT_EXCEEDED: (403, "SubCode=40300. "),
    NOT_FOUND: (404, "SubCode=40400. "),
    MESSAGE_NOT_FOUND: (404, "SubCode=40400. "),
    TIMEOUT: (408, ""),
    MESSAGE_LOCK_LOST: (410, ""),
    MESSAGE_SIZE_EXCEEDED: (413, ""),
    SERVER_BUSY: (503, "SubCode=50009. "),
}
"AMQP condition → status, and the beginning of the text. Every other condition is 500."


def done(status: int) -> web.Response:
    """Return the answer to a request that was carried out."""
    if status == 204:
        return web.Response(status=204)
    return web.Response(status=status, headers={"Content-Type": EMPTY_CONTENT_TYPE})


def refused(refusal: Refusal, text: str) -> web.Response:
    """Return the answer to a request that was refused; `text`: the words of the refusal."""
    status, sub_code = STATUS_OF.get(refusal.condition, (500, ""))
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "SharedAccessSignature"
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    body = error_body(status, f"{sub_code}{text}")
    answer = web.Response(status=status, text=body, content_type="application/xml", headers=headers)
    if status == 413:  # the rest of the body is not read
        answer.force_close()
    return answer


def has_left(request: web.Request) -> bool:
    """Return whether the client of a request is gone."""
    return request.transport is None or request.transport.is_closing()


async def write(request: web.Request, answer: web.Response, faults: NamespaceFaults) -> None:
    """Write an answer until the machine has taken all its bytes. ConnectionResetError: the client is gone, or has not
    read in time; then the connection is cut."""
    if faults.acts:
        await faults.http.until_open()
        await faults.http.until_passed(answer.content_length or 0)
    if has_left(request):
        raise ConnectionResetError("the client left before it was answered")
    try:
        async with asyncio.timeout(ANSWER_WAIT_S):
            await answer.prepare(request)
            await answer.write_eof()
            while request.transport is not None and request.transport.get_write_buffer_size():  # noqa: ASYNC110 - no event
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError(f"the client did not read its answer within {ANSWER_WAIT_S:.0f} s") from None
    except ConnectionError as error:
        raise ConnectionResetError("the client left while it was answered") from error
    if request.transport is None:
        raise ConnectionResetError("the client left before it had read its answer")
