"""The broker in this process, as tests and applications embed it, spoken to by our own client."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from pairbus.amqp.message import Message, Properties
from pairbus.auth import sas
from pairbus.auth.sas import SharedAccessKey
from pairbus.broker import ROOT_KEY_NAME, WELL_KNOWN_KEY, Broker, NamespaceOptions
from pairbus.broker.boxes.box import CHUNK_MAX
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.queue import Draft
from pairbus.broker.entities.session_service import STATE_SIZE_MAX
from pairbus.broker.monitoring import health
from pairbus.broker.refusal import Refusal
from pairbus.broker.store import Done
from pairbus.broker.store.memory import MemoryStore
from pairbus.broker.store.recovery import Recovery
from pairbus.broker.wire import server
from pairbus.errors import ConfigError, StoreError, StoreFull
from pairbus.transport import Endpoint, Plain, ReceivedMessage, Refused, SasSignature, Scheduled, connect
from pairbus.transport.tokens import cbs

MINUTE_MS = 60_000


class Clock:
    """The real time, moved forward by hand."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    queues = (
        QueueDescription("orders"),
        QueueDescription("passing", auto_delete_on_idle_ms=5 * MINUTE_MS),
    )
    keys = (SharedAccessKey("listener", "only listens", rights=frozenset({"Listen"})),)
    options = NamespaceOptions("contoso", queues=queues, keys=keys)
    async with Broker([options], data=None, now_ms=clock.now_ms) as running:
        yield running


def message(text: str, content_type: str | None = None) -> bytes:
    return Message(properties=Properties(message_id=text, content_type=content_type), data=[text.encode()]).encode()


async def test_the_broker_announces_that_it_hides_pings(broker: Broker) -> None:
    """A paired client asks with a ping message only where no receiver can ever get it."""
    async with await connect(broker.connection_string("contoso")) as connection:
        assert connection.peer_properties["com.pairbus:hides-pings"] is True
        assert connection.peer_properties["product"] == "pairbus"


async def test_a_ping_to_a_full_queue_is_refused_like_a_send(broker: Broker) -> None:
    """A ping is delivered exactly when a message would be, so that no client returns to a queue that is still full."""
    await broker.namespace("contoso").create_queue(QueueDescription("tiny", max_size_mb=1))
    async with await connect(broker.connection_string("contoso")) as connection:
        sender = await connection.sender("tiny")
        ping = message("ping", "application/vnd.ms-servicebus-ping")
        await sender.send(ping)
        filler = Message(properties=Properties(message_id="f"), data=[b"x" * 200_000]).encode()
        for _ in range(6):
            await sender.send(filler)
        with pytest.raises(Refused, match="maximum size") as refused:
            await sender.send(ping)
        assert refused.value.condition == "amqp:resource-limit-exceeded"


async def test_session_states_of_a_subscription_count_towards_its_topic(broker: Broker) -> None:
    """A right to listen must not be enough to fill the disk; a reset makes another topic, with the same limit."""
    namespace = broker.namespace("contoso")
    await namespace.create(TopicDescription("prices", max_size_mb=1))
    await namespace.create_subscription(SubscriptionDescription("prices", "all", requires_session=True), [])
    for _ in range(2):
        sessions = namespace.catalog.subscription("prices", "all").sessions
        assert sessions is not None
        holder = SimpleNamespace(session_lost=lambda: None)
        now, ignore = namespace.now_ms(), lambda _: None
        holds = [sessions.accept(str(number), holder, now) for number in range(5)]
        for hold in holds[:4]:
            assert hold is not None
            sessions.set_state(hold, bytes(STATE_SIZE_MAX), now, ignore)
        assert holds[4] is not None
        with pytest.raises(Refusal, match="'prices' has reached its maximum size of 1 MB"):
            sessions.set_state(holds[4], b"x", now, ignore)
        await namespace.reset()


