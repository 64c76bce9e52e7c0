"""The inside of the SDK that we use is still there; a new version that drops a piece fails here, by name."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageBatch, aio
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.sdk import PRIVATE, received
from pairbus.sdk.encoding import encode

CREDENTIAL = AzureNamedKeyCredential("name", "key")


def owners() -> dict[str, Any]:
    client = ServiceBusClient("contoso.servicebus.windows.net", CREDENTIAL)
    async_client = aio.ServiceBusClient("contoso.servicebus.windows.net", CREDENTIAL)
    return {
        "ServiceBusMessage": ServiceBusMessage("text"),
        "ServiceBusMessageBatch": ServiceBusMessageBatch(),
        "AmqpAnnotatedMessage": AmqpAnnotatedMessage(data_body=b""),
        "PyamqpTransport": PyamqpTransport,
        "ServiceBusError": ServiceBusError("text"),
        "ServiceBusClient": client,
        "ServiceBusClient (aio)": async_client,
        "Configuration": client._config,
        "ServiceBusReceivedMessage": received.peeked(encode(ServiceBusMessage("text")), None),
        "ServiceBusSession": client.get_queue_receiver("q", session_id="s").session,
        "ServiceBusSession (aio)": async_client.get_queue_receiver("q", session_id="s").session,
    }


@pytest.mark.parametrize(("owner", "names", "use"), PRIVATE)
async def test_every_private_attribute_is_there(owner: str, names: str, use: str) -> None:
    """A reader checks the list in `sdk/__init__.py` first when the SDK changes."""
    target = owners()[owner]
    missing = [name for name in names.split() if not hasattr(target, name)]
    assert not missing, f"{owner} of the SDK has no {missing} any more, needed for: {use}"


async def test_both_flavours_of_the_client_keep_the_same_things() -> None:
    """A row of the list for a sync class holds for the aio class too."""
    for kind in ("ServiceBusClient", "ServiceBusSession"):
        target = owners()[f"{kind} (aio)"]
        names = [name for owner, names, _ in PRIVATE if owner == kind for name in names.split()]
        assert names and all(hasattr(target, name) for name in names)
