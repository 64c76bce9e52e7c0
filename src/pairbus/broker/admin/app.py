"""The HTTP side of a namespace: administration, health, the CA certificate, and the door to the web socket.

    GET /health, GET /ca.pem            for everybody; with an Authorization header they are queues of that name
    GET /$servicebus/websocket          AMQP over a web socket, when the broker gives a handler
    GET /$namespaceinfo                 any right
    GET /$Resources/queues              any right
    GET /$meter                         any right; operations since the start, when the broker has a meter
    GET /{queue}                        any right
    PUT, DELETE /{queue}                Manage; PUT with `If-Match: *` is an update

Every error has one shape: `<Error><Code>…</Code><Detail>…</Detail></Error>`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import quote

from aiohttp import web

from pairbus.broker.admin import AdminNamespace, QueueInfo, atom
from pairbus.broker.admin.gate import ForeignRequest, check_request_source
from pairbus.broker.meter import Meter
from pairbus.errors import EntityExists, EntityNotFound, InvalidDescription, StoreError, StoreFull
from pairbus.sas import MANAGE, Grant, TokenRefused

BODY_SIZE_MAX = 256 * 1024  # a full description has 2 KB
BODY_WAIT_S = 20
PAGE_SIZE_MAX = 100
TOKEN_SKEW_S = 300  # the Python SDK renews a token only 60 seconds after its expiry

WebSocketHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger("pairbus.broker.admin")

_STARTSWITH = re.compile(r"\s*startswith\s*\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)\s*eq\s*true\s*", re.IGNORECASE)
_TOPIC_CHILD = re.compile(r".+/subscriptions(?:/.*)?", re.IGNORECASE)


class _Refusal(Exception):
    """An answer other than success, decided by the routes."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


_STATUS_OF: tuple[tuple[type[Exception], int, str], ...] = (
    # The SDKs look for some of these sub-codes in the text: first match wins.
    (EntityNotFound, 404, "SubCode=40400. "),
    (EntityExists, 409, "SubCode=40900. "),
    (InvalidDescription, 400, "SubCode=40000. "),
    (atom.MalformedEntry, 400, "SubCode=40000. "),
    (web.RequestPayloadError, 400, "SubCode=40000. "),  # a body that is not what its head says, or has no end
    (ConnectionResetError, 400, ""),  # the client left in the middle of its body; nobody hears this
    (TokenRefused, 401, "SubCode=40100. "),
    (StoreFull, 403, "SubCode=40300. "),  # the SDKs' quota error; they repeat a 507 three times on a full disk
    (StoreError, 500, ""),
)


def admin_app(
    namespace: AdminNamespace,
    *,
    hosts: frozenset[str] = frozenset(),
    ca_pem: bytes = b"",
    websocket: WebSocketHandler | None = None,
    meter: Meter | None = None,
) -> web.Application:
    """The application for one namespace, to be served plain and over TLS.

    `hosts` are the names, besides loopback names and IP addresses, under which clients may call this broker.
    """
    routes = _Routes(namespace, frozenset(host.lower() for host in hosts), ca_pem, websocket, meter)
    app = web.Application(client_max_size=BODY_SIZE_MAX)
    app.router.add_route("*", "/{path:.*}", routes.handle)
    return app


