"""API versions of the administration: what older clients are told, and what they may not set."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator

import pytest

from pairbus.auth.sas import sign
from pairbus.broker.admin.xml import ATOM, INSTANCE, SERVICE
from tests.broker.admin_world import ROOT_KEY, AdminServer, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminServer]:
    with serve(tmp_path_factory.mktemp("versions")) as running:
        yield running


def call(
    server: AdminServer, method: str, path: str, kind: str = "", settings: str = "", *, update: bool = False
) -> tuple[int, str]:
    token = sign(f"http://localhost:{server.port}", ROOT_KEY.name, ROOT_KEY.key, 4_000_000_000)
    content = f'<{kind} xmlns="{SERVICE}" xmlns:i="{INSTANCE}">{settings}</{kind}>'
    body = f'<entry xmlns="{ATOM}"><content>{content}</content></entry>'
    headers = {"Authorization": token} | ({"If-Match": "*"} if update else {})
    connection = http.client.HTTPConnection("localhost", server.port, timeout=10)
    try:
        connection.request(method, path, body if kind else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_filter_counts_are_told_from_2024_on(server: AdminServer) -> None:
    """Behind the number of subscriptions; an older client is not given elements that it does not know."""
    assert call(server, "PUT", "/t?api-version=2021-05", "TopicDescription")[0] == 201
    assert call(server, "PUT", "/t/Subscriptions/s?api-version=2021-05", "SubscriptionDescription")[0] == 201
    for query in ("?api-version=2024-05", ""):
        _, text = call(server, "GET", f"/t{query}")
        counts = "<SubscriptionCount>1</SubscriptionCount><SqlFilterCount>1</SqlFilterCount>"
        assert f"{counts}<CorrelationFilterCount>0</CorrelationFilterCount>" in text
    for version in ("2017-04", "2021-05"):
        _, text = call(server, "GET", f"/t?api-version={version}")
        assert "<SubscriptionCount>1</SubscriptionCount><AutoDeleteOnIdle>" in text


@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
def test_message_size_needs_2021(server: AdminServer, kind: str) -> None:
    """The service refuses a setting that the version of the request does not have."""
    setting = "<MaxMessageSizeInKilobytes>2048</MaxMessageSizeInKilobytes>"
    path = f"/sized-{kind}"
    status, text = call(server, "PUT", f"{path}?api-version=2017-04", kind, setting)
    assert status == 400
    assert "MaxMessageSizeInKilobytes needs api-version 2021-05" in text
    assert call(server, "PUT", f"{path}?api-version=2021-05", kind, setting)[0] == 201


@pytest.mark.parametrize("kind", ["QueueDescription", "TopicDescription"])
def test_what_2017_reads_it_can_write_back(server: AdminServer, kind: str) -> None:
    """An old client updates an entity with the settings that it has read."""
    path = f"/back-{kind}?api-version=2017-04"
    assert call(server, "PUT", path, kind)[0] == 201
    _, text = call(server, "GET", path)
    assert "MaxMessageSizeInKilobytes" not in text
    assert "MaxMessageSizeInKilobytes" in call(server, "GET", f"/back-{kind}?api-version=2021-05")[1]
    settings = re.search(f"<{kind}[^>]*>(.*)</{kind}>", text, re.DOTALL)
    assert settings is not None
    assert call(server, "PUT", path, kind, settings[1], update=True)[0] == 200


@pytest.mark.parametrize("version", ["2999-01", "", "2024-05-01", "x"])
def test_unknown_version_is_refused(server: AdminServer, version: str) -> None:
    """With those that are known."""
    status, text = call(server, "GET", f"/$Resources/queues?api-version={version}")
    assert status == 400
    assert "known are" in text
    assert "2024-05" in text


@pytest.mark.parametrize(
    ("method", "path", "kind", "settings", "status", "words"),
    [
        ("PUT", "/t2/Subscriptions/s", "QueueDescription", "", 400, "expected is SubscriptionDescription"),
        ("PUT", "/q", "SubscriptionDescription", "", 400, "expected is QueueDescription or TopicDescription"),
        ("PUT", "/t/Subscriptions", "SubscriptionDescription", "", 400, "is no place for"),
        ("PUT", "/t/Subscriptions/s/Rules/r", "SubscriptionDescription", "", 400, "expected is RuleDescription"),
        ("PUT", "/a/subscriptions/b/c", "QueueDescription", "", 400, "leads to a topic"),
        ("DELETE", "/t/Subscriptions/s/Rules", "", "", 405, "is a list"),
        ("GET", "/t/Subscriptions/none/Rules", "", "", 404, "subscription 'none' of topic 't' does not exist"),
        ("GET", "/none", "", "", 404, "The messaging entity 'sb://localhost/none' could not be found"),
        ("PUT", "/t/Subscriptions/s/Rules/r", "RuleDescription", "<Filter/>", 400, "has the type ''"),
        (
            "PUT",
            "/t/Subscriptions/s2",
            "SubscriptionDescription",
            "<DefaultRuleDescription><Filter/></DefaultRuleDescription>",
            400,
            "DefaultRuleDescription has no Name",
        ),
    ],
)
def test_misplaced_request_is_refused(
    server: AdminServer, method: str, path: str, kind: str, settings: str, status: int, words: str
) -> None:
    """The path and the body must speak of one kind of entity."""
    call(server, "PUT", "/t", "TopicDescription")
    call(server, "PUT", "/t/Subscriptions/s", "SubscriptionDescription")
    found, text = call(server, method, path, kind, settings)
    assert found == status, text
    assert words in text
