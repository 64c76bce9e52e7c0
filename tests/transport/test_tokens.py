"""Tokens: put at once for many entities, renewed at different times, judged by the meaning of the answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import ServiceRequestError

from pairbus.amqp.performatives import Error
from pairbus.client.sides import Side
from pairbus.pairing.policy import Kind
from pairbus.transport import Carrier, ConnectionLost, Refused, SasKey, Timeout, TokenRefused, connect
from pairbus.transport.errors import failure_of
from pairbus.transport.tokens import cbs as transport_cbs
from tests.limits import slowness
from tests.transport.line import Line
from tests.transport.server import Script, Server

BODY = b"\x00\x53\x75\xa0\x01a"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the awaited change sets no event
            await asyncio.sleep(0.01)


@dataclass
class Access:
    token: str
    expires_on: float


class Identity:
    """A sync credential of azure-identity: it blocks, and counts."""

    def __init__(self, takes_s: float = 0.0, error: Exception | None = None) -> None:
        self.calls = 0
        self.threads: set[str] = set()
        self._takes_s = takes_s
        self._error = error

    def get_token(self, *scopes: str, **_: Any) -> Access:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        time.sleep(self._takes_s)
        if self._error is not None:
            raise self._error
        return Access("jwt", time.time() + 3600)


@pytest.mark.slow
async def test_a_thousand_entities_are_open_within_ten_seconds_at_a_distance() -> None:
    """Opened one after the other they would take 200 s at a round trip of 100 ms. A busy machine has more time."""
    async with Server() as server, Line(server.port, round_trip_s=0.1) as line:
        carrier = Carrier(server.connection_string.replace(f":{server.port};", f":{line.port};"))
        began = time.monotonic()
        await asyncio.gather(*[carrier.sender(f"queue-{number}") for number in range(1000)])
        took_s = time.monotonic() - began
        assert line.connections == 2
        assert len(server.tokens) == 1000
        assert took_s < 20 * slowness()
        await carrier.close()


async def test_tokens_of_many_entities_share_one_pair_of_links() -> None:
    """Azure refuses a second pair of `$cbs` links; and the same audience is put once."""
    async with Server() as server, Line(server.port, round_trip_s=0.5) as line:
        carrier = Carrier(server.connection_string.replace(f":{server.port};", f":{line.port};"))
        await carrier.connection()
        began = time.monotonic()
        await asyncio.gather(*[carrier.sender(f"queue-{number % 40}") for number in range(80)])
        await asyncio.gather(*[carrier.management(f"queue-{number}") for number in range(40)])
        assert time.monotonic() - began < 12, "a token after the other takes 20 s"
        assert len(server.tokens) == 40
        assert [len(server.senders("$cbs"))] == [1]
        await carrier.close()


async def test_renewals_are_spread_and_go_on() -> None:
    """A thousand entities that were opened together must not renew in the same second, or one after the other."""
    async with Server() as server:
        credential = SasKey("k", "s3cr3t", lifetime_s=3600)
        async with await connect(server.connection_string, credential=credential) as connection:
            await asyncio.gather(*[connection.sender(f"queue-{number}") for number in range(50)])
            loop = asyncio.get_running_loop()
            due = sorted(timer.when() - loop.time() for timer in connection._tokens._renewals.values())
            assert len(due) == 50
            assert due[0] > 3600 * 0.8 - 5 and due[-1] < 3600 * 0.9 + 5
            assert due[-1] - due[0] > 60
            for audience in list(connection._tokens._renewals):
                connection._tokens._renew_in(audience, 0.0)
            await until(lambda: len(server.tokens) == 100)
            await until(lambda: len(connection._tokens._renewals) == 50)
        assert not connection._tokens._renewals


async def test_a_failed_renewal_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that is there still serves for a tenth of its life."""
    monkeypatch.setattr(transport_cbs, "RENEW_RETRY_S", 0.02)
    async with Server() as server, await connect(server.connection_string) as connection:
        sender = await connection.sender("q")
        server.script.cbs_status = 500
        connection._tokens._renew_in(f"sb://127.0.0.1:{server.port}/q", 0.0)
        await until(lambda: len(server.tokens) >= 3)
        await sender.send(BODY)
        server.script.cbs_status = 202
        await until(lambda: bool(connection._tokens._renewals) and len(server.tokens) >= 4)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (401, "InvalidSignature", Kind.UNAUTHORIZED),
        (403, "Send claim is missing", Kind.UNAUTHORIZED),
        (403, "QuotaExceeded: the namespace has reached its quota of connections", Kind.FULL),
        (404, "The messaging entity could not be found.", Kind.NOT_FOUND),
        (408, "The operation did not complete in time", Kind.TIMEOUT),
        (429, "Throttled", Kind.BUSY),
        (500, "InternalServerError", Kind.INTERNAL),
        (503, "ServerBusy", Kind.BUSY),
    ],
)
async def test_an_answer_to_a_token_is_judged_by_its_status(status: int, text: str, kind: Kind) -> None:
    """Only a no to the token itself is a wrong credential; the rest are answers of a service in trouble."""
    script = Script(cbs_status=status, cbs_text=text)
    async with Server(script) as server, Carrier(server.connection_string) as carrier:
        with pytest.raises(TokenRefused, match=text[:10]) as caught:
            await carrier.send("q", BODY)
        assert caught.value.status == status
        assert failure_of(caught.value).kind is kind
        script.cbs_status = 202
        await carrier.send("q", BODY)


