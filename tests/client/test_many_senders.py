"""A thousand senders of a thousand entities on one client: one connection or two, and little memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from tests.scripted.endpoint import ScriptedThread
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow

SENDERS = 1000
LIMIT_MB = 20.0

PROGRAM = """
import asyncio, gc, json, sys, threading
from azure.servicebus import ServiceBusMessage

flavour, count, primary, secondary = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
options = dict(create_backlog_queues=False, backlog_queue_count=2, primary_name="stage", failover_interval=0)

def rss_mb():
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 1e6

async def main():
    from pairbus.aio import PairedServiceBusClient
    client = PairedServiceBusClient.from_connection_strings(primary, secondary, **options)
    first = client.get_queue_sender("first")
    # As many sends at once as below: the memory of sends under way is not that of senders.
    await asyncio.gather(*(first.send_messages(ServiceBusMessage("x")) for _ in range(count)))
    before = rss_mb()
    senders = [client.get_queue_sender(f"orders-{number}") for number in range(count)]
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
    after = rss_mb()
    print(json.dumps([before, after]))
    await client.close()

def sync():
    from pairbus import PairedServiceBusClient
    client = PairedServiceBusClient.from_connection_strings(primary, secondary, **options)
    client.get_queue_sender("first").send_messages(ServiceBusMessage("x"))
    before = rss_mb()
    senders = [client.get_queue_sender(f"orders-{number}") for number in range(count)]
    for sender in senders:
        sender.send_messages(ServiceBusMessage("x"))
    after = rss_mb()
    print(json.dumps([before, after]))
    client.close()

asyncio.run(main()) if flavour == "aio" else sync()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
async def test_a_thousand_senders_share_two_connections_and_little_memory(flavour: Flavour) -> None:
    with ScriptedThread() as primary, ScriptedThread() as secondary:
        ends = primary.connection_string, secondary.connection_string
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, flavour, str(SENDERS), *ends),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said, errors = await asyncio.wait_for(process.communicate(), 90)
        assert process.returncode == 0 and not errors, errors.decode()
        before_mb, after_mb = json.loads(said)
        used = {step.connection for step in primary.steps}
        print(f"{flavour}: {before_mb:.1f} MB, {after_mb - before_mb:.1f} MB more, {len(used)} connections")
        assert len(used) <= 2
        assert all(len(primary.stored(f"orders-{number}")) == 1 for number in range(SENDERS))
        assert secondary.received == []
        assert after_mb - before_mb < LIMIT_MB
