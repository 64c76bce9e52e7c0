"""Access: keys, tokens, rights; and entities that are missing or switched off."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from tests.brokers import ROOT_KEY_NAME, BrokerProcess
from tests.conftest import MakeQueue
from tests.sdk.flavours import Admin, Flavour, Sdk, receive_one, text

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]
KEYS = {"sender": ["Send"], "listener": ["Listen"], "both": ["Send", "Listen"], ROOT_KEY_NAME: ["Manage"]}


def _key(name: str) -> str:
    return f"key-of-{name}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose configuration file names its queues and one key for each right."""
    config = {
        "UserConfig": {
            "Namespaces": [
                {
                    "Name": "contoso",
                    "Queues": [
                        {"Name": "orders", "Properties": {"LockDuration": "PT30S", "MaxDeliveryCount": 3}},
                        {"Name": "invoices", "Properties": {}},
                    ],
                    "Keys": [{"Name": name, "Key": _key(name), "Rights": rights} for name, rights in KEYS.items()],
                }
            ],
            "Logging": {"Type": "Console"},
        }
    }
    folder = tmp_path_factory.mktemp("secured") / "data"
    with BrokerProcess(folder, namespaces=["contoso"], config=config) as process:
        yield process


class Users:
    """Clients of the secured broker, each with a key or a token."""

    def __init__(self, flavour: Flavour, broker: BrokerProcess) -> None:
        self._flavour = flavour
        self._broker = broker
        self.opened: list[Sdk] = []

    def with_key(self, name: str, key: str | None = None) -> Sdk:
        text = self._broker.connection_string(key_name=name, key=key or _key(name))
        return self._keep(Sdk(self._flavour, text))

    def with_token(self, token: str) -> Sdk:
        return self._keep(Sdk.with_token(self._flavour, f"127.0.0.1:{self._broker.ports['contoso']}", token))

    def _keep(self, sdk: Sdk) -> Sdk:
        self.opened.append(sdk)
        return sdk


@pytest_asyncio.fixture(loop_scope="session")
async def users(flavour: Flavour, secured: BrokerProcess, closing: list[asyncio.Task[None]]) -> AsyncIterator[Users]:
    found = Users(flavour, secured)
    yield found
    closing.extend(asyncio.create_task(sdk.close()) for sdk in found.opened)


async def test_the_configuration_file_makes_queues(secured: BrokerProcess, flavour: Flavour) -> None:
    """The file has the format of Microsoft's emulator, and its settings are used."""
    admin = Admin(flavour, secured.connection_string(key_name=ROOT_KEY_NAME, key=_key(ROOT_KEY_NAME)), secured.ca_file)
    orders = await admin.calls.get_queue("orders")
    await admin.close()
    assert (orders.max_delivery_count, str(orders.lock_duration)) == (3, "0:00:30")


async def test_a_key_with_both_rights_sends_and_receives(users: Users) -> None:
    """The plain case of an application's key."""
    sender, receiver = await users.with_key("both").pair("orders")
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    message = await receive_one(receiver)
    await receiver.complete_message(message)
    assert text(message) == "hello"


async def test_a_send_key_sends_and_cannot_receive(users: Users) -> None:
    """A leaked producer key must not read."""
    client = users.with_key("sender")
    sender = await client.sender("invoices")
    await sender.send_messages(ServiceBusMessage("hello"), timeout=10)
    for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
        with pytest.raises(ServiceBusAuthorizationError):
            await client.receiver("invoices", sub_queue=sub_queue)


async def test_a_listen_key_cannot_send(users: Users) -> None:
    """A key with the claim Listen alone receives, and does not send."""
    client = users.with_key("listener")
    await client.receiver("invoices")
    with pytest.raises(ServiceBusAuthorizationError):
        await client.sender("invoices")


async def test_a_key_that_may_manage_may_do_everything(users: Users) -> None:
    """Manage implies Send and Listen."""
    sender, receiver = await users.with_key(ROOT_KEY_NAME).pair("orders")
    await sender.send_messages(ServiceBusMessage("root"), timeout=10)
    await receiver.complete_message(await receive_one(receiver))


@pytest.mark.parametrize(("name", "key"), [(ROOT_KEY_NAME, "wrong"), ("nobody", "wrong"), ("sender", _key("listener"))])
async def test_a_wrong_key_is_not_authenticated(users: Users, name: str, key: str) -> None:
    """A known name with another key, an unknown name, and the key of another name."""
    with pytest.raises(ServiceBusAuthenticationError):
        await users.with_key(name, key).sender("orders")


async def test_a_token_opens_what_it_names(users: Users, secured: BrokerProcess) -> None:
    """A token for one queue, and one for the namespace; the sub-queue belongs to its queue."""
    for scope in ("orders", ""):
        client = users.with_token(secured.token(scope, key=_key(ROOT_KEY_NAME)))
        await client.sender("orders")
        await client.receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)