@pytest.mark.parametrize("which", ["requests", "answers"])
async def test_idle_cbs_links_that_the_peer_ended_are_opened_anew(which: str) -> None:
    """Azure ends idle links; the next token must not pay for it."""
    async with Server() as server, await connect(server.connection_string) as connection:
        await connection.sender("a")
        requests = connection._tokens._requests
        links = [
            link
            for session in server.peers[0].core.sessions
            for link in session.links
            if link.context == "$cbs" and (link in server.peers[0].out) == (which == "answers")
        ]
        links[0].detach(Error("amqp:link:detach-forced", "idle"))
        server.flush()
        await connection.sender("b")
        assert connection._tokens._requests is not requests
        assert len(server.tokens) >= 2


async def test_an_expired_token_is_put_afresh_before_the_link_is_attached_again() -> None:
    """Azure detaches with detach-forced and the code RenewToken; others may still use the audience."""
    async with Server() as server, Carrier(server.connection_string) as carrier:
        await carrier.send("q", BODY)
        await carrier.management("q")
        sender = await carrier.sender("q")
        text = "The link was closed. TrackingId:1, Code: RenewToken"
        server.receivers()[0].detach(Error("amqp:link:detach-forced", text))
        server.flush()
        await until(lambda: sender.over is not None)
        await carrier.send("q", BODY)
        assert len(server.tokens) == 2


# ── credentials ──


async def test_a_slow_credential_is_not_the_peers_silence() -> None:
    """A token service may take longer than any step of the peer; the caller's time bounds it."""
    identity = Identity(takes_s=0.6)
    async with Server() as server:
        carrier = Carrier(server.connection_string, credential=identity, connect_timeout_s=0.2)
        with pytest.raises(Timeout):
            await carrier.send("q", BODY, timeout_s=0.1)
        await carrier.send("q", BODY, timeout_s=10)
        await carrier.close()
    assert identity.calls == 1, "the second caller waits for the call that is under way"


async def test_many_entities_share_one_call_of_a_credential() -> None:
    """A token of azure-identity serves every audience: a thousand calls, in a thousand threads, would get the same."""
    identity = Identity(takes_s=0.1)
    async with Server() as server, Carrier(server.connection_string, credential=identity) as carrier:
        await asyncio.gather(*[carrier.sender(f"queue-{number}") for number in range(50)])
        assert len(server.tokens) == 50
    assert (identity.calls, identity.threads) == (1, {"get_token"})


async def test_a_credential_without_an_answer_is_no_wrong_credential() -> None:
    """The cause is kept for callers that want to show it."""
    error = ServiceRequestError("no route to login.microsoftonline.com")
    async with Server() as server, Carrier(server.connection_string, credential=Identity(error=error)) as carrier:
        with pytest.raises(ConnectionLost) as caught:
            await carrier.send("q", BODY)
        assert failure_of(caught.value).kind is Kind.COMMUNICATION
        assert caught.value.__cause__ is error


async def test_a_key_that_was_updated_signs_the_next_token() -> None:
    """Keys are rotated while applications run."""
    async with Server() as server:
        key = AzureNamedKeyCredential("k", "old")
        host = f"127.0.0.1:{server.port}"
        side = Side.from_credential(host, key, use_tls=False)
        async with Carrier(side.endpoint, credential=side.credential, ssl=side.ssl) as carrier:
            await carrier.send("q", BODY)
            key.update("k2", "new")
            await carrier.send("r", BODY)
    names = [token.rsplit("skn=", 1)[1].split("&")[0] for _, _, token in server.tokens]
    assert names == ["k", "k2"]


async def test_a_refused_token_tells_every_caller_and_holds_nothing() -> None:
    """A link that never came about must not keep a token renewed."""
    async with Server(Script(cbs_status=401)) as server, await connect(server.connection_string) as connection:
        answers = await asyncio.gather(*[connection.sender("q") for _ in range(3)], return_exceptions=True)
        assert all(isinstance(answer, Refused) for answer in answers)
        assert len(server.tokens) == 1
        assert not connection.has_links