async def test_a_delivery_settled_without_an_outcome_comes_again(broker: Broker) -> None:
    """Only `accepted` says that a message is done; silence must not lose it."""
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("orders")).send(message("once more"))
        receiver = await connection.receiver("orders")
        first = await receiver.receive(1, timeout_s=5)
        receiver.settle_nowait(first, b"\x40")
        again = await receiver.receive(1, timeout_s=5)
        assert Message.decode(again[0].payload).data == [b"once more"]


async def test_links_end_when_their_token_expires(broker: Broker) -> None:
    """A key that was taken back stops working at the latest when the last token made with it ends."""
    endpoint = Endpoint.parse(broker.connection_string("contoso"))
    token = sas.sign(endpoint.audience("orders"), ROOT_KEY_NAME, WELL_KNOWN_KEY, int(time.time()) + 4)
    async with await connect(endpoint, credential=SasSignature(token)) as connection:
        sender, receiver = await connection.sender("orders"), await connection.receiver("orders")
        await sender.send(message("in time"))
        assert len(await receiver.receive(1, timeout_s=5)) == 1
        with pytest.raises(Refused) as refused:
            await receiver.receive(1, timeout_s=10)
        assert refused.value.condition == "amqp:unauthorized-access"
        with pytest.raises(Refused, match="expired"):
            await sender.send(message("too late"), timeout_s=5)


async def test_a_fresh_token_for_the_same_audience_keeps_the_links(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewal: the newer token counts, and the older one's end passes unnoticed."""
    # Renewed long before its end: with the usual tenth of so short a life, a busy machine would come too late.
    monkeypatch.setattr(cbs, "RENEW_FROM", 0.3)
    monkeypatch.setattr(cbs, "RENEW_TO", 0.4)
    endpoint = Endpoint.parse(broker.connection_string("contoso"))
    tokens = iter([int(time.time()) + 5, int(time.time()) + 3600])

    class Renewing:
        """An azure token credential whose first token is short."""

        async def get_token(self, *scopes: str, **options: object) -> object:
            expires_s = next(tokens)
            text = sas.sign(endpoint.audience(""), ROOT_KEY_NAME, WELL_KNOWN_KEY, expires_s)
            return type("AccessToken", (), {"token": text, "expires_on": expires_s})()

    async with await connect(endpoint, credential=Renewing()) as connection:
        sender = await connection.sender("orders")
        until = time.monotonic() + 6
        sent = 0
        while time.monotonic() < until:
            await sender.send(message(f"m{sent}"))
            sent += 1
            await asyncio.sleep(0.05)
        assert next(tokens, None) is None


@pytest.mark.parametrize(("size", "fits"), [(250_000, True), (2_000_000, False)])
async def test_a_request_may_carry_the_largest_message_and_not_much_more(broker: Broker, size: int, fits: bool) -> None:
    """A message that is too large is refused by that name, not as an unknown request."""
    large = Message(properties=Properties(message_id="large"), data=[b"x" * size]).encode()
    async with await connect(broker.connection_string("contoso")) as connection:
        management = await connection.management("orders")
        scheduling = management.schedule([Scheduled("large", large)])
        if fits:
            assert len(await scheduling) == 1
        else:
            with pytest.raises(Refused) as refused:
                await scheduling
            assert refused.value.condition == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("suffix", ["", "/$DeadLetterQueue"])
async def test_a_queue_that_is_made_again_is_managed_over_the_old_link(broker: Broker, suffix: str) -> None:
    """Clients keep their management link for as long as the connection lives, and nothing tells them to drop it."""
    namespace = broker.namespace("contoso")
    async with await connect(broker.connection_string("contoso")) as connection:
        management = await connection.management(f"orders{suffix}")
        await (await connection.sender("orders")).send(message("of the first queue"))
        await namespace.delete_queue("orders")
        with pytest.raises(Refused, match="could not be found"):
            await management.peek(1, 10)
        await namespace.create_queue(QueueDescription("orders"))
        assert await management.peek(1, 10) == []
        sender, receiver = await connection.sender("orders"), await connection.receiver("orders")
        await sender.send(message("of the second queue"))
        await receiver.dead_letter(await receiver.receive(1, timeout_s=5), "why")
        assert len(await management.peek(1, 10)) == (1 if suffix else 0)


async def test_nothing_is_scheduled_into_dead_letters(broker: Broker) -> None:
    """Dead letters are no place to send to, and the caller did not ask for the queue itself."""
    async with await connect(broker.connection_string("contoso")) as connection:
        management = await connection.management("orders/$DeadLetterQueue")
        with pytest.raises(Refused) as refused:
            await management.schedule([Scheduled("m", message("m"))])
        assert refused.value.condition == "amqp:not-allowed"


async def test_a_key_serves_as_user_and_password(broker: Broker) -> None:
    """Generic AMQP clients know SASL PLAIN and no `$cbs`; a key's rights hold for them too."""
    parsed = Endpoint.parse(broker.connection_string("contoso"))
    endpoint = Endpoint(host=parsed.host, port=parsed.port, tls=False)
    async with await connect(endpoint, credential=Plain(ROOT_KEY_NAME, WELL_KNOWN_KEY)) as connection:
        await (await connection.sender("orders")).send(message("plain"))
    async with await connect(endpoint, credential=Plain("listener", "only listens")) as connection:
        assert len(await (await connection.receiver("orders")).receive(1, timeout_s=5)) == 1
        with pytest.raises(Refused, match="Send"):
            await connection.sender("orders")
    with pytest.raises(Refused):
        await connect(endpoint, credential=Plain(ROOT_KEY_NAME, "wrong"))


async def test_an_idle_queue_is_deleted_after_its_time_and_not_before(broker: Broker, clock: Clock) -> None:
    """A send in time keeps the queue; the queue goes when it is not used any more."""
    namespace = broker.namespace("contoso")
    clock.ahead_ms = 4 * MINUTE_MS
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("passing")).send(message("still used"))
    clock.ahead_ms = 8 * MINUTE_MS
    namespace.run_due()
    await asyncio.sleep(0)
    assert namespace.queue("passing") is not None
    clock.ahead_ms = 10 * MINUTE_MS
    namespace.run_due()
    for _ in range(500):
        if namespace.queue("passing") is None:
            break
        await asyncio.sleep(0.01)
    assert [info.description.path for info in namespace.queue_infos()] == ["orders"]