async def test_an_expired_token_is_not_authenticated(users: Users, secured: BrokerProcess) -> None:
    """An hour is more than any tolerance for clocks."""
    token = secured.token("orders", key=_key(ROOT_KEY_NAME), lives_s=-3600)
    with pytest.raises(ServiceBusAuthenticationError):
        await users.with_token(token).sender("orders")


@pytest.mark.parametrize("scope", ["invoices", "order", "orders/deeper"])
async def test_a_token_for_another_entity_is_refused(users: Users, secured: BrokerProcess, scope: str) -> None:
    """A token for an entity whose name only begins like that of the queue is refused too."""
    token = secured.token(scope, key=_key(ROOT_KEY_NAME))
    with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
        await users.with_token(token).sender("orders")


@pytest.mark.parametrize(("field", "spoilt"), [("&sig=", "&sig=AA"), ("&se=", "&se=9")])
async def test_a_changed_token_is_not_authenticated(
    users: Users, secured: BrokerProcess, field: str, spoilt: str
) -> None:
    """The token has another signature, or a signature that was made for another expiry."""
    token = secured.token("orders", key=_key(ROOT_KEY_NAME)).replace(field, spoilt)
    with pytest.raises(ServiceBusAuthenticationError):
        await users.with_token(token).sender("orders")


@pytest.mark.parametrize(("name", "key"), [(ROOT_KEY_NAME, "wrong"), ("nobody", "wrong")])
async def test_administration_refuses_a_wrong_key(
    secured: BrokerProcess, flavour: Flavour, name: str, key: str
) -> None:
    """The same keys hold over HTTP."""
    admin = Admin(flavour, secured.connection_string(key_name=name, key=key), secured.ca_file)
    with pytest.raises(ClientAuthenticationError):
        await admin.calls.get_queue("orders")
    await admin.close()


async def test_administration_needs_the_right_to_manage(secured: BrokerProcess, flavour: Flavour) -> None:
    """A sender cannot create queues."""
    admin = Admin(flavour, secured.connection_string(key_name="sender", key=_key("sender")), secured.ca_file)
    with pytest.raises(HttpResponseError) as refused:
        await admin.calls.create_queue("mine")
    assert refused.value.status_code in (401, 403)
    await admin.close()


async def test_an_unknown_queue_is_not_found(sdk: Sdk) -> None:
    """For senders and receivers, and for the dead letters of a queue that does not exist: the token is refused. The
    text has the whole address without a port, as users of the service know it."""
    refused = [
        sdk.sender("no-such-queue"),
        sdk.receiver("no-such-queue"),
        sdk.receiver("no-such-queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    ]
    for error in await asyncio.gather(*refused, return_exceptions=True):
        assert isinstance(error, ServiceBusAuthenticationError)
        text = str(error.inner_exception)
        assert "Status code: 404" in text
        assert re.search(r"'sb://127\.0\.0\.1/no-such-queue\S*' could not be found\.", text)


async def test_namespaces_do_not_see_each_others_queues(
    broker: BrokerProcess, flavour: Flavour, queue_name: str
) -> None:
    """One process serves two namespaces that share no entities."""
    other = Sdk(flavour, broker.connection_string("fabrikam"))
    with pytest.raises(ServiceBusAuthenticationError) as refused:
        await other.sender(queue_name)
    assert "Status code: 404" in str(refused.value.inner_exception)
    await other.close()


SWITCHES = {
    EntityStatus.DISABLED: (False, False),
    EntityStatus.SEND_DISABLED: (False, True),
    EntityStatus.RECEIVE_DISABLED: (True, False),
}


@pytest.mark.parametrize("status", SWITCHES)
async def test_a_disabled_queue_refuses_what_is_switched_off(
    sdk: Sdk, make_queue: MakeQueue, status: EntityStatus
) -> None:
    """Each direction has its own switch; the other direction works."""
    queue = make_queue(status=status)
    sends, receives = SWITCHES[status]
    for allowed, attempt in ((sends, sdk.sender(queue)), (receives, sdk.receiver(queue))):
        if allowed:
            await attempt
        else:
            with pytest.raises(MessagingEntityDisabledError):
                await attempt


async def test_switching_a_queue_off_reaches_open_senders(
    sdk: Sdk, queue_name: str, admin: ServiceBusAdministrationClient
) -> None:
    """The next send on an open link is refused; switched on again, the same sender works and nothing was lost."""
    sender, receiver = await sdk.pair(queue_name)
    await sender.send_messages(ServiceBusMessage("before"), timeout=10)
    description = admin.get_queue(queue_name)
    description.status = EntityStatus.SEND_DISABLED
    admin.update_queue(description)
    with pytest.raises(MessagingEntityDisabledError):
        await sender.send_messages(ServiceBusMessage("during"), timeout=10)
    description.status = EntityStatus.ACTIVE
    admin.update_queue(description)
    await sender.send_messages(ServiceBusMessage("after"), timeout=10)
    for expected in ("before", "after"):
        message = await receive_one(receiver)
        assert text(message) == expected
        await receiver.complete_message(message)
