"""Every condition at every place: our receivers raise the class and the text of the plain SDK's.

All run against the same scripted endpoint, which says no at the attach, in answers to settlements and on `$management`.
Conditions that may go away by themselves are left out: our receivers try again.
"""

from __future__ import annotations

from asyncio import Semaphore, gather
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue

from pairbus.amqp.message import Message
from pairbus.client.receiving.trouble import WAITED_OUT
from pairbus.pairing.policy import kind_of_condition
from tests.client.plain import Caller, Who
from tests.client.test_same_errors import CONDITIONS, SAYS
from tests.client.world import Stage
from tests.scripted import Reject
from tests.scripted.script import StepName
from tests.sdk.flavours import Flavour

MORE = (
    "com.microsoft:message-lock-lost",
    "com.microsoft:session-lock-lost",
    "com.microsoft:session-cannot-be-locked",
)
LASTING = [each for each in (*CONDITIONS, *MORE) if kind_of_condition(each) not in WAITED_OUT or each in MORE]
FEW = [*MORE, "amqp:not-found", "amqp:unauthorized-access", "com.microsoft:message-not-found"]
"For calls that take the same way as one that meets all conditions."
AT_ONCE = 9  # plain clients: the SDK gives a link a limited time to open, and one loop serves all of them
SETTLEMENTS = ("complete_message", "abandon_message", "defer_message", "dead_letter_message")
REQUESTS: dict[str, tuple[Any, ...]] = {
    "peek_messages": (),
    "receive_deferred_messages": (7,),
    "renew_message_lock": (),
}
STATES: dict[str, tuple[Any, ...]] = {"get_state": (), "set_state": (b"x",), "renew_lock": ()}


async def said(stage: Stage, who: Who, flavour: Flavour, queue: str, method: str, *args: Any) -> tuple[str, str]:
    """(class, text) of the error of one call."""
    caller = Caller(stage, who, flavour)
    options = {"session_id": "s"} if method in STATES else {}
    receiver = caller.client.get_queue_receiver(queue, **options)
    try:
        if method in SETTLEMENTS or method == "renew_message_lock":
            stage.primary.put(queue, Message(data=[b"x"]).encode())
            args = tuple(await caller.call(receiver.receive_messages, 1, 10))
        owner = receiver.session if method in STATES else receiver
        await caller.call(getattr(owner, method), *args)
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        if who == "plain":
            await caller.close()
    return "no error", ""


async def compare(
    stage: Stage, flavour: Flavour, step: StepName, conditions: list[str], method: str, *args: Any
) -> None:
    queues = {condition: f"q-{number}" for number, condition in enumerate(conditions)}
    for condition, queue in queues.items():
        stage.primary.on(step, Reject(condition, SAYS), path=queue)
    turns = Semaphore(AT_ONCE)

    async def in_turn(who: Who, queue: str) -> tuple[str, str]:
        async with turns:
            return await said(stage, who, flavour, queue, method, *args)

    async def of(who: Who) -> dict[str, tuple[str, str]]:
        return dict(zip(queues, await gather(*(in_turn(who, queue) for queue in queues.values())), strict=True))

    plain = await of("plain")
    assert "no error" not in dict(plain.values())
    assert await of("single") == plain


@pytest.mark.timed  # the plain SDK has a limit of its own for the opening of a link
async def test_refused_link_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    await compare(stage, flavour, "attach", LASTING, "receive_messages", 1, 15)


@pytest.mark.timed
@pytest.mark.parametrize("method", SETTLEMENTS)
async def test_refused_settlement_raises_the_error_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, method: str
) -> None:
    await compare(stage, flavour, "settlement", LASTING if method == SETTLEMENTS[0] else FEW, method)


@pytest.mark.timed
@pytest.mark.parametrize("method", REQUESTS)
async def test_refused_request_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, method: str) -> None:
    await compare(stage, flavour, "request", LASTING if method == "peek_messages" else FEW, method, *REQUESTS[method])


@pytest.mark.timed
@pytest.mark.parametrize("method", STATES)
async def test_refused_request_about_a_session_raises_the_error_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, method: str
) -> None:
    await compare(stage, flavour, "request", FEW, method, *STATES[method])