async def test_an_idle_queue_that_cannot_be_deleted_stays_and_is_usable(broker: Broker, clock: Clock) -> None:
    """A full disk must neither lose the queue nor make the broker try without a pause."""
    namespace = broker.namespace("contoso")
    assert isinstance(namespace.store, MemoryStore)
    clock.ahead_ms = 6 * MINUTE_MS
    namespace.store.fail_next(StoreFull("no space left"))
    namespace.run_due()
    with pytest.raises(StoreFull):
        await namespace.create_queue(QueueDescription("later"))  # is in the same group, whose commit fails
    queue = namespace.queue("passing")
    assert queue is not None and not queue.closed
    assert queue.idle_until_ms is not None and queue.idle_until_ms > clock.now_ms()
    async with await connect(broker.connection_string("contoso")) as connection:
        await (await connection.sender("passing")).send(message("still there"))


async def test_a_message_that_comes_as_a_queue_falls_idle_keeps_it(broker: Broker, clock: Clock) -> None:
    """Between the decision and the deletion lies a turn of the loop; a message accepted in it must not be lost."""
    namespace = broker.namespace("contoso")
    queue = namespace.queue("passing")
    assert queue is not None
    clock.ahead_ms = 6 * MINUTE_MS
    namespace.run_due()
    answered = asyncio.get_running_loop().create_future()
    queue.send([Draft(b"just in time")], clock.now_ms(), answered.set_result)
    assert await answered is None
    assert namespace.queue("passing") is queue and queue.active_count == 1


