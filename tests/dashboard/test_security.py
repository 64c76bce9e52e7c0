"""Requests that the page refuses: other sites, other names, missing tokens and tricks with paths get nothing."""

from __future__ import annotations

import pytest
import yarl

from pairbus.auth.sas import KeyRing, SharedAccessKey
from pairbus.dashboard.api import BASE, ROUTES
from pairbus.dashboard.guard import POLICY
from pairbus.dashboard.on_broker import opens_with_manage
from tests.dashboard.world import API, CHANGING, world

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


async def test_browser_gets_the_page_and_a_client_does_not() -> None:
    """The address of a namespace is its administration for clients, and the page for people."""
    async with world() as there:
        async with there.session.get(there.url, headers=BROWSER) as answer:
            assert answer.status == 200 and "<!DOCTYPE html>" in await answer.text()
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with there.session.get(there.url) as answer:
            assert answer.status == 401
        async with there.session.get(there.url, headers={**BROWSER, "Authorization": "x"}) as answer:
            assert answer.status == 401


def test_policy_allows_nothing_inline_and_no_frame() -> None:
    assert "unsafe" not in POLICY
    for rule in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert rule in POLICY


def test_no_get_changes_anything() -> None:
    """Links, images and prefetching cause GETs that the user did not ask for."""
    changing = ("send", "resend", "purge", "move", "redrive", "import", "cancel", "create", "change", "delete")
    for method, pattern, _ in ROUTES:
        if any(pattern.pattern.endswith(word) for word in changing):
            assert method == "POST", pattern.pattern


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),  # a form of another site cannot set the header
        ({**CHANGING, "Origin": "http://evil.example"}, 403),
        ({**CHANGING, "Origin": "null"}, 403),
        ({**CHANGING, "Origin": "http://127.0.0.1:1"}, 403),  # another port of this machine is another origin
        ({**CHANGING, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**CHANGING, "Sec-Fetch-Site": "same-site"}, 403),
        ({**CHANGING, "Host": "evil.example"}, 421),  # a name that was bound to this address
    ],
)
async def test_foreign_requests_change_nothing(headers: dict[str, str], status: int) -> None:
    async with world() as there:
        await there.put("one")
        got, said = await there.ask("POST", "namespaces/contoso/faults", {"kind": "refuse"}, headers=headers)
        assert got == status, said
        assert (await there.ask("POST", "namespaces/contoso/purge", {"path": "orders"}, headers=headers))[0] == status
        assert there.broker.namespace("contoso").faults.list() == []
        assert there.counts() == (1, 0)


async def test_own_origin_passes() -> None:
    async with world() as there:
        headers = {**CHANGING, "Origin": there.url, "Sec-Fetch-Site": "same-origin"}
        status, said = await there.ask("POST", "namespaces/contoso/send", _message(), headers=headers)
        assert (status, said) == (200, {"sent": 1})
        assert there.counts() == (1, 0)


def _message() -> dict[str, object]:
    return {"path": "orders", "message": {"body": "x"}}


async def test_key_of_ones_own_makes_a_token_necessary() -> None:
    """Every user of the machine can reach the loopback; only the well-known key is known to all of them."""
    async with world(key="a key of my own") as there:
        for token in (None, "", "SAS_KEY_VALUE", "Nobody:a key of my own", ":"):
            headers = {**CHANGING, **({} if token is None else {"X-Pairbus-Token": token})}
            for method, route in (("GET", "overview"), ("GET", "watch"), ("POST", "namespaces/contoso/send")):
                status, said = await there.ask(method, route, _message(), headers=headers)
                assert status == 401, (token, route, said)
        for token in ("a key of my own", "RootManageSharedAccessKey:a key of my own"):
            headers = {**CHANGING, "X-Pairbus-Token": token}
            assert (await there.ask("GET", "overview", headers=headers))[0] == 200
        assert there.counts() == (0, 0)
        async with there.session.get(f"{there.url}{API}overview?token=a+key+of+my+own", headers=CHANGING) as answer:
            assert answer.status == 401


def test_key_without_manage_does_not_open_the_page() -> None:
    keys = KeyRing(
        [SharedAccessKey("boss", "b:oss"), SharedAccessKey("listener", "listens", rights=frozenset({"Listen"}))]
    )
    keys.set_entity_keys("orders", [SharedAccessKey("owner", "of orders")])
    opens = opens_with_manage(keys)
    assert opens("boss:b:oss")
    assert not opens("boss:oss")
    assert not opens("listener:listens")
    assert not opens("owner:of orders")


@pytest.mark.parametrize(
    "path",
    [
        "static/../api.py",
        "static/%2e%2e/guard.py",
        "static/..%2fapi.py",
        "static//etc/passwd",
        "static/",
        "static/index.html/..",
        "api/../static/../overview",
        "api/namespaces/contoso/../../overview",
        "api/namespaces//faults",
        "api/namespaces/none/faults",
    ],
)
async def test_paths_lead_nowhere_else(path: str) -> None:
    """No address leads to the disk, or to another route than the one that it names."""
    async with world() as there:
        url = yarl.URL(f"{there.url}{BASE}{path}", encoded=True)
        async with there.session.get(url, headers=CHANGING) as answer:
            assert answer.status == 404, await answer.text()
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_methods_that_a_route_has_not_are_told() -> None:
    async with world() as there:
        assert (await there.ask("DELETE", "overview"))[0] == 405
        assert (await there.ask("GET", "namespaces/contoso/purge"))[0] == 405


async def test_bad_bodies_are_told_and_change_nothing() -> None:
    async with world() as there:
        await there.put("one")
        for route, body in (
            ("send", {"path": "orders"}),
            ("send", {"path": "orders", "message": {"bodi": "x"}}),
            ("send", {"path": "orders", "message": {"subject": "\ud800"}}),
            ("send", {"path": "\ud800", "message": {"body": "x"}}),
            ("send", {"message": {"body": "x"}}),
            ("purge", {"path": "orders", "numbers": "1"}),
            ("purge", {"path": "orders", "where": "a = = b"}),
            ("purge", {"path": ""}),
            ("purge", {"path": "\ud800"}),
            ("move", {"path": "orders"}),
            ("resend", {"path": "orders", "number": "x"}),
            ("redrive", {"path": "orders", "reasons": []}),
            ("faults", {"kind": "nonsense"}),
            ("clock", {"advance_seconds": -1}),
        ):
            status, said = await there.ask("POST", f"namespaces/contoso/{route}", body)
            assert status == 400 and said["error"], (route, body, status, said)
        assert there.counts() == (1, 0)