class _Routes:
    def __init__(
        self,
        namespace: AdminNamespace,
        hosts: frozenset[str],
        ca_pem: bytes,
        websocket: WebSocketHandler | None,
        meter: Meter | None,
    ) -> None:
        self._namespace = namespace
        self._hosts = hosts
        self._ca_pem = ca_pem
        self._websocket = websocket
        self._meter = meter
        self._started_ms = namespace.now_ms()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            check_request_source(request.headers.getall("Host", []), request.headers.get("Origin"), self._hosts)
            if not self._wants_websocket(request):
                return await self._answer(request)
        except Exception as error:  # the last line: a client gets an answer, the log gets the traceback
            return self._error_answer(request, error)
        assert self._websocket is not None
        return await self._websocket(request)

    def _wants_websocket(self, request: web.Request) -> bool:
        return (
            self._websocket is not None
            and request.method == "GET"
            and request.path.strip("/").lower() == "$servicebus/websocket"
        )

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.strip("/")
        reading = request.method in ("GET", "HEAD")
        if reading and "Authorization" not in request.headers:
            if path == "health":
                return await self._health()
            if path == "ca.pem" and self._ca_pem:
                return web.Response(body=self._ca_pem, content_type="application/x-pem-file")
        grant = self._authorize(request, path)
        try:
            answer = await self._authorized_answer(request, path, grant)
        except Exception as error:  # see `handle`; here the answer is counted too
            answer = self._error_answer(request, error)
        self._count(path, answer.status)
        return answer

    def _count(self, path: str, status: int) -> None:
        """Tell the meter, but not of a caller without the right, nor of an entity that does not exist.

        Otherwise anybody could fill the ledger and the memory with names that they make up.
        """
        if self._meter is None or status == 401 or path == "$meter":
            return
        if status >= 400:
            try:
                path = self._namespace.queue_info(path).description.path
            except EntityNotFound:
                return
        self._meter.http(path, status)

    async def _authorized_answer(self, request: web.Request, path: str, grant: Grant) -> web.Response:
        reading = request.method in ("GET", "HEAD")
        if path.startswith("$") or not path:
            return self._system_answer(request, path)
        if reading:
            return self._show(request, path)
        if request.method not in ("PUT", "DELETE"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD", "PUT", "DELETE"])
        if MANAGE not in grant.rights:
            raise TokenRefused(f"{request.method} needs the right {MANAGE}; the key has {', '.join(grant.rights)}")
        return await (self._put(request, path) if request.method == "PUT" else self._delete(path))

    def _authorize(self, request: web.Request, path: str) -> Grant:
        token = request.headers.get("Authorization")
        if token is None:
            raise TokenRefused("the Authorization header is missing")
        return self._namespace.keys.check(token, path, self._namespace.now_ms() / 1000, skew_s=TOKEN_SKEW_S)

    def _system_answer(self, request: web.Request, path: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        match path.lower().split("/"):
            case ["$namespaceinfo"]:
                text = atom.namespace_entry(self._namespace.name, _base_url(request), self._started_ms)
                return _entry_answer(200, text)
            case ["$resources", "queues"]:
                return self._list(request, "queues", self._namespace.queue_infos())
            case ["$resources", "topics"]:
                return self._list(request, "topics", [])
            case ["$meter"] if self._meter is not None:
                return web.json_response(self._meter.as_json())
        raise _Refusal(404, f"SubCode=40400. there is nothing at '/{path}'")

    async def _health(self) -> web.Response:
        trouble = await self._namespace.trouble()
        if trouble is None:
            return web.json_response({"status": "healthy", "message": "Service is healthy."})
        return web.json_response({"status": "unhealthy", "message": trouble}, status=503)

    def _list(self, request: web.Request, title: str, infos: list[QueueInfo]) -> web.Response:
        query = request.query
        prefix = _filtered_prefix(query.get("$filter"))
        skip = _page_number(query.get("$skip"), "$skip", default=0)
        top = min(_page_number(query.get("$top"), "$top", default=PAGE_SIZE_MAX) or PAGE_SIZE_MAX, PAGE_SIZE_MAX)
        found = [info for info in infos if info.description.path.lower().startswith(prefix)]
        base_url = _base_url(request)
        next_url = None
        if skip + top < len(found):
            filtered = f"&$filter={quote(query['$filter'])}" if "$filter" in query else ""
            next_url = f"{base_url}/$Resources/{title}?api-version=2021-05&$skip={skip + top}&$top={top}{filtered}"
        entries = [atom.queue_entry(info, base_url, self._namespace.name) for info in found[skip : skip + top]]
        text = atom.feed(title, entries, f"{base_url}{request.path_qs}", next_url, self._namespace.now_ms())
        return web.Response(text=text, headers={"Content-Type": "application/atom+xml;type=feed;charset=utf-8"})

    def _show(self, request: web.Request, path: str) -> web.Response:
        try:
            info = self._namespace.queue_info(path)
        except EntityNotFound:
            _refuse_topic_children(path)
            raise
        return _entry_answer(200, atom.queue_entry(info, _base_url(request), self._namespace.name))

    async def _put(self, request: web.Request, path: str) -> web.Response:
        async with asyncio.timeout(BODY_WAIT_S):
            entry = atom.parse_entry(await request.read())
        if entry.kind != "QueueDescription":
            kind = entry.kind.removesuffix("Description").lower()
            raise _Refusal(400, f"SubCode=40000. {kind}s are not supported yet by this broker, only queues are")
        condition = request.headers.get("If-Match")
        if condition is None:
            stored = await self._namespace.create_queue(atom.created(path, entry))
            info = QueueInfo(stored, active=0, dead_lettered=0, scheduled=0, deferred=0, size_bytes=0, accessed_ms=0)
        elif condition.strip() == "*":
            info = self._namespace.queue_info(path)
            stored = await self._namespace.update_queue(atom.updated(info.description, entry))
            info = replace(info, description=stored)
        else:
            raise _Refusal(412, f"If-Match is {condition!r}; only '*' can match, because no answer carries an ETag")
        text = atom.queue_entry(info, _base_url(request), self._namespace.name)
        return _entry_answer(201 if condition is None else 200, text)

    async def _delete(self, path: str) -> web.Response:
        try:
            await self._namespace.delete_queue(path)
        except EntityNotFound:
            _refuse_topic_children(path)
            raise
        return web.Response()

    def _error_answer(self, request: web.Request, error: Exception) -> web.Response:
        if isinstance(error, _Refusal | ForeignRequest):
            return _error(error.status, str(error))
        if isinstance(error, web.HTTPException):
            return _error(error.status, error.text or error.reason, allow=error.headers.get("Allow"))
        for kind, status, sub_code in _STATUS_OF:
            if isinstance(error, kind):
                level = logging.ERROR if status >= 500 else logging.INFO
                logger.log(
                    level, "%s %s %s answered %d: %s", self._namespace.name, request.method, request.path, status, error
                )
                return _error(status, f"{sub_code}{error}")
        if isinstance(error, TimeoutError):
            return _error(408, f"the request body did not arrive within {BODY_WAIT_S} seconds")
        logger.error("%s %s %s failed", self._namespace.name, request.method, request.path, exc_info=error)
        return _error(500, "internal error; the broker's log has the details")


def _filtered_prefix(text: str | None) -> str:
    if text is None or not text.strip():
        return ""
    match = _STARTSWITH.fullmatch(text)
    if match is None:
        raise _Refusal(400, f"SubCode=40000. $filter {text!r}: only startswith(path, '…') eq true is supported")
    return match[1].replace("''", "'").lower()


def _page_number(text: str | None, name: str, *, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise _Refusal(400, f"SubCode=40000. {name} is {text!r}; it must be a whole number from 0")
    return int(text)


def _refuse_topic_children(path: str) -> None:
    if _TOPIC_CHILD.fullmatch(path):
        raise _Refusal(400, "SubCode=40000. topics and subscriptions are not supported yet by this broker")


def _base_url(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


def _entry_answer(status: int, text: str) -> web.Response:
    headers = {"Content-Type": "application/atom+xml;type=entry;charset=utf-8"}
    return web.Response(status=status, text=text, headers=headers)


def _error(status: int, detail: str, *, allow: str | None = None) -> web.Response:
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status, text=atom.error_body(status, detail), content_type="application/xml", headers=headers
    )
