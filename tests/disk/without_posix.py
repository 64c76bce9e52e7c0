"""A program in a Python that lacks what only POSIX systems have: it imports all of Pairbus, sends, spools and meters.

    python -m tests.disk.without_posix FOLDER

portalocker comes first: it knows a way to lock for every system, and keeps the one that it has found here.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import sys
from pathlib import Path
from typing import Any, cast

import portalocker  # noqa: F401

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")
OF_SPARK = ("pandas", "pyarrow", "pyspark")
OF_UVLOOP = ("pairbus.transport.uv_loop", "uvloop")  # `transport.loops` imports this module where uvloop is there
FUNCTIONS = ("posix_fallocate", "register_at_fork")


def take_away() -> None:
    """Make this process one without them; before anything of ours is imported."""
    for name in MODULES:
        sys.modules[name] = cast(Any, None)  # importing the module raises ImportError from now on
    for name in FUNCTIONS:
        if hasattr(os, name):
            delattr(os, name)


def import_everything() -> None:
    """Import every module of the package; without Spark those that need it are passed over."""
    import pairbus

    for module in pkgutil.walk_packages(pairbus.__path__, "pairbus."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name not in OF_SPARK and (module.name, error.name) != OF_UVLOOP:
                raise
        else:
            print(module.name)


async def send_and_spool(folder: Path) -> None:
    """Send to an embedded broker with stores on the disk, and once more when it is gone."""
    from azure.servicebus import ServiceBusMessage

    from pairbus.aio import PairedServiceBusClient
    from pairbus.broker import Broker, NamespaceOptions, QueueDescription
    from pairbus.ledger import read
    from pairbus.spool.files import look

    namespaces = [NamespaceOptions("contoso", queues=(QueueDescription("orders"),)), NamespaceOptions("fabrikam")]
    async with Broker(namespaces, data=folder / "data", meter=folder / "meter") as broker:
        client = PairedServiceBusClient.from_connection_strings(
            *map(broker.connection_string, ("contoso", "fabrikam")),
            spool_dir=folder / "spool",
            ledger=folder / "ledger",
            backlog_queue_count=1,
            failover_interval=0,
        )
        sender = client.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("to the primary"), timeout=20)
        async with client.get_queue_receiver("orders") as receiver:
            [message] = await receiver.receive_messages(max_wait_time=20)
            await receiver.complete_message(message)
            print("received:", str(message))
    await sender.send_messages(ServiceBusMessage("to the spool"), timeout=20)
    await client.close()
    _, [standing] = look(folder / "spool")
    print("spooled:", standing.waiting)
    print("metered:", *sorted({row.kind for place in ("ledger", "meter") for row in read(folder / place)}))


if __name__ == "__main__":
    take_away()
    import_everything()
    asyncio.run(send_and_spool(Path(sys.argv[1])))