@pytest.mark.parametrize("change", ["updated", "sent to", "reset"])
async def test_queue_that_is_used_while_its_deletion_waits_stays(broker: Broker, clock: Clock, change: str) -> None:
    """The deletion of an idle queue waits for changes to the queue that are being committed. It was once decided before
    the wait: a queue was deleted right after an answered update, with the messages that it had accepted meanwhile."""
    namespace, loop = broker.namespace("contoso"), asyncio.get_running_loop()
    queue, commits = namespace.queue("passing"), asyncio.Queue[Done]()
    assert queue is not None
    clock.ahead_ms = 6 * MINUTE_MS
    hour = replace(queue.description, auto_delete_on_idle_ms=60 * MINUTE_MS)
    work = asyncio.create_task(namespace.reset() if change == "reset" else namespace.update_queue(hour))
    await asyncio.sleep(0)  # lets a reset end all faults, which would let the commit go on
    namespace.store.hindrance = lambda takes_room, done: commits.put_nowait(done)
    go_on = await commits.get()
    namespace.run_due()
    await asyncio.sleep(0)  # lets the deletion begin to wait
    answered = loop.create_future()
    if change == "sent to":
        queue.send([Draft(b"accepted")], clock.now_ms(), answered.set_result)
    namespace.store.hindrance = None
    go_on(None)
    await work
    await namespace.clock.advance(0)  # returns when no deletion is under way
    found = namespace.queue("passing")
    assert found is not None and not found.closed
    if change == "sent to":
        assert (await answered, found.active_count) == (None, 1)


async def test_a_start_that_fails_leaves_the_folder_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is free also when the disk fails in the middle of the recovery, which the test simulates."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=tmp_path):
        pass
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="input/output"):

        def fail(self: Recovery, entity_id: int) -> list[tuple[str, int]]:
            raise StoreError("input/output error")

        patch.setattr(Recovery, "remembered", fail)
        await Broker([options], data=tmp_path).start()
    async with Broker([options], data=tmp_path) as broker:
        assert broker.namespace("contoso").queue("orders") is not None


async def test_stopped_broker_leaves_due_messages_to_its_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that ends while the broker stops once set the timer again, and what fell due afterwards was read from
    a store that was closed, and reported as damaged."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=tmp_path) as broker:
        queue = broker.namespace("contoso").queue("orders")
        assert queue is not None
        now_ms = time.time_ns() // 1_000_000
        answered = asyncio.get_running_loop().create_future()
        queue.send([Draft(message("later"), scheduled_ms=now_ms + 300)], now_ms, answered.set_result)
    assert await answered is None
    await asyncio.sleep(0.4)
    assert caplog.messages == []
    async with Broker([options], data=tmp_path) as broker, await connect(broker.connection_string("contoso")) as again:
        receiver = await again.receiver("orders")
        assert len(await receiver.receive(1, timeout_s=5)) == 1


async def test_a_stop_does_not_wait_for_all_that_is_due(tmp_path: Path) -> None:
    """A million messages that fell due together are worked off in parts; a stop waits for the part under way."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    async with Broker([options], data=tmp_path) as broker:
        queue = broker.namespace("contoso").queue("orders")
        assert queue is not None
        answered = asyncio.get_running_loop().create_future()
        queue.send([Draft(b"", scheduled_ms=60_000) for _ in range(3 * CHUNK_MAX)], 0, answered.set_result)
        assert await answered is None
        queue.run_due(60_000)
        await broker.namespace("contoso").close()
    assert (queue.active_count, queue.scheduled_count) == (CHUNK_MAX, 2 * CHUNK_MAX)


async def test_a_change_that_comes_when_the_store_is_closed_is_refused(tmp_path: Path) -> None:
    """A request on an open connection may be read so late; its caller must not wait for a commit that never comes."""
    async with Broker([NamespaceOptions("contoso")], data=tmp_path) as broker:
        namespace = broker.namespace("contoso")
        await namespace.close()
        async with asyncio.timeout(5):
            with pytest.raises(StoreError, match="closed"):
                await namespace.create_queue(QueueDescription("late"))
    async with Broker([NamespaceOptions("contoso")], data=tmp_path) as broker:
        assert broker.namespace("contoso").queue("late") is None


async def test_half_a_request_does_not_keep_the_broker_from_stopping() -> None:
    broker = Broker([NamespaceOptions("contoso")], data=None)
    await broker.start()
    endpoint = Endpoint.parse(broker.connection_string("contoso"))
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    writer.write(b"PUT /orders HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n")
    assert b"100 Continue" in await reader.readline()
    async with asyncio.timeout(server.LAST_REQUESTS_S + 5):
        await broker.stop()
    writer.close()


async def test_connections_that_never_say_what_they_are_count_against_the_limit(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection holds a file of the process for as long as the broker waits for its first byte."""
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    endpoint = Endpoint.parse(broker.connection_string("contoso"))
    streams = [await asyncio.open_connection(endpoint.host, endpoint.port) for _ in range(4)]
    async with asyncio.timeout(5):
        assert await streams[-1][0].read() == b""
    assert not any(reader.at_eof() for reader, _ in streams[:-1])
    for _, writer in streams:
        writer.close()