WRONG: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "count 0": ("receive_messages", {}, (0,)),
    "wait 0": ("receive_messages", {}, (1, 0)),
    "peek -1": ("peek_messages", {}, (-1,)),
    "no message": ("complete_message", {}, ("x",)),
    "receive and delete": ("complete_message", {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE}, ()),
    "peeked": ("complete_message", {}, ()),
    "peeked, renewed": ("renew_message_lock", {}, ()),
    "renewed in a session": ("renew_message_lock", {"session_id": "s"}, ()),
    "settled": ("abandon_message", {}, ()),
    "settled, renewed": ("renew_message_lock", {}, ()),
}
"Calls that no service sees: the method, options of the receiver, arguments."


async def refused(stage: Stage, who: Who, flavour: Flavour, case: str) -> tuple[str, str]:
    method, options, args = WRONG[case]
    caller = Caller(stage, who, flavour)
    receiver = caller.client.get_queue_receiver("orders", **options)
    try:
        if not args:
            stage.primary.put("orders", Message(data=[b"x"]).encode())
            is_peeked = case.startswith("peeked") or "session" in case
            taking = receiver.peek_messages if is_peeked else receiver.receive_messages
            [args] = [tuple(await caller.call(taking))]
        if case.startswith("settled"):
            await caller.call(receiver.complete_message, *args)
        await caller.call(getattr(receiver, method), *args[:2] if method == "receive_messages" else args[:1])
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        if who == "plain":
            await caller.close()
    return "no error", ""


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_call_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, case: str) -> None:
    plain = await refused(stage, "plain", flavour, case)
    assert plain[0] != "no error"
    assert await refused(stage, "single", flavour, case) == plain


CONSTRUCTED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "sub-queue of a session": ("queue", ("q",), {"session_id": "s", "sub_queue": "deadletter"}),
    "sub-queue of a session of a topic": ("subscription", ("t", "s"), {"session_id": "s", "sub_queue": "deadletter"}),
    "unknown sub-queue": ("queue", ("q",), {"sub_queue": "nowhere"}),
    "unknown mode": ("queue", ("q",), {"receive_mode": "perhaps"}),
    "negative prefetch": ("queue", ("q",), {"prefetch_count": -1}),
    "large prefetch": ("subscription", ("t", "s"), {"prefetch_count": 50_001}),
    "wait 0": ("queue", ("q",), {"max_wait_time": 0}),
    "renewer without locks": ("queue", ("q",), {"auto_lock_renewer": object(), "receive_mode": "receiveanddelete"}),
    "no queue": ("queue", ("",), {}),
    "no topic": ("subscription", ("", "s"), {}),
    "no subscription": ("subscription", ("t", ""), {}),
}


@pytest.mark.parametrize("case", CONSTRUCTED)
async def test_wrong_argument_raises_the_error_of_the_plain_sdk(stage: Stage, flavour: Flavour, case: str) -> None:
    kind, args, options = CONSTRUCTED[case]
    texts = []
    for who in ("plain", "single"):
        client = Caller(stage, who, flavour).client
        with pytest.raises(ValueError) as raised:
            getattr(client, f"get_{kind}_receiver")(*args, **options)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("kind", "args", "options", "path"),
    [
        ("queue", ("q",), {}, "q"),
        ("queue", ("q",), {"sub_queue": ServiceBusSubQueue.DEAD_LETTER}, "q/$DeadLetterQueue"),
        ("queue", ("q",), {"sub_queue": "transferdeadletter"}, "q/$Transfer/$DeadLetterQueue"),
        ("subscription", ("t", "s"), {}, "t/Subscriptions/s"),
        ("subscription", ("t", "s"), {"sub_queue": "deadletter"}, "t/Subscriptions/s/$DeadLetterQueue"),
    ],
)
async def test_attributes_are_those_of_the_plain_sdk(
    stage: Stage, flavour: Flavour, kind: str, args: tuple[str, ...], options: dict[str, Any], path: str
) -> None:
    for who in ("plain", "single"):
        client = Caller(stage, who, flavour).client
        receiver = getattr(client, f"get_{kind}_receiver")(*args, client_identifier="me", **options)
        assert (receiver.entity_path, receiver.client_identifier) == (path, "me")
        assert str(receiver) == f"Receiver client id: me, entity: {path}"
        assert receiver.fully_qualified_namespace == f"127.0.0.1:{stage.primary.port}"
        assert receiver.session is None
