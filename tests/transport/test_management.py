"""`$management` and `$cbs`: requests, the matching of answers, and failures."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from pairbus.amqp.performatives import Error
from pairbus.amqp.types import Array, Timestamp
from pairbus.transport import Refused, SasKey, Scheduled, Timeout, connect, times
from pairbus.transport.links import patience
from tests.transport.server import Script, Server
from tests.transport.silences import silent_peer

TOKEN = uuid.UUID(int=5)


class Recorder:
    """A `$management` node that answers from a table and remembers its requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, operation: str, body: Any) -> tuple[int, Any, str | None]:
        self.asked.append((operation, body))
        answer = self.answers.get(operation.removeprefix("com.microsoft:").replace("-", "_"), {})
        return (204, None, None) if answer is None else (200, answer, None)


async def test_the_named_operations_ask_and_read_as_the_wire_says() -> None:
    """The maps are the service's contract; a wrong type of array or integer is refused by it."""
    recorder = Recorder(
        peek_message={"messages": [{"message": b"one"}, {"message": b"two"}]},
        renew_lock={"expirations": Array([Timestamp(7)])},
        schedule_message={"sequence-numbers": Array([11], 0x81)},
        receive_by_sequence_number={"messages": [{"lock-token": TOKEN, "message": b"three"}]},
    )
    async with Server(Script(manage=recorder)) as server, await connect(server.connection_string) as connection:
        management = await connection.management("q")
        assert await management.peek(1, 10) == [b"one", b"two"]
        assert await management.renew_lock([TOKEN]) == [7]
        assert await management.schedule([Scheduled("id", b"four", session_id="s")]) == [11]
        await management.cancel([11])
        (deferred,) = await management.receive_deferred([3])
        assert (deferred.payload, deferred.lock_token) == (b"three", TOKEN)
        await management.update_disposition("suspended", [TOKEN], reason="why")
    assert recorder.asked == [
        ("com.microsoft:peek-message", {"from-sequence-number": 1, "message-count": 10}),
        ("com.microsoft:renew-lock", {"lock-tokens": [TOKEN]}),
        ("com.microsoft:schedule-message", {"messages": [{"message-id": "id", "message": b"four", "session-id": "s"}]}),
        ("com.microsoft:cancel-scheduled-message", {"sequence-numbers": [11]}),
        ("com.microsoft:receive-by-sequence-number", {"sequence-numbers": [3], "receiver-settle-mode": 1}),
        (
            "com.microsoft:update-disposition",
            {"disposition-status": "suspended", "lock-tokens": [TOKEN], "deadletter-reason": "why"},
        ),
    ]


async def test_nothing_to_peek_is_an_empty_list() -> None:
    """204 comes with no body."""
    script = Script(manage=Recorder(peek_message=None))
    async with Server(script) as server, await connect(server.connection_string) as connection:
        assert await (await connection.management("q")).peek(1, 10) == []


async def test_a_failed_operation_is_refused_with_the_condition_of_the_peer() -> None:
    """The condition tells a lost lock from a missing message; the status alone does not."""
    script = Script(manage=lambda operation, body: (410, None, "com.microsoft:message-lock-lost"))
    async with Server(script) as server, await connect(server.connection_string) as connection:
        with pytest.raises(Refused) as caught:
            await (await connection.management("q")).renew_lock([TOKEN])
        assert caught.value.condition == "com.microsoft:message-lock-lost"


@pytest.mark.parametrize(
    ("status", "condition", "may_be_done"),
    [(408, "com.microsoft:timeout", True), (408, None, True), (500, None, False), (410, "amqp:not-found", False)],
)
async def test_only_the_services_own_time_out_leaves_a_request_open(
    status: int, condition: str | None, may_be_done: bool
) -> None:
    """The service stopped waiting: it may schedule the message a moment later."""
    script = Script(manage=lambda operation, body: (status, None, condition))
    async with Server(script) as server, await connect(server.connection_string) as connection:
        with pytest.raises(Refused) as caught:
            await (await connection.management("q")).schedule([Scheduled("id", b"one")])
        assert caught.value.outcome_unknown == may_be_done


async def test_a_receiver_renews_its_locks() -> None:
    """The lock token on the link is little-endian, in `$management` big-endian."""
    recorder = Recorder(renew_lock={"expirations": Array([Timestamp(7)])})
    async with Server(Script(manage=recorder)) as server, await connect(server.connection_string) as connection:
        server.put("q", b"\x00\x53\x77\x40")
        receiver = await connection.receiver("q")
        messages = await receiver.receive(1, timeout_s=5)
        assert await receiver.renew(messages) == [7]
        assert recorder.asked[0][1] == {"lock-tokens": [uuid.UUID(bytes_le=messages[0].tag)]}


async def test_requests_under_way_together_get_their_own_answers() -> None:
    """Answers are matched by correlation id, not by their order."""
    script = Script(manage=lambda operation, body: (200, {"echo": body["n"]}, None))
    async with Server(script) as server, await connect(server.connection_string) as connection:
        management = await connection.management("q")
        assert management is await connection.management("q")
        answers = await asyncio.gather(*(management.request("x", {"n": n}, 5) for n in range(50)))
        assert [answer["echo"] for answer in answers] == list(range(50))


async def test_one_token_serves_all_links_of_an_audience() -> None:
    """Each token costs a round trip, and links to one entity are opened often."""
    async with Server() as server, await connect(server.connection_string) as connection:
        await asyncio.gather(connection.sender("q"), connection.receiver("q"), connection.management("q"))
        await connection.sender("other")
        assert [audience.rpartition("/")[2] for audience, _, _ in server.tokens] == ["q", "other"]


