"""Verbs of the explorer on a real broker."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.backlog.envelope import ORIGINAL_ID
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.errors import ConfigError, EntityError, EntityNotFound
from pairbus.explorer import (
    Address,
    Choice,
    Progress,
    cancel,
    described,
    encoded,
    extent,
    grouped,
    move,
    peek,
    purge,
    receive,
    receive_and_delete,
    redrive,
    resend,
    scheduled,
    search,
    send,
    sequence_number_of,
    session_state,
    sessions,
    taking,
    walk,
)
from pairbus.explorer.taking import Acted, Taking
from pairbus.proxy import Proxy
from pairbus.testing import BrokerThread
from pairbus.transport import Carrier, Endpoint, ReceivedMessage
from tests.explorer.world import LETTERS, MEETINGS, ORDERS, OTHER, REMEMBERING, World, message, world


def numbered(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


def original_ids(payloads: list[bytes]) -> list[str]:
    """Read the ids that messages had before they were sent again."""
    return [described(one)["application_properties"][ORIGINAL_ID]["value"] for one in payloads]


# ── looking ──


async def test_peek_begins_at_any_sequence_number() -> None:
    """Browsing goes on where a page ended, and skips numbers without a message."""
    async with world() as w:
        await w.put(*(message(number) for number in range(5)))
        numbers = [sequence_number_of(one) or 0 for one in await peek(w.carrier, ORDERS)]
        assert await extent(w.carrier, ORDERS) == (numbers[0], numbers[-1])
        got = await peek(w.carrier, ORDERS, numbers[2], 2)
        assert [described(one)["message_id"] for one in got] == numbered(2, 3)
        assert await extent(w.carrier, OTHER) is None


async def test_walk_yields_everything_up_to_the_last_number() -> None:
    """The service gives at most 250 messages at once."""
    async with world() as w:
        await w.put(*(message(number) for number in range(600)))
        pages = [page async for page in walk(w.carrier, ORDERS)]
        assert [len(page) for page in pages] == [250, 250, 100]
        last = sequence_number_of(pages[1][0])
        assert sum([len(page) async for page in walk(w.carrier, ORDERS, last=last)]) == 251


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (Choice(where="number > 7"), (8, 9)),
        (Choice(where="sys.MessageId = 'm3'"), (3,)),
        (Choice(text="BODY 4"), (4,)),
        (Choice(text="m5"), (5,)),
        (Choice(where="number < 3", text="body 2"), (2,)),
        (Choice(where="number LIKE 'x'"), ()),
    ],
    ids=["where", "system property", "body", "id", "both", "not a text"],
)
async def test_search_looks_into_bodies_and_properties(choice: Choice, found: tuple[int, ...]) -> None:
    """Text in any case, and the filters of rules."""
    async with world() as w:
        await w.put(*(message(number) for number in range(10)))
        pages = [page async for page in search(w.carrier, ORDERS, choice)]
        assert [described(one)["message_id"] for page in pages for one in page] == numbered(*found)


@pytest.mark.parametrize("condition", ["where", "text", "session", "numbers", "reasons"])
def test_empty_condition_is_an_error_and_not_everything(condition: str) -> None:
    """A purge whose condition is a variable that nobody set must not delete the queue."""
    conditions: dict[str, Any] = {condition: () if condition in {"numbers", "reasons"} else ""}
    with pytest.raises(ConfigError, match=f"{condition} is empty"):
        Choice(**conditions)


async def test_missing_entity_is_named() -> None:
    """A user's slip is answered in the user's words."""
    async with world() as w:
        with pytest.raises(EntityNotFound, match="nowhere does not exist in"):
            await peek(w.carrier, Address("nowhere"))
        with pytest.raises(EntityNotFound, match="nowhere does not exist in"):
            await send(w.carrier, "nowhere", [message(1)])


# ── taking ──


async def test_receive_completes_after_the_messages_were_taken() -> None:
    """An error of the taker gives the messages back."""
    async with world() as w:
        await w.put(*(message(number) for number in range(5)))
        taken: list[bytes] = []

        async def take(payloads: list[bytes]) -> None:
            taken.extend(payloads)

        async def fail(payloads: list[bytes]) -> None:
            raise EntityError("no room")

        with pytest.raises(EntityError, match="no room"):
            await receive(w.carrier, ORDERS, fail, limit=2)
        assert await w.receivable() == numbered(0, 1, 2, 3, 4)
        await receive(w.carrier, ORDERS, take, limit=2)
        assert len(taken) == 2
        assert await w.receivable() == numbered(2, 3, 4)


async def test_receive_and_delete_takes_no_more_than_asked() -> None:
    """Messages beyond the limit would be deleted without having been shown."""
    async with world() as w:
        await w.put(*(message(number) for number in range(300)))
        taken: list[bytes] = []

        async def take(payloads: list[bytes]) -> None:
            taken.extend(payloads)

        await receive_and_delete(w.carrier, ORDERS, take, limit=150)
        assert len(taken) == 150
        assert len(await w.ids()) == 150


async def test_move_takes_chosen_messages_to_another_namespace() -> None:
    """The others keep their place, their lock is given back and no delivery is counted."""
    async with world() as w:
        await w.put(*(message(number) for number in range(500)))
        progress = await move(
            w.carrier, ORDERS, w.elsewhere, "orders", choice=Choice(where="number >= 100 AND number < 104")
        )
        assert (progress.done, progress.left, progress.total) == (4, 0, 4)
        assert await w.ids(carrier=w.elsewhere) == numbered(100, 101, 102, 103)
        assert len(await w.receivable()) == 496
        assert {described(one)["delivery_count"] for one in await peek(w.carrier, ORDERS, count=500)} == {0}


async def test_moved_message_keeps_every_byte_of_its_sender() -> None:
    """Only annotations of the service are its own."""
    async with world() as w:
        sent = message(1, b"\xff\x00", application={"a": 1.5}, group_id=None, subject="s")
        await w.put(sent)
        await move(w.carrier, ORDERS, w.carrier, "other")
        [got] = await peek(w.carrier, OTHER)
        assert got.endswith(sent)


async def test_move_onto_itself_is_refused() -> None:
    """A move onto itself would never end."""
    async with world() as w:
        with pytest.raises(ConfigError, match="both source and destination"):
            await move(w.carrier, ORDERS, w.carrier, "Orders")


@pytest.mark.parametrize(
    ("address", "path", "hint"),
    [
        (LETTERS, "Orders", "`pairbus redrive` sends dead letters back"),
        (
            Address("events/Subscriptions/all", is_dead_letter=True),
            "events",
            "`pairbus redrive` sends dead letters back",
        ),
        (Address("events/Subscriptions/all"), "events", "the messages would come back"),
    ],
    ids=["queue", "subscription", "messages of a subscription"],
)
async def test_move_back_to_the_own_entity_is_refused(address: Address, path: str, hint: str) -> None:
    """An entity that detects duplicates remembers the ids: it would drop the copies, and the originals be completed."""
    async with world() as w:
        with pytest.raises(ConfigError, match=hint):
            await move(w.carrier, address, w.carrier, path)


async def test_move_to_a_missing_entity_gives_everything_back() -> None:
    """A misspelt destination must not lose a message."""
    async with world() as w:
        await w.put(*(message(number) for number in range(3)))
        with pytest.raises(EntityNotFound):
            await move(w.carrier, ORDERS, w.carrier, "nowhere")
        assert await w.receivable() == numbered(0, 1, 2)


async def test_cancelled_move_leaves_nothing_locked_and_loses_nothing() -> None:
    """A batch is brought to its end; everything else goes back at once."""
    async with world() as w:
        total = 2_000
        await w.put(*(message(number) for number in range(total)))
        progress = Progress()
        begun = asyncio.Event()
        progress.tell = lambda _: begun.set()
        task = asyncio.create_task(move(w.carrier, ORDERS, w.carrier, "other", progress=progress))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        moved, left = await w.ids(OTHER), await w.receivable()
        assert 0 < len(moved) < total
        assert sorted(moved + left) == sorted(numbered(*range(total)))
        await move(w.carrier, ORDERS, w.carrier, "other")
        assert sorted(await w.ids(OTHER)) == sorted(numbered(*range(total)))


async def test_sessions_are_moved_one_after_another() -> None:
    """An entity that requires sessions gives messages only to the holder of one."""
    async with world() as w:
        await w.put(*(message(n, group_id=f"s{n % 3}") for n in range(30)), path="meetings")
        progress = await move(w.carrier, MEETINGS, w.carrier, "other", choice=Choice(where="number < 21"))
        assert (progress.done, progress.left) == (21, 0)
        assert sorted(await w.ids(MEETINGS)) == sorted(numbered(*range(21, 30)))
        await move(w.carrier, MEETINGS, w.carrier, "other", choice=Choice(session="s1"))
        assert sorted(await w.ids(MEETINGS)) == sorted(numbered(21, 23, 24, 26, 27, 29))


async def test_message_that_arrives_in_one_session_does_not_hide_the_next() -> None:
    """The new message stays, and ends the work on its session; the link of that session must not serve the next."""
    async with world() as w:
        await w.put(*(message(n, group_id=f"s{n // 2}") for n in range(6)), path="meetings")
        taken: list[str] = []

        async def act(messages: list[ReceivedMessage]) -> Acted:
            if not taken:
                await w.put(message(6, group_id="s0"), path="meetings")
            taken.extend(described(one.payload)["message_id"] for one in messages)
            return Acted(messages)

        progress = await Taking(w.carrier, MEETINGS, Choice(), act, Progress()).run()
        assert (progress.done, progress.left) == (6, 0)
        assert await w.ids(MEETINGS) == numbered(6)
        assert taken == numbered(*range(6))


async def test_locked_session_is_told() -> None:
    """Messages of the locked session are left, and the user learns why."""
    async with world() as w:
        await w.put(*(message(n, group_id=f"s{n % 2}") for n in range(4)), path="meetings")
        holder = await w.carrier.receiver("meetings", session="s0")
        progress = await purge(w.carrier, MEETINGS)
        await holder.close()
        assert (progress.done, progress.left) == (2, 2)
        assert progress.notes == ["session 's0' is locked by another receiver"]


async def test_purge_deletes_all_or_those_chosen() -> None:
    """Messages that were not chosen are left as they were."""
    async with world() as w:
        await w.put(*(message(number) for number in range(20)))
        progress = await purge(w.carrier, ORDERS, choice=Choice(where="number % 2 = 0"))
        assert (progress.done, progress.left) == (10, 0)
        assert await w.receivable() == numbered(*range(1, 20, 2))
        progress = await purge(w.carrier, ORDERS)
        assert (progress.done, progress.left) == (10, 0)
        assert await w.ids() == []


@pytest.mark.parametrize("behind_ms", [0, 60_000])
async def test_purge_leaves_messages_that_arrive_while_it_runs(behind_ms: int) -> None:
    """A purge of a large queue takes long, and live traffic goes on. The service decides by its own clock which
    messages are older, and the clock of the user's machine may be ahead of it."""
    with BrokerThread(now_ms=lambda: time.time_ns() // 1_000_000 - behind_ms) as broker:
        broker.create_queue("orders")
        late: list[str] = []

        def send_late(_: Progress) -> None:
            """Send a message with the SDK after the first step, while the verb waits for this call."""
            if late:
                return
            with (
                ServiceBusClient.from_connection_string(broker.connection_string()) as client,
                client.get_queue_sender("orders") as sender,
            ):
                late.append("late")
                sender.send_messages(ServiceBusMessage("live", message_id="late"))

        async with Carrier(broker.connection_string(), timeout_s=5.0) as carrier:
            for number in range(3):
                await send(carrier, "orders", [message(number)])
                broker.clock().advance(1)  # each message has a time of its own
            progress = await purge(carrier, ORDERS, progress=Progress(tell=send_late))
            assert (progress.done, progress.left) == (3, 0)
            assert [described(one)["message_id"] for one in await peek(carrier, ORDERS)] == ["late"]


async def test_purge_goes_on_when_the_namespace_was_away_for_a_moment() -> None:
    """A purge of a large queue takes long, and a namespace may be restarted meanwhile."""
    with BrokerThread() as broker:
        broker.create_queue("orders")
        outages = iter([{"for_s": 0.5}])

        def cut(_: Progress) -> None:
            for times in outages:
                broker.namespace().faults.add("refuse", **times)

        async with Carrier(broker.connection_string(), timeout_s=5.0) as carrier:
            for number in range(3):
                await send(carrier, "orders", [message(number)])
                broker.clock().advance(1)  # each message has a time of its own
            progress = await purge(carrier, ORDERS, progress=Progress(tell=cut))
            assert (progress.done, progress.left) == (3, 0)
            assert await peek(carrier, ORDERS) == []


async def test_purge_beside_scheduled_messages_deletes_the_others() -> None:
    """The time of a scheduled message says nothing about the messages that wait before it."""
    async with world() as w:
        await w.put(message(0), message(1))
        await w.put(encoded({"message_id": "later", "scheduled_enqueue_time": "2099-01-01T00:00:00Z"}))
        progress = await purge(w.carrier, ORDERS)
        assert (progress.done, progress.left) == (2, 0)
        assert await w.ids() == ["later"]


# ── single messages ──


async def test_message_is_edited_and_sent_again() -> None:
    """The original is gone, the copy has the changes, and all other fields are unchanged."""
    async with world() as w:
        await w.put(message(0), message(1, b"wrong", subject="s"), message(2))
        number = sequence_number_of((await peek(w.carrier, ORDERS))[1])
        assert number is not None
        await resend(w.carrier, ORDERS, number, {"body": "right"})
        shown = [described(one) for one in await peek(w.carrier, ORDERS)]
        assert [one["message_id"] for one in shown[:2]] == numbered(0, 2)
        assert (shown[2]["body"], shown[2]["subject"]) == ("right", "s")
        assert shown[2]["application_properties"] == {
            "number": {"type": "long", "value": "1"},
            ORIGINAL_ID: {"type": "string", "value": "m1"},
        }
        with pytest.raises(EntityNotFound, match="no message with the sequence number"):
            await resend(w.carrier, ORDERS, number, {})


@pytest.mark.parametrize("state", ["active", "dead-lettered", "deferred", "scheduled"])
async def test_copy_is_not_dropped_as_a_duplicate_of_its_original(state: str) -> None:
    """An entity that remembers the id would accept the copy and drop it; the original would then be completed."""
    async with world() as w:
        later = {"scheduled_enqueue_time": "2090-01-01T00:00:00Z"} if state == "scheduled" else {}
        await w.put(encoded({"message_id": "m0", "body": "wrong", **later}), path="remembering")
        if state == "dead-lettered":
            await w.dead_letter(1, "Poison", REMEMBERING)
        if state == "deferred":
            receiver = await w.carrier.receiver("remembering")
            await receiver.defer(await receiver.receive(1, 5.0))
            await receiver.close()
        source = Address("remembering", is_dead_letter=state == "dead-lettered")
        [original] = await peek(w.carrier, source)
        await resend(w.carrier, source, sequence_number_of(original) or 0, {"body": "right", "message_id": "m0"})
        shown = [described(one) for one in await peek(w.carrier, REMEMBERING)]
        assert [one["body"] for one in shown] == ["right"]
        assert original_ids(await peek(w.carrier, REMEMBERING)) == ["m0"]


async def test_copy_gets_the_id_that_the_caller_sets() -> None:
    """Only the id of the original is not kept: a caller may choose any other."""
    async with world() as w:
        await w.put(message(0))
        number = sequence_number_of((await peek(w.carrier, ORDERS))[0]) or 0
        await resend(w.carrier, ORDERS, number, {"message_id": "chosen"})
        [copy] = [described(one) for one in await peek(w.carrier, ORDERS)]
        assert (copy["message_id"], set(copy["application_properties"])) == ("chosen", {"number"})


@pytest.mark.slow
async def test_largest_message_is_edited_and_sent_again() -> None:
    """A message of 100 MB takes seconds to arrive: the verb must not conclude that another receiver has it."""
    queue = QueueDescription("large", max_message_size_kb=102_400)
    async with Broker([NamespaceOptions("contoso", queues=(queue,))], data=None) as broker:
        carrier, large = Carrier(Endpoint.parse(broker.connection_string("contoso"))), Address("large")
        await send(carrier, "large", [message(1, b"x" * 100_000_000)])
        await resend(carrier, large, 1, {"subject": "again"})
        [copy] = await peek(carrier, large)
        assert (described(copy)["sequence_number"], described(copy)["subject"]) == (2, "again")
        await carrier.close()


@pytest.mark.slow
async def test_message_is_waited_for_while_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a thin line a message takes longer than the verb waits for one that does not come."""
    monkeypatch.setattr(taking, "CHOSEN_WAIT_S", 4.0)
    queue = QueueDescription("large", max_message_size_kb=102_400)
    async with Broker([NamespaceOptions("contoso", queues=(queue,))], data=None) as broker:
        direct = Endpoint.parse(broker.connection_string("contoso"))
        async with Carrier(direct) as carrier:
            await send(carrier, "large", [message(1, bytes(4_000_000))])
        async with (
            Proxy("127.0.0.1", direct.port) as proxy,
            Carrier(replace(direct, port=proxy.port)) as carrier,
        ):
            proxy.faults.add("bandwidth", bytes_per_s=800_000)
            assert (await purge(carrier, Address("large"), choice=Choice(numbers=[1]))).done == 1


async def test_copy_that_is_refused_leaves_the_original() -> None:
    """The original is completed only after the copy was accepted."""
    async with world() as w:
        await w.put(message(0))
        number = sequence_number_of((await peek(w.carrier, ORDERS))[0]) or 0
        with pytest.raises(EntityNotFound):
            await resend(w.carrier, ORDERS, number, {}, path="nowhere")
        assert await w.receivable() == numbered(0)


@pytest.mark.parametrize("keep_original", [True, False])
@pytest.mark.parametrize("state", ["deferred", "scheduled"])
async def test_refused_copy_names_its_destination_and_locks_nothing(state: str, keep_original: bool) -> None:
    """A deferred message is locked to be sent again: until its lock ended, nobody could receive it."""
    async with world() as w:
        later = {"scheduled_enqueue_time": "2090-01-01T00:00:00Z"} if state == "scheduled" else {}
        await w.put(encoded({"message_id": "m0", **later}))
        if state == "deferred":
            receiver = await w.carrier.receiver("orders")
            await receiver.defer(await receiver.receive(1, 5.0))
            await receiver.close()
        number = sequence_number_of((await peek(w.carrier, ORDERS))[0]) or 0
        with pytest.raises(EntityNotFound, match="nowhere does not exist in"):
            await resend(w.carrier, ORDERS, number, {}, path="nowhere", keep_original=keep_original)
        assert await w.ids() == numbered(0)
        if state == "deferred":
            [got] = await (await w.carrier.management("orders")).receive_deferred([number])
            assert got.lock_token is not None


async def test_deferred_and_scheduled_messages_are_sent_again() -> None:
    """Deferred and scheduled messages cannot be received from a link."""
    async with world() as w:
        await w.put(message(0))
        receiver = await w.carrier.receiver("orders")
        await receiver.defer(await receiver.receive(1, 5.0))
        await receiver.close()
        later = described(message(1)) | {"scheduled_enqueue_time": "2090-01-01T00:00:00Z"}
        await w.put(encoded(later))
        shown = {described(one)["state"]: described(one) for one in await peek(w.carrier, ORDERS)}
        assert set(shown) == {"deferred", "scheduled"}
        await resend(w.carrier, ORDERS, shown["deferred"]["sequence_number"], {"subject": "again"})
        change = {"scheduled_enqueue_time": None}
        await resend(w.carrier, ORDERS, shown["scheduled"]["sequence_number"], change)
        assert sorted(original_ids(await peek(w.carrier, ORDERS))) == numbered(0, 1)
        assert len(await w.receivable()) == 2


async def test_scheduled_messages_are_listed_and_cancelled() -> None:
    """Scheduled messages are cancelled by sequence number; the list has no waiting messages."""
    async with world() as w:
        times = [f"209{number}-01-01T00:00:00Z" for number in range(3)]
        await w.put(*(encoded({"message_id": f"t{n}", "scheduled_enqueue_time": at}) for n, at in enumerate(times)))
        await w.put(message(0))
        shown = [described(one) async for page in scheduled(w.carrier, ORDERS) for one in page]
        assert [one["scheduled_enqueue_time"] for one in shown] == [f"209{n}-01-01T00:00:00.000Z" for n in range(3)]
        await cancel(w.carrier, ORDERS, [one["sequence_number"] for one in shown[:2]])
        assert sorted(await w.ids()) == ["m0", "t2"]


async def test_states_of_sessions_are_shown() -> None:
    """Reading a state takes the session's lock for a moment; a session that another receiver has is told."""
    async with world() as w:
        await w.put(*(message(n, group_id=f"s{n}") for n in range(2)), path="meetings")
        connection = await w.carrier.connection()
        receiver = await connection.receiver("meetings", session="s1")
        management = await connection.management("meetings")
        await management.request("set-session-state", {"session-id": "s1", "session-state": b"half way"})
        shown = await sessions(w.carrier, MEETINGS)
        assert shown == [
            {"session_id": "s0", "is_locked": False, "state": None},
            {"session_id": "s1", "is_locked": True, "state": None},
        ]
        await receiver.close()
        found = await session_state(w.carrier, MEETINGS, "s1")
        assert found == {"is_locked": False, "state": "half way", "state_type": "text"}


# ── dead letters ──


async def _with_dead_letters(w: World) -> None:
    await w.put(*(message(number) for number in range(5)))
    await w.dead_letter(3, "Poison")
    await w.dead_letter(2, "Expired")


async def test_dead_letters_are_grouped_by_reason() -> None:
    """The largest group first, with a sample of its description."""
    async with world() as w:
        await _with_dead_letters(w)
        groups = await grouped(w.carrier, ORDERS)
        assert [(group.reason, group.count, group.description) for group in groups] == [
            ("Poison", 3, "because of Poison"),
            ("Expired", 2, "because of Expired"),
        ]


async def test_dead_letters_of_one_reason_are_sent_back() -> None:
    """Dead letters of other reasons stay where they are."""
    async with world() as w:
        await _with_dead_letters(w)
        progress = await redrive(w.carrier, ORDERS, reasons={"Expired"}, duplicate_window_s=0.0).run_once()
        assert progress.moved == 2
        assert await w.receivable() == numbered(3, 4)
        assert await w.receivable(LETTERS) == numbered(0, 1, 2)


async def test_dead_letter_is_sent_again_without_its_reason() -> None:
    """The next dead-lettering would otherwise show an old reason."""
    async with world() as w:
        await _with_dead_letters(w)
        number = sequence_number_of((await peek(w.carrier, LETTERS))[0]) or 0
        await resend(w.carrier, LETTERS, number, {"body": "repaired"})
        [shown] = [described(one) for one in await peek(w.carrier, ORDERS)]
        assert (shown["body"], set(shown["application_properties"])) == ("repaired", {"number", ORIGINAL_ID})
        assert len(await w.ids(LETTERS)) == 4
