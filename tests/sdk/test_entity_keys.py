"""Authorization rules of entities: keys that are good for one queue or topic alone."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import AccessRights, AuthorizationRule

from tests.brokers import BrokerProcess
from tests.sdk.flavours import Admin, Flavour, Sdk, receive_one, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


def rule(name: str, *rights: AccessRights, **keys: Any) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        key_name=name,
        rights=list(rights),
        **keys,
    )


async def test_rules_are_kept_with_their_keys(sdk_admin: Admin) -> None:
    """Keys that are not given are made; an update keeps them, replaces them or takes a rule away."""
    name = f"keys-{uuid.uuid4().hex[:8]}"
    rules = [
        rule("given", AccessRights.SEND, primary_key="first+/=", secondary_key="second"),
        rule("made", AccessRights.LISTEN),
        rule("all", AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN),
    ]
    for create, get in (
        (sdk_admin.calls.create_queue, sdk_admin.calls.get_queue),
        (sdk_admin.calls.create_topic, sdk_admin.calls.get_topic),
    ):
        path = f"{name}-{get.__name__}-{create is sdk_admin.calls.create_queue}-{uuid.uuid4().hex[:4]}"
        await create(path, authorization_rules=rules)
        found = {each.key_name: each for each in (await get(path)).authorization_rules or []}
        assert set(found) == {"given", "made", "all"}
        assert (found["given"].primary_key, found["given"].secondary_key) == ("first+/=", "second")
        assert found["given"].rights == ["Send"]
        assert sorted(map(str, found["all"].rights or [])) == ["Listen", "Manage", "Send"]
        assert found["made"].primary_key and found["made"].primary_key != found["made"].secondary_key
        assert found["made"].created_at_utc is not None
    queue = await sdk_admin.calls.create_queue(name, authorization_rules=rules)
    made = {each.key_name: each for each in queue.authorization_rules or []}["made"]
    queue.authorization_rules = [made, rule("given", AccessRights.LISTEN, primary_key="third", secondary_key="x")]
    await sdk_admin.calls.update_queue(queue)
    changed = {each.key_name: each for each in (await sdk_admin.calls.get_queue(name)).authorization_rules or []}
    assert set(changed) == {"made", "given"}
    assert changed["made"].primary_key == made.primary_key
    assert (changed["given"].primary_key, changed["given"].rights) == ("third", ["Listen"])


BAD_RULES: dict[str, list[AuthorizationRule]] = {
    "no right": [rule("k")],
    "no name": [rule("", AccessRights.SEND)],
    "twice": [rule("k", AccessRights.SEND), rule("k", AccessRights.LISTEN)],
    "thirteen": [rule(f"k{number}", AccessRights.SEND) for number in range(13)],
    "manage alone": [rule("k", AccessRights.MANAGE)],
    "a semicolon": [rule("k", AccessRights.SEND, primary_key="a;b", secondary_key="c")],
}


@pytest.mark.parametrize("rules", BAD_RULES.values(), ids=BAD_RULES.keys())
async def test_bad_rules_are_refused(sdk_admin: Admin, rules: list[AuthorizationRule]) -> None:
    """The text names the setting; nothing is created."""
    with pytest.raises(HttpResponseError, match="AuthorizationRules of") as refused:
        await sdk_admin.calls.create_queue(f"keys-{uuid.uuid4().hex[:8]}", authorization_rules=rules)
    assert refused.value.status_code == 400


async def test_key_of_a_queue_opens_this_queue_only(broker: BrokerProcess, sdk_admin: Admin, flavour: Flavour) -> None:
    """With its rights and no more: not its neighbour below the same name, not the namespace, not after removal."""
    name = f"keys-{uuid.uuid4().hex[:8]}"
    rules = [
        rule("sender", AccessRights.SEND, primary_key="send-1", secondary_key="send-2"),
        rule("listener", AccessRights.LISTEN, primary_key="listen-1", secondary_key="listen-2"),
    ]
    queue = await sdk_admin.calls.create_queue(name, authorization_rules=rules)
    await sdk_admin.calls.create_queue(f"{name}/below")
    sending = Sdk(flavour, broker.connection_string(key_name="sender", key="send-2"))
    listening = Sdk(flavour, broker.connection_string(key_name="listener", key="listen-1"))
    await (await sending.sender(name)).send_messages(ServiceBusMessage("hello"), timeout=10)
    receiver = await listening.receiver(name.upper())
    message = await receive_one(receiver)
    assert text(message) == "hello"
    await receiver.complete_message(message)
    assert await receiver.peek_messages(timeout=10) == []
    for refused in (sending.receiver(name), listening.sender(name)):
        with pytest.raises(ServiceBusAuthorizationError):
            await refused
    with pytest.raises(ServiceBusAuthenticationError):
        await sending.sender(f"{name}/below")
    admin = Admin(flavour, broker.connection_string(key_name="sender", key="send-1"), broker.ca_file)
    with pytest.raises(ClientAuthenticationError):
        await admin.list_queues()
    queue.authorization_rules = []
    await sdk_admin.calls.update_queue(queue)
    late = Sdk(flavour, broker.connection_string(key_name="sender", key="send-1"))
    with pytest.raises(ServiceBusAuthenticationError):
        await late.sender(name)
    for client in (sending, listening, late, admin):
        await client.close()