async def test_the_last_link_of_an_audience_takes_its_token_with_it() -> None:
    """Tokens are not renewed for entities without links."""
    async with Server() as server, await connect(server.connection_string) as connection:
        first, second = await connection.sender("q"), await connection.sender("q")
        await first.close()
        assert len(connection._tokens._renewals) == 1
        await second.close()
        assert connection._tokens._renewals == {}
        await connection.sender("q")
        assert len(server.tokens) == 2


async def test_a_token_is_renewed_before_it_expires() -> None:
    """The peer drops the links of an expired token."""
    credential = SasKey("k", "secret", lifetime_s=1.9)
    async with Server() as server, await connect(server.connection_string, credential=credential) as connection:
        sender = await connection.sender("q")
        await server.until(lambda: len(server.tokens) >= 2)
        assert sender.over is None


@pytest.mark.parametrize(
    ("status", "condition"), [(401, "amqp:unauthorized-access"), (404, "amqp:not-found"), (500, "status:500")]
)
async def test_a_token_that_the_peer_does_not_take_refuses_the_link(status: int, condition: str) -> None:
    """The same condition as when the link itself is refused: the caller need not know where it was said."""
    async with Server(Script(cbs_status=status)) as server, await connect(server.connection_string) as connection:
        with pytest.raises(Refused) as caught:
            await connection.sender("q")
        assert caught.value.condition == condition
        assert "s3cr3t" not in str(caught.value)
        server.script.cbs_status = 202
        await connection.sender("q")


async def test_links_that_left_a_request_unanswered_get_no_later_one() -> None:
    """The peer may have lost its end of these links only. Requests of other callers end on them in their own time."""
    silent_on = {"schedule-message", "cancel-scheduled-message"}

    def manage(operation: str, body: Any) -> tuple[int, Any, str | None] | None:
        return None if operation.rpartition(":")[2] in silent_on else (200, {}, None)

    async with Server(Script(manage=manage)) as server, await connect(server.connection_string) as connection:
        silent = await connection.management("q")
        slow = asyncio.create_task(silent.cancel([1], timeout_s=10, silence_s=2.0))
        with silent_peer():
            await silent.schedule([Scheduled("id", b"one")], timeout_s=5, silence_s=0.2)
        assert silent.over is None and not slow.done()
        other = await connection.management("q")
        assert other is not silent
        assert await other.peek(1, 10) == []
        with silent_peer():
            await slow
        assert silent.over is not None, "the last request has left the links"
        assert await connection.management("q") is other
        assert len(connection._tokens._renewals) == 1, "the token belongs to the new links"


@pytest.mark.parametrize("silence_s", [0.2, None])
async def test_links_without_credit_get_no_later_request(
    silence_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was not sent, and may be repeated; on the same links it would wait for credit again."""
    # Shorter than the second look of a late timer, which leaves out the time before it: a busy machine has late timers.
    monkeypatch.setattr(patience, "LINK_SILENCE_S", times.AGAIN_S - 0.01)
    timeout_s = 0.5 if silence_s is None else 10
    script = Script(credits={"q/$management": 0})
    async with Server(script) as server, await connect(server.connection_string) as connection:
        silent = await connection.management("q")
        with pytest.raises(Timeout) as caught:
            await silent.schedule([Scheduled("id", b"one")], timeout_s=timeout_s, silence_s=silence_s)
        assert caught.value.silence.is_too_long == (silence_s is not None) and not caught.value.outcome_unknown
        assert silent.over is not None, "no other request is on the links"
        script.credits.clear()
        await (await connection.management("q")).schedule([Scheduled("id", b"one")], timeout_s=5)


async def test_silent_links_are_left_when_all_their_callers_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers with time limits of their own cancel their requests. The silence is noticed when none is under way: each
    caller would leave two links, a session and a user of the token behind."""
    monkeypatch.setattr(patience, "LINK_SILENCE_S", 0.2)
    async with Server() as server, await connect(server.connection_string) as connection:
        silent = await connection.management("q")
        monkeypatch.setattr(server.peers[0], "_on_delivery", lambda event: None)
        async with asyncio.timeout(10):
            while not silent.is_silent:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await silent.cancel([1], silence_s=0.3)
                await asyncio.sleep(0.1)
        await asyncio.sleep(0)
        assert silent.over is not None
        assert not connection.has_links


async def test_peer_silent_on_cbs_costs_the_silence_only() -> None:
    """A half-dead namespace shows itself in this way."""
    server = Server(Script(cbs_status=None))
    async with server, await connect(server.connection_string, silence_s=0.2) as connection:
        with pytest.raises(Timeout, match="time was over"):
            await connection.sender("q", timeout_s=0.05)
        with pytest.raises(Timeout, match="nothing was heard"):
            await connection.sender("q", timeout_s=5)
        server.script.cbs_status = 202
        await connection.sender("q", timeout_s=5)


async def test_a_refused_link_is_refused_with_its_condition() -> None:
    """Attach without a terminus, then detach with the reason."""
    script = Script(refuse={"q": Error("amqp:not-found", "no such entity"), "q/$management": Error("amqp:x", None)})
    async with Server(script) as server, await connect(server.connection_string) as connection:
        for attempt in (connection.sender("q"), connection.receiver("q")):
            with pytest.raises(Refused) as caught:
                await attempt
            assert (caught.value.condition, caught.value.description) == ("amqp:not-found", "no such entity")
        with pytest.raises(Refused, match="amqp:x"):
            await connection.management("q")
        assert connection._tokens._users == {}, "a link that was refused holds no token"
        await connection.sender("other")