async def test_a_change_goes_on_when_whoever_asked_for_it_is_cancelled(broker: Broker) -> None:
    """The write cannot be taken back: a queue that only the disk knows would turn up after a restart."""
    namespace = broker.namespace("contoso")
    creation = asyncio.create_task(namespace.create_queue(QueueDescription("orphan")))
    await asyncio.sleep(0)
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    await namespace.create_queue(QueueDescription("next"))
    assert namespace.queue("orphan") is not None


async def test_a_receiver_that_waits_keeps_its_queue(broker: Broker, clock: Clock) -> None:
    """A quiet queue with a waiting receiver has no traffic, and yet it is in use."""
    namespace = broker.namespace("contoso")
    async with await connect(broker.connection_string("contoso")) as connection:
        receiver = await connection.receiver("passing")
        assert await receiver.receive(1, timeout_s=0.05) == []
        clock.ahead_ms = 6 * MINUTE_MS
        namespace.run_due()
        await namespace.create_queue(QueueDescription("later"))  # commits after everything that run_due began
        assert namespace.queue("passing") is not None


async def test_receiver_of_a_subscription_keeps_the_topic(broker: Broker, clock: Clock) -> None:
    """While it waits with credit, and for the whole idle time after it has gone."""
    namespace = broker.namespace("contoso")
    await namespace.create(TopicDescription("news", auto_delete_on_idle_ms=5 * MINUTE_MS))
    await namespace.create(SubscriptionDescription("news", "all"))

    async def is_there_at(minutes: int) -> bool:
        clock.ahead_ms = minutes * MINUTE_MS
        await namespace.clock.advance(0)  # returns when all deletions are committed
        return "news" in namespace.catalog.topics

    async with await connect(broker.connection_string("contoso")) as connection:
        receiver = await connection.receiver("news/Subscriptions/all")
        assert await receiver.receive(1, timeout_s=0.05) == []
        assert await is_there_at(6)
        clock.ahead_ms = 10 * MINUTE_MS
        await receiver.close()
    assert await is_there_at(14)
    assert not await is_there_at(16)


