"""The event loop of the paired client and of commands, seen from a process that forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("uvloop")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are looked up in /proc")

CONNECT = """
import asyncio, socket
from pathlib import Path
from pairbus.transport.loops import run

async def main(host):
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as sock:
        sock.setblocking(False)
        await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        await loop.sock_connect(sock, (host, server.getsockname()[1]))
    print(type(loop).__module__, *sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))

run(main("{host}"))
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_connecting_starts_no_threads_of_libuv(host: str) -> None:
    """A process that ends waits for these threads; a forked child does not have them, and may wait for ever."""
    command = [sys.executable, "-c", CONNECT.replace("{host}", host)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    module, *threads = done.stdout.split()
    assert module == "pairbus.transport.uv_loop"
    assert [name for name in threads if name.startswith("libuv")] == []
