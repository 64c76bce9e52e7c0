"""The administration application as plain HTTP: doors without a key, foreign requests, limits, filters."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from aiohttp import web

from pairbus.auth.sas import sign
from pairbus.broker.admin.app import BODY_SIZE_MAX
from pairbus.broker.admin.xml import ATOM, SERVICE
from tests.broker.admin_world import ROOT_KEY, AdminServer, serve

FAR_S = 4_000_000_000
ENTRY = f'<entry xmlns="{ATOM}"><content><QueueDescription xmlns="{SERVICE}"/></content></entry>'.encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    async def websocket(request: web.Request) -> web.StreamResponse:
        return web.Response(text="this would be a web socket")

    with serve(tmp_path_factory.mktemp("admin"), websocket) as server:
        yield server


@pytest.fixture
def server(running: AdminServer) -> AdminServer:
    running.namespace.forget_tests()
    running.namespace.clock_ms = None
    return running


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()


def call(
    server: AdminServer,
    method: str,
    path: str,
    *,
    body: bytes | None = None,
    key: bool = True,
    expires_s: int = FAR_S,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send one request, signed unless `key` is false; `headers` may have a Host header of its own."""
    given = headers or {}
    if key:
        token = sign(f"http://localhost:{server.port}", ROOT_KEY.name, ROOT_KEY.key, expires_s)
        given = {"Authorization": token, **given}
    connection = http.client.HTTPConnection("localhost", server.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host="Host" in given)
        for name, value in given.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def listed(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.text
    return re.findall(r'<entry .*?<title type="text">(.*?)</title>', answer.text)


def test_health_and_the_ca_certificate_need_no_key(server: AdminServer) -> None:
    """Health checks have none, and a client needs the certificate before it can show one."""
    health = call(server, "GET", "/health", key=False)
    assert (health.status, health.text) == (200, '{"status": "healthy", "message": "Service is healthy."}')
    assert health.headers.get_content_type() == "application/json"
    certificate = call(server, "GET", "/ca.pem", key=False)
    assert certificate.text.startswith("-----BEGIN CERTIFICATE-----")


def test_queues_may_be_called_like_the_open_doors(server: AdminServer) -> None:
    """Every administration client shows a token; a request without one asks for the open page of that name."""
    assert call(server, "PUT", "/health", body=ENTRY).status == 201
    assert "<QueueDescription" in call(server, "GET", "/health").text
    assert call(server, "GET", "/ca.pem").status == 404


def test_everything_else_needs_a_token(server: AdminServer) -> None:
    """The answer says that the Authorization header is missing."""
    for path in ("/", "/q", "/$namespaceinfo", "/$Resources/queues"):
        answer = call(server, "GET", path, key=False)
        assert answer.status == 401
        assert "Authorization header is missing" in answer.text
        assert answer.headers["WWW-Authenticate"]


def test_a_token_is_good_for_five_minutes_after_its_end(server: AdminServer) -> None:
    """The Python client renews a minute late; without this every hour one call would fail."""
    server.namespace.clock_ms = 1_000_299_000
    assert call(server, "GET", "/$Resources/queues", expires_s=1_000_000).status == 200
    server.namespace.clock_ms = 1_000_300_000
    answer = call(server, "GET", "/$Resources/queues", expires_s=1_000_000)
    assert answer.status == 401
    assert "expired 300 seconds ago" in answer.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:5672", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:5672", 200),
        ("broker.test", 200),
        ("192.168.1.9:5672", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("broker.test.evil.example:5672", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost@evil.example", 421),
        ("", 421),
    ],
)
def test_only_requests_that_name_this_broker_are_answered(server: AdminServer, host: str, status: int) -> None:
    """DNS rebinding: a web page whose name suddenly points to 127.0.0.1 still sends its own name."""
    for path in ("/health", "/ca.pem", "/$servicebus/websocket"):
        assert call(server, "GET", path, key=False, headers={"Host": host}).status == status
    assert call(server, "GET", "/$Resources/queues", headers={"Host": host}).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://broker.test", 200),
        ("http://evil.example", 403),
        ("http://203.0.113.7", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_web_pages_from_elsewhere_are_refused(server: AdminServer, origin: str, status: int) -> None:
    """A web socket to localhost is open to every page in the browser, and the development key is well known."""
    for path in ("/health", "/$servicebus/websocket"):
        assert call(server, "GET", path, key=False, headers={"Origin": origin}).status == status


def test_the_web_socket_handler_gets_its_requests(server: AdminServer) -> None:
    """AMQP authenticates on its own, inside the socket."""
    assert call(server, "GET", "/$servicebus/websocket", key=False).text == "this would be a web socket"
    assert call(server, "POST", "/$servicebus/websocket").status == 405


def test_names_may_be_encoded_as_clients_like(server: AdminServer) -> None:
    """`/` arrives as itself or as %2F, letters in any case."""
    assert call(server, "PUT", "/contoso%2Fx-servicebus-transfer%2f0?api-version=2017-04", body=ENTRY).status == 201
    for path in (
        "/contoso/x-servicebus-transfer/0",
        "/CONTOSO%2FX-servicebus-transfer/0/",
        "//contoso/x-servicebus-transfer/0",
    ):
        answer = call(server, "GET", path)
        assert answer.status == 200, path
        assert '<title type="text">contoso/x-servicebus-transfer/0</title>' in answer.text
        assert f"<id>http://localhost:{server.port}/contoso/x-servicebus-transfer/0?" in answer.text


def test_the_counts_declare_their_own_prefix(server: AdminServer) -> None:
    """The JavaScript client reads it off this element; anywhere else, correct XML or not, it finds no counts."""
    server.namespace.add("q")
    text = call(server, "GET", "/q").text
    assert re.search(r'<CountDetails xmlns:d2p1="[^" ]+"><d2p1:ActiveMessageCount>0</d2p1:ActiveMessageCount>', text)


def test_a_listing_is_paged_by_skip_and_top(server: AdminServer) -> None:
    """The JavaScript client encodes the dollar sign and sends neither parameter at first."""
    names = [f"q{number:03}" for number in range(105)]
    for name in names:
        server.namespace.add(name)
    first = call(server, "GET", "/$Resources/Queues")
    assert listed(first) == names[:100]
    links = re.findall(r'<link rel="(\w+)" href="([^"]*)"/>', re.sub(r"<entry.*?</entry>", "", first.text))
    assert [relation for relation, _ in links] == ["self", "next"], (
        "the Python SDK needs exactly two links, `next` last"
    )
    following = links[1][1].replace("&amp;", "&")
    assert "$skip=100&$top=100" in following
    assert listed(call(server, "GET", following.removeprefix(f"http://localhost:{server.port}"))) == names[100:]
    assert listed(call(server, "GET", "/$resources/queues?%24skip=3&%24top=2")) == names[3:5]
    assert listed(call(server, "GET", "/$Resources/queues?$skip=9999")) == []
    assert len(listed(call(server, "GET", "/$Resources/queues?$top=100000"))) == 100
    for wrong in ("$skip=-1", "$skip=x", "$top=1.5", "$top=" + "9" * 5000):
        assert call(server, "GET", f"/$Resources/queues?{wrong}").status == 400


def test_a_listing_can_be_filtered_by_the_start_of_the_path(server: AdminServer) -> None:
    """Pairing asks for its backlog queues so; the filter stays on over pages."""
    for name in ("Contoso/a", "contoso/b", "contoso/c", "contosox", "other"):
        server.namespace.add(name)
    text = quote("startsWith(path, 'CONTOSO/') eq true")
    assert listed(call(server, "GET", f"/$Resources/queues?$filter={text}")) == ["Contoso/a", "contoso/b", "contoso/c"]
    page = call(server, "GET", f"/$Resources/queues?$filter={text}&$top=2")
    following = re.search(r'<link rel="next" href="http://[^/]*([^"]*)"/>', page.text)
    assert following is not None
    assert listed(call(server, "GET", following[1].replace("&amp;", "&"))) == ["contoso/c"]
    apostrophe = quote("startswith(path, 'it''s') eq true")
    assert listed(call(server, "GET", f"/$Resources/queues?$filter={apostrophe}")) == []
    refused = call(server, "GET", f"/$Resources/queues?$filter={quote('messageCount gt 5')}")
    assert refused.status == 400
    assert "only startswith(path" in refused.text


def test_a_body_beyond_the_limit_is_refused_unread(server: AdminServer) -> None:
    """Memory is bounded, also for those who hold a key."""
    answer = call(server, "PUT", "/q", body=b" " * (BODY_SIZE_MAX + 1))
    assert answer.status == 413
    assert "<Code>413</Code>" in answer.text
    assert not server.namespace.catalog.queues


@pytest.mark.parametrize("body", [b"", b"<entry", b'<!DOCTYPE entry [<!ENTITY x "y">]>' + ENTRY])
def test_a_body_that_is_no_entry_is_a_bad_request(server: AdminServer, body: bytes) -> None:
    """Malformed, or with a document type."""
    answer = call(server, "PUT", "/q", body=body)
    assert answer.status == 400
    assert answer.headers.get_content_type() == "application/xml"
    assert re.fullmatch(r"<Error><Code>400</Code><Detail>.+</Detail></Error>", answer.text, re.DOTALL)


def test_body_with_a_wrong_content_encoding_is_a_bad_request(
    server: AdminServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The mistake is the client's: it gets the answer, and the log no traceback."""
    answer = call(server, "PUT", "/q", body=ENTRY, headers={"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert "gzip" in answer.text
    # aiohttp reads the rest of the body after the answer, and may log an error of its own: only our loggers count.
    assert not [record for record in caplog.records if record.exc_info and record.name.startswith("pairbus")]


def test_an_etag_never_matches(server: AdminServer) -> None:
    """The broker gives out no ETags, so an update with a condition on one must not overwrite an entity."""
    server.namespace.add("q")
    assert call(server, "PUT", "/q", body=ENTRY, headers={"If-Match": '"1"'}).status == 412
    assert call(server, "PUT", "/q", body=ENTRY, headers={"If-Match": "*"}).status == 200
    assert call(server, "PUT", "/absent", body=ENTRY, headers={"If-Match": "*"}).status == 404


def test_other_methods_are_refused_with_what_is_allowed(server: AdminServer) -> None:
    """HEAD is allowed: it is GET without the body."""
    server.namespace.add("q")
    answer = call(server, "POST", "/q/messages", body=b"hello")
    assert answer.status == 405
    assert answer.headers["Allow"] == "DELETE,GET,HEAD,PUT"
    assert call(server, "DELETE", "/$Resources/queues").status == 405
    assert call(server, "OPTIONS", "/q", key=False).status == 401
    head = call(server, "HEAD", "/q")
    assert (head.status, head.text) == (200, "")
    assert call(server, "HEAD", "/health", key=False).status == 200


def test_unknown_system_paths_are_not_queues(server: AdminServer) -> None:
    """An administrator who mistypes a system path would create a queue, and never find it again."""
    assert call(server, "GET", "/$Resources/relays").status == 404
    assert call(server, "GET", "/").status == 404
    assert call(server, "PUT", "/$mine", body=ENTRY).status == 405