async def test_a_receiver_that_never_settles_is_given_no_more_at_some_point(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session keeps deliveries that are not settled, up to a limit; settling makes room again."""
    monkeypatch.setattr("pairbus.broker.wire.outlet.UNSETTLED_MAX", 3)
    async with await connect(broker.connection_string("contoso")) as connection:
        sender = await connection.sender("orders")
        for number in range(5):
            await sender.send(message(f"m{number}"))
        receiver = await connection.receiver("orders")
        held: list[ReceivedMessage] = []
        async with asyncio.timeout(30):
            while len(held) < 3:
                held += await receiver.receive(5, timeout_s=5)
        assert await receiver.receive(5, timeout_s=0.2) == [] and len(held) == 3
        await receiver.complete(held)
        assert len(await receiver.receive(2, timeout_s=5)) >= 1


async def test_health_tells_whether_the_store_can_write_now(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A health request is enough: a full disk, and its end, are noticed without any send."""
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    namespace = broker.namespace("contoso")
    assert isinstance(namespace.store, MemoryStore)
    assert await asked(broker) == (200, "Service is healthy.")
    namespace.store.fail_next(StoreFull("no space is left"))
    assert await asked(broker) == (503, "no space is left")
    assert await asked(broker) == (200, "Service is healthy.")


async def test_health_asks_the_store_once_a_second_with_a_deadline(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred load balancers must not become a hundred writes, and a disk that hangs is an answer too."""
    monkeypatch.setattr(health, "WAIT_S", 0.2)
    asking: list[Done] = []
    monkeypatch.setattr(broker.namespace("contoso").store, "probe", asking.append)
    answers = await asyncio.gather(asked(broker), asked(broker))
    assert [(status, "has not written anything" in text) for status, text in answers] == [(503, True)] * 2
    asking[0](None)
    assert await asked(broker) == (200, "Service is healthy.")
    assert len(asking) == 1


async def asked(broker: Broker) -> tuple[int, str]:
    url = f"http://{Endpoint.parse(broker.connection_string('contoso')).url.split('/')[2]}/health"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return answer.status, (await answer.json())["message"]


@pytest.mark.parametrize(
    ("options", "host", "complaint"),
    [
        ([], "127.0.0.1", "at least one namespace"),
        ([NamespaceOptions("a"), NamespaceOptions("A")], "127.0.0.1", "one name"),
        ([NamespaceOptions("a")], "0.0.0.0", "key of your own"),
    ],
)
def test_a_broker_that_cannot_be_meant_is_refused(options: list[NamespaceOptions], host: str, complaint: str) -> None:
    """The broker refuses before it touches the disk or the network."""
    with pytest.raises(ConfigError, match=complaint):
        Broker(options, data=None, host=host)


def test_the_well_known_key_never_leaves_loopback() -> None:
    """A stranger who can reach the port could use that key, if it came from default, option, file or rotation."""
    own, known = SharedAccessKey(ROOT_KEY_NAME, "own"), SharedAccessKey("app", "own too", WELL_KNOWN_KEY)
    for key, keys in ((None, ()), (WELL_KNOWN_KEY, ()), ("own", (known,))):
        with pytest.raises(ConfigError, match="key of your own"):
            Broker([NamespaceOptions("a", keys=keys)], data=None, host="0.0.0.0", key=key)
    with pytest.raises(ConfigError, match="empty"):
        Broker([NamespaceOptions("a")], data=None, host="0.0.0.0", key="")
    Broker([NamespaceOptions("a", keys=(own,))], data=None, host="0.0.0.0")


@pytest.mark.parametrize("umask", [0o000, 0o077])
async def test_no_other_user_can_read_what_a_broker_writes(tmp_path: Path, umask: int) -> None:
    """The umask does not matter; files that an older release left open are closed. A shared folder keeps its mode."""
    data, meter = tmp_path / "data", tmp_path / "ledger"
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),))
    usual = os.umask(umask)
    try:
        for _ in range(2):
            async with (
                Broker([options], data=data, meter=meter) as broker,
                await connect(broker.connection_string("contoso")) as connection,
            ):
                sender = await connection.sender("orders")
                await sender.send(message("secret"))
                found = modes_in(data)
                assert {"messages.db", "messages.db-wal", "messages.db-shm", "commits", "lock"} <= found.keys()
                assert {"server.key", "server.pem", "ca.pem"} <= found.keys()
                assert set(found.values()) == {0o700, 0o600}, found
            assert set(modes_in(meter).values()) == {0o700, 0o600}
            for path in (data, meter, *data.rglob("*"), *meter.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
    finally:
        os.umask(usual)
    (data / "notes.txt").write_text("somebody's")
    async with Broker([options], data=data):
        found = modes_in(data)
    assert found.pop("data") == 0o755 and found.pop("notes.txt") & 0o044
    assert set(found.values()) == {0o700, 0o600}


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
