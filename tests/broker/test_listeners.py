"""Extra ports of a namespace: .NET looks for the emulator's administration on 5300, web sockets are on 443."""

from __future__ import annotations

import asyncio
import socket
import urllib.request

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.errors import ConfigError
from pairbus.transport import Endpoint, connect

pytestmark = pytest.mark.asyncio


async def test_extra_ports_lead_to_the_same_namespace() -> None:
    """Each port takes HTTP, HTTPS and AMQP."""
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"),), extra_ports=(0, 0))
    async with Broker([options], data=None) as broker:
        own = broker.connection_string("contoso")
        number = int(own.split(";")[0].rpartition(":")[2])
        ports = broker.extra_ports("contoso")
        assert len({number, *ports}) == 3
        for port in ports:
            health = f"http://127.0.0.1:{port}/health"
            answer = await asyncio.to_thread(lambda url: urllib.request.urlopen(url, timeout=10).read(), health)
            assert b"healthy" in answer
            text = own.replace(f":{number};", f":{port};")
            async with ServiceBusAdministrationClient.from_connection_string(
                text, connection_verify=str(broker.ca_file), retry_total=0
            ) as admin:
                assert (await admin.get_queue("orders")).name == "orders"
            async with await connect(Endpoint.parse(text)) as connection:
                assert await connection.sender("orders")


async def test_a_taken_extra_port_keeps_the_broker_from_starting() -> None:
    """The broker's own port is free again at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
        reserved.close()
        options = NamespaceOptions("contoso", port, extra_ports=(taken.getsockname()[1],))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken.getsockname()[1]}"):
            await Broker([options], data=None).start()
        async with Broker([NamespaceOptions("contoso", port)], data=None) as broker:
            assert f":{port};" in broker.connection_string("contoso")
