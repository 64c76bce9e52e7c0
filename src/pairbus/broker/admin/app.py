"""The HTTP side of a namespace: administration, health, the CA certificate, and the door to the web socket.

    GET /health, GET /ca.pem            without a token; with an Authorization header they are entities of that name
    GET /metrics                        the same, where the broker listens on the loopback; see `monitoring.metrics`
    GET /$metrics                       Listen; the same page everywhere
    GET /$servicebus/websocket          AMQP over a web socket, when the broker gives a handler
    GET / of a browser, /$pairbus/page/…  the page, when the broker has one; it decides by itself who may ask
    GET, POST /$pairbus/…               Manage; faults and other switches of the broker, see `control` and
                                        `pairbus.broker.kit.switches`; JSON, also its errors
    …/messages, …/messages/head, …         Send or Listen; messages, see `pairbus.broker.rest`
    GET /$meter                         operations since the start that the key could do itself, when there is a meter
    GET /$namespaceinfo                 Manage
    everything else                     Manage; see `resources`. PUT with `If-Match: *` is an update

Every other error has one shape: `<Error><Code>…</Code><Detail>…</Detail></Error>`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from pairbus.auth.gate import ForeignRequest, check_request_source
from pairbus.auth.sas import MANAGE, Grant, TokenNotValid
from pairbus.broker.admin import AdminNamespace
from pairbus.broker.admin.atom import error_body
from pairbus.broker.admin.entity_xml import namespace_entry
from pairbus.broker.admin.metrics_access import MetricsPage
from pairbus.broker.admin.resources import AdminRefusal, Call, Resources
from pairbus.broker.admin.settings import in_words_of_the_service
from pairbus.broker.admin.xml import MalformedEntry
from pairbus.broker.monitoring.meter import NamespaceMeter
from pairbus.broker.outages import NamespaceFaults
from pairbus.errors import EntityExists, EntityNotFound, InvalidDescription, StoreError, StoreFull

BODY_SIZE_MAX = 256 * 1024  # a full description has 2 KB
BODY_WAIT_S = 20
SWITCHES = "$pairbus/"
PAGE = "/$pairbus/page/"
TOKEN_SKEW_S = 300  # the Python SDK renews a token only 60 seconds after its expiry

ControlHandler = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
WebSocketHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PageHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MessageHandler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"Answers requests about messages, and others with None."

logger = logging.getLogger("pairbus.broker.admin")

_STATUS_OF: tuple[tuple[type[Exception], int, str], ...] = (
    # The SDKs look for some of these sub-codes in the text: first match wins.
    (EntityNotFound, 404, "SubCode=40400. "),
    (EntityExists, 409, "SubCode=40900. "),
    (InvalidDescription, 400, "SubCode=40000. "),
    (MalformedEntry, 400, "SubCode=40000. "),
    (web.RequestPayloadError, 400, "SubCode=40000. "),  # a body that does not match its header, or has no end
    (ConnectionResetError, 400, ""),  # the client left before its request was carried out: no one gets this answer
    (TokenNotValid, 401, "SubCode=40100. "),
    (StoreFull, 403, "SubCode=40300. "),  # the SDKs' quota error; they repeat a 507 three times on a full disk
    (StoreError, 500, ""),
)


def admin_app(  # noqa: PLR0913 - each is a part of its own
    namespace: AdminNamespace,
    *,
    hosts: frozenset[str] = frozenset(),
    is_emulator: bool = False,
    ca_pem: bytes = b"",
    websocket: WebSocketHandler | None = None,
    meter: NamespaceMeter | None = None,
    faults: NamespaceFaults | None = None,
    control: ControlHandler | None = None,
    page: PageHandler | None = None,
    on_request: Callable[[web.Request], None] | None = None,
    metrics: MetricsPage | None = None,
    messages: MessageHandler | None = None,
) -> web.Application:
    """Return the application for one namespace, to be served plain and over TLS.

    `hosts` are the names, besides loopback names and IP addresses, under which clients may call this broker.
    `on_request` is called for every request when its headers have been read.
    """
    routes = _Routes(
        namespace,
        frozenset(host.lower() for host in hosts),
        is_emulator,
        ca_pem,
        websocket=websocket,
        meter=meter,
        faults=faults,
        control=control,
        page=page,
        on_request=on_request,
        metrics=metrics,
        messages=messages,
    )
    app = web.Application(client_max_size=BODY_SIZE_MAX)
    app.router.add_route("*", "/{path:.*}", routes.handle)
    return app


class _Routes:
    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        namespace: AdminNamespace,
        hosts: frozenset[str],
        is_emulator: bool,
        ca_pem: bytes,
        *,
        websocket: WebSocketHandler | None,
        meter: NamespaceMeter | None,
        faults: NamespaceFaults | None,
        control: ControlHandler | None,
        page: PageHandler | None,
        on_request: Callable[[web.Request], None] | None,
        metrics: MetricsPage | None,
        messages: MessageHandler | None,
    ) -> None:
        self._namespace = namespace
        self._hosts = hosts
        self._is_emulator = is_emulator
        self._ca_pem = ca_pem
        self._websocket = websocket
        self._meter = meter
        self._faults = faults
        self._control = control
        self._page = page
        self._on_request = on_request
        self._metrics = metrics
        self._messages = messages
        self._resources = Resources(namespace)
        self._started_ms = namespace.now_ms()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self._on_request is not None:
            self._on_request(request)
        faults = self._faults
        try:
            if faults is not None and faults.acts:
                await faults.http.until_open()
                _check_client(request)
            if not (self._is_emulator and request.path == "/health"):
                check_request_source(
                    request.headers.getall("Host", []),
                    request.headers.get("Origin"),
                    self._hosts,
                    accepts_local_names=self._is_emulator,
                )
            if not self._wants_websocket(request):
                answer: web.StreamResponse
                if self._page is not None and _wants_page(request):
                    answer = await self._page(request)
                else:
                    answer = await self._answer(request)
                if faults is not None and faults.acts and not answer.prepared:
                    await faults.http.until_open()
                    await faults.http.until_passed(answer.content_length or 0)
                return answer
        except Exception as error:  # the last resort: the client gets an answer, the log gets the traceback
            return self._error_answer(request, error)
        assert self._websocket is not None
        return await self._websocket(request)

    def _wants_websocket(self, request: web.Request) -> bool:
        return (
            self._websocket is not None
            and request.method == "GET"
            and request.path.strip("/").lower() == "$servicebus/websocket"
        )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.strip("/")
        reading = request.method in ("GET", "HEAD")
        if reading and "Authorization" not in request.headers:
            if path == "health":
                return await self._health()
            if path == "ca.pem" and self._ca_pem:
                return web.Response(body=self._ca_pem, content_type="application/x-pem-file")
            if path == "metrics" and self._metrics is not None:
                return await self._metrics.answer(None)
        if self._messages is not None and (about_messages := await self._messages(request)) is not None:
            return about_messages
        grant = self._authorize(request, path)
        if reading and path == "$metrics" and self._metrics is not None:  # before the faults, which must not hide it
            return await self._metrics.answer(grant)
        is_lost = False
        try:
            if self._faults is not None and self._faults.acts:
                is_lost, refusal = await self._faults.http.request(path)
                _check_client(request)
                if refusal is not None:
                    raise AdminRefusal(*refusal)
            answer: web.StreamResponse = await self._authorized_answer(request, path, grant)
        except Exception as error:  # see `handle`; here the answer is counted too
            answer = self._error_answer(request, error)
        self._count(path, answer.status)
        if is_lost and request.transport is not None:
            request.transport.abort()
        return answer

    def _count(self, path: str, status: int) -> None:
        """Count a request, unless the caller lacks the right or the entity does not exist.

        Otherwise anybody could fill the ledger and the memory with names that they make up.
        """
        if self._meter is None or status == 401 or path == "$meter" or _is_switch(path):
            return
        known = path if status < 400 else self._resources.known_path(path)
        if known is not None:
            self._meter.http(known, status)

    async def _authorized_answer(self, request: web.Request, path: str, grant: Grant) -> web.StreamResponse:
        reading = request.method in ("GET", "HEAD")
        if path == "$meter" and reading and self._meter is not None:
            return web.json_response(self._meter.as_json(grant))
        if MANAGE not in grant.rights:
            raise TokenNotValid(f"{MANAGE} claim is required for '/{path}'; the key has {', '.join(grant.rights)}")
        if self._control is not None and _is_switch(path):
            return await self._control(request, path)
        call = Call.of(path, _base_url(request), request.query)
        if path.startswith("$") or not path:
            return self._system_answer(request, call)
        if reading:
            kind, text = self._resources.show(call)
            return _atom_answer(200, kind, text)
        return await self._change(request, call)

    def _authorize(self, request: web.Request, path: str) -> Grant:
        token = request.headers.get("Authorization")
        if token is None:
            raise TokenNotValid("the Authorization header is missing")
        return self._namespace.keys.check(token, path, self._namespace.real_ms() / 1000, skew_s=TOKEN_SKEW_S)

    def _system_answer(self, request: web.Request, call: Call) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD"])
        match call.path.lower().split("/"):
            case ["$namespaceinfo"]:
                return _atom_answer(
                    200, "entry", namespace_entry(self._namespace.name, call.base_url, self._started_ms)
                )
            case ["$resources", ("queues" | "topics") as kind]:
                return _atom_answer(200, "feed", self._resources.list_roots(call, kind))
        raise AdminRefusal(404, f"SubCode=40400. there is nothing at '/{call.path}'")

    async def _change(self, request: web.Request, call: Call) -> web.Response:
        if request.method == "DELETE":
            await self._resources.delete(call.path)
            return web.Response()
        if request.method != "PUT":
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "HEAD", "PUT", "DELETE"])
        status, text = await self._resources.put(call, await self._body(request), request.headers.get("If-Match"))
        return _atom_answer(status, "entry", text)

    async def _body(self, request: web.Request) -> bytes:
        async with asyncio.timeout(BODY_WAIT_S):
            return await request.read()

    async def _health(self) -> web.Response:
        trouble = await self._namespace.trouble()
        if trouble is None:
            return web.json_response({"status": "healthy", "message": "Service is healthy."})
        return web.json_response({"status": "unhealthy", "message": trouble}, status=503)

    def _error_answer(self, request: web.Request, error: Exception) -> web.Response:
        if isinstance(error, AdminRefusal | ForeignRequest):
            return _error(error.status, str(error))
        if isinstance(error, web.HTTPException):
            return _error(error.status, error.text or error.reason, allow=error.headers.get("Allow"))
        for kind, status, sub_code in _STATUS_OF:
            if isinstance(error, kind):
                level = logging.ERROR if status >= 500 else logging.INFO
                logger.log(
                    level, "%s %s %s answered %d: %s", self._namespace.name, request.method, request.path, status, error
                )
                detail = in_words_of_the_service(str(error))
                if isinstance(error, EntityNotFound):
                    address = f"sb://{request.url.host}/{request.path.strip('/')}"
                    detail = f"The messaging entity '{address}' could not be found: {detail}"
                return _error(status, f"{sub_code}{detail}")
        if isinstance(error, TimeoutError):
            return _error(408, f"the request body did not arrive within {BODY_WAIT_S} seconds")
        logger.error("%s %s %s failed", self._namespace.name, request.method, request.path, exc_info=error)
        return _error(500, "internal error; the broker's log has the details")


def _wants_page(request: web.Request) -> bool:
    """Tell whether a request is for the page, from a browser or from the page itself."""
    if request.path.startswith(PAGE):
        return True
    is_reading = request.method in ("GET", "HEAD") and "Authorization" not in request.headers
    return request.path == "/" and is_reading and "text/html" in request.headers.get("Accept", "")


def _check_client(request: web.Request) -> None:
    """Refuse a request whose client left while a fault held it: the client does not wait for it any more."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError("the client left while a fault held its request")


def _is_switch(path: str) -> bool:
    """Return whether the path is a switch of the tester's kit. Azure has no such path, so it is not counted."""
    return path.lower().startswith(SWITCHES)


def _base_url(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"


def _atom_answer(status: int, kind: str, text: str) -> web.Response:
    headers = {"Content-Type": f"application/atom+xml;type={kind};charset=utf-8"}
    return web.Response(status=status, text=text, headers=headers)


def _error(status: int, detail: str, *, allow: str | None = None) -> web.Response:
    headers = {"WWW-Authenticate": "SharedAccessSignature"} if status == 401 else {}
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(status=status, text=error_body(status, detail), content_type="application/xml", headers=headers)
