"""The inside of the SDK that we use is still there; a new version that drops a piece fails here, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, aio
from azure.servicebus._pyamqp import cbs, management_operation
from azure.servicebus._pyamqp._connection import Connection
from azure.servicebus._pyamqp.aio import _cbs_async, _connection_async, _management_operation_async
from azure.servicebus._pyamqp.authentication import AccessToken, JWTTokenAuth
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus import sdk

CREDENTIAL = AzureNamedKeyCredential("name", "key")
SYNC = SimpleNamespace(
    Connection=Connection,
    CBSAuthenticator=cbs.CBSAuthenticator,
    ManagementOperation=management_operation.ManagementOperation,
)
AIO = SimpleNamespace(
    Connection=_connection_async.Connection,
    CBSAuthenticator=_cbs_async.CBSAuthenticator,
    ManagementOperation=_management_operation_async.ManagementOperation,
)


def owners() -> dict[str, Any]:
    client = ServiceBusClient("contoso.servicebus.windows.net", CREDENTIAL)
    async_client = aio.ServiceBusClient("contoso.servicebus.windows.net", CREDENTIAL)
    return {
        "ServiceBusMessageBatch": ServiceBusMessageBatch(),
        "AmqpAnnotatedMessage": AmqpAnnotatedMessage(data_body=b""),
        "PyamqpTransport": PyamqpTransport,
        "ServiceBusError": ServiceBusError("text"),
        "ServiceBusSender": client.get_queue_sender("q"),
        "ServiceBusClient": client,
        "ServiceBusClient (aio)": async_client,
        "Configuration": client._config,
        "ServiceBusReceiver": client.get_queue_receiver("q"),
        "ServiceBusReceiver (aio)": async_client.get_queue_receiver("q"),
    }


def amqp_owners(sender: Any, inside: Any) -> dict[str, Any]:
    """What a sender of one flavour talks with; nothing is opened."""
    sender._create_handler(JWTTokenAuth("", "", lambda: AccessToken("", 0)))
    connection = inside.Connection("amqp://127.0.0.1")
    session = connection.create_session()
    authenticator = inside.CBSAuthenticator(session, auth=sender._handler._auth, auth_timeout=1)
    return {
        "SendClient": sender._handler,
        "CBSAuthenticator": authenticator,
        "ManagementOperation": inside.ManagementOperation(session),
        "ManagementLink": authenticator._mgmt_link,
        "SenderLink": authenticator._mgmt_link._request_link,
        "Connection": connection,
    }


@pytest.mark.parametrize("owner", sdk.PRIVATE)
async def test_every_private_attribute_is_there(owner: str) -> None:
    """The list in `sdk/__init__.py` is what a reader checks first when the SDK changes."""
    everything = owners()
    clients = everything["ServiceBusClient"], everything["ServiceBusClient (aio)"]
    inside = [
        amqp_owners(client.get_queue_sender("q"), amqp) for client, amqp in zip(clients, (SYNC, AIO), strict=True)
    ]
    targets = [those[owner] for those in (everything, *inside) if owner in those]
    missing = [name for target in targets for name in sdk.PRIVATE[owner] if not hasattr(target, name)]
    assert targets and not missing, f"{owner} of the SDK has no {missing} any more"


async def test_both_flavours_of_the_client_keep_the_same_things() -> None:
    """One row of the list speaks for both."""
    client = owners()["ServiceBusClient (aio)"]
    assert all(hasattr(client, name) for name in sdk.PRIVATE["ServiceBusClient"])


def test_a_hung_call_can_be_freed_with_this_version() -> None:
    """Otherwise calls run in threads that are given up, which is slower."""
    assert sdk.CAN_BREAK
