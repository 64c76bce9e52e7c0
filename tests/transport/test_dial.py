"""A connected socket on its way to a transport: its descriptor is closed once, also when the peer hangs up at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import certifi
import pytest

from pairbus.amqp.settings import ConnectionSettings
from pairbus.errors import ConfigError
from pairbus.transport import loops
from pairbus.transport.connection.dial import _join, context_for, resolve
from pairbus.transport.connection.steps import Steps
from pairbus.transport.connection.wire import Wire
from pairbus.transport.tokens.credential import Anonymous

RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize("with_reset", [True, False])
@pytest.mark.parametrize("new_loop", [loops.new_event_loop, asyncio.new_event_loop])
def test_socket_of_a_peer_that_hangs_up_is_closed_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop], with_reset: bool
) -> None:
    """uvloop closes the descriptor of such a socket. A socket that keeps its number closes it again when it is
    collected, and by then another connection or a file has the number."""

    async def main() -> int:
        with socket.create_server(("127.0.0.1", 0)) as server:
            sock = socket.create_connection(server.getsockname())
            peer, _ = server.accept()
        if with_reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.close()
        sock.setblocking(False)
        wire = Wire(ConnectionSettings(container_id="a", hostname="b"), Anonymous().sasl("b"))
        await _join(wire, sock)
        await asyncio.wait_for(wire.ended, 5)
        return sock.fileno()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == -1


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
async def test_name_that_no_resolver_takes_is_no_such_host(host: str) -> None:
    """The caller handles an OSError, as for every other name that does not resolve."""
    with pytest.raises(socket.gaierror, match="no such host"):
        await resolve(host, 5671, Steps(host, 5.0))


def test_a_file_of_certificates_is_read_when_it_changes(tmp_path: Path) -> None:
    """Reading the usual one takes twenty milliseconds, in which the event loop stands: not for each connection."""
    file = tmp_path / "ca.pem"
    shutil.copy(certifi.where(), file)
    known = context_for(file)
    assert context_for(str(file)) is known
    os.utime(file, ns=(1, 1))
    assert context_for(file) is not known
    with pytest.raises(ConfigError, match="cannot read certificates"):
        context_for(tmp_path / "none.pem")
