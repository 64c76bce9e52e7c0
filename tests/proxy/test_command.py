"""`pairbus proxy` in a process of its own, switched by `pairbus fault`, with the genuine SDK as its client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError, ServiceBusServerBusyError

from pairbus.broker import Broker
from tests.faults.test_control import pairbus
from tests.proxy.conftest import OPTIONS, message

START_S = 30.0


class Running:
    """A proxy process, and what it has printed until it was ready."""

    def __init__(self, process: asyncio.subprocess.Process, lines: list[str]) -> None:
        self.process = process
        self.said = dict(line.split(" ", 1) for line in lines)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """(exit code, standard error)."""
        self.process.send_signal(number)
        _, err = await asyncio.wait_for(self.process.communicate(), START_S)
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@asynccontextmanager
async def proxy(*options: str, connection_string: str = "") -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pairbus", "proxy", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PAIRBUS_CONNECTION_STRING": connection_string},
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        async with asyncio.timeout(START_S):
            while (line := (await process.stdout.readline()).decode().rstrip("\n")) != "ready":
                assert line, "the proxy ended"
                lines.append(line)
        yield Running(process, lines)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def send(connection_string: str, **options: Any) -> None:
    async with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0, **options) as client,
        client.get_queue_sender("orders") as sender,
    ):
        await sender.send_messages(message("one"), timeout=5)


def read_one(host: str, port: int) -> bytes:
    with socket.create_connection((host, port), 5) as client:
        return client.recv(1)


async def test_proxy_plays_faults_until_it_is_stopped(tmp_path: Path) -> None:
    """The printed connection string is all that a client needs; the socket goes with the process."""
    control = tmp_path / "proxy.sock"
    async with Broker([OPTIONS], data=None) as broker:
        given = broker.connection_string("contoso")
        async with proxy("--control", str(control), connection_string=given) as running:
            through = running.said["connection_string"]
            assert running.said["address"] in through
            assert stat.S_IMODE(control.stat().st_mode) == 0o600
            await send(through)
            code, out, err = await pairbus("fault", "add", "throttle", "--count", "1", "--control", str(control))
            assert (code, out, err) == (0, "1\n", "")
            with pytest.raises(ServiceBusServerBusyError):
                await send(through)
            await send(through)
            await pairbus("fault", "add", "refuse", "--control", str(control))
            with pytest.raises(ServiceBusConnectionError):
                await send(through)
            code, out, _ = await pairbus("fault", "list", "--control", str(control))
            assert (code, "refuse" in out) == (0, True)
            assert (await pairbus("fault", "clear", "--control", str(control)))[1] == "1 cleared\n"
            await send(through)
            code, _, err = await pairbus("fault", "add", "disk-full", "--control", str(control))
            assert (code, "a proxy cannot play it: the disk is the target's" in err) == (1, True)
            assert await running.stop() == (0, "")
        assert not control.exists()
        assert broker.namespace("contoso").queue_info("orders").active == 3


async def test_proxy_ends_tls_and_shows_an_expired_certificate(tmp_path: Path) -> None:
    """The proxy prints what the SDK has to be told, and encrypts to the target again."""
    control = tmp_path / "proxy.sock"
    async with Broker([OPTIONS], data=None) as broker:
        given = broker.connection_string("contoso")
        options = ("--tls", str(tmp_path / "tls"), "--tls-to-target", "--ca-file", str(broker.ca_file))
        async with proxy(*options, "--control", str(control), connection_string=given) as running:
            assert "UseDevelopmentEmulator" not in running.said["connection_string"]
            trust = {
                "custom_endpoint_address": running.said["custom_endpoint_address"].split(" ")[0],
                "connection_verify": running.said["connection_verify"],
                "transport_type": TransportType.Amqp,
            }
            await send(running.said["connection_string"], **trust)
            await pairbus("fault", "add", "certificate", "--control", str(control))
            with pytest.raises(ServiceBusConnectionError, match="certificate has expired"):
                await send(running.said["connection_string"], **trust)
            await pairbus("fault", "clear", "--control", str(control))
            await send(running.said["connection_string"], **trust)
            assert await running.stop(signal.SIGINT) == (0, "")


async def test_target_that_is_away_is_told_once_a_client_comes() -> None:
    """The proxy lives on; without --control its socket is in a folder that goes with it."""
    async with proxy("--target", "127.0.0.1:1", "--pass-tls") as running:
        host, port = running.said["address"].split(":")
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await asyncio.to_thread(read_one, host, int(port))
        code, err = await running.stop()
    place, *warnings = err.splitlines()
    assert (code, place.startswith("control socket: ")) == (0, True)
    assert not Path(place.removeprefix("control socket: ")).parent.exists()
    assert [line.partition("target ")[2].partition(":")[0] for line in warnings] == ["127.0.0.1"] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no connection string: give --target or --connection-string CS"),
        (("--target", "example.com"), "--target 'example.com' names no port; for example example.com:5671"),
        (("--target", "a:1", "--listen", "here"), "--listen 'here': PORT or HOST:PORT is needed"),
        (("--target", "a:1", "--pass-tls", "--tls-to-target"), "choose one of the two"),
        (("--target", "a:1", "--log-level", "loud"), "--log-level is 'loud'"),
    ],
)
async def test_wrong_options_are_named(options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAIRBUS_CONNECTION_STRING", raising=False)
    code, _, err = await pairbus("proxy", *options)
    assert code in (1, 2)
    assert says in " ".join(err.split())
