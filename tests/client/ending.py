"""A program that uses a sync client and ends without closing it.

    python -m tests.client.ending HOW PRIMARY SECONDARY FOLDER

It prints the time at which its main ended. The exit code is 7.
"""

from __future__ import annotations

import atexit
import logging
import sys
import time
from typing import Any

from azure.servicebus import ServiceBusMessage

EARLY: list[Any] = []
"Functions that were registered before Pairbus was imported, and so run after its own."


@atexit.register
def _early() -> None:
    for function in EARLY:
        function()


from pairbus import PairedServiceBusClient  # noqa: E402

OPTIONS: dict[str, dict[str, Any]] = {
    "syphon": {"enable_syphon": True},
    "listener": {"on_event": lambda event: None},
    "spool": {"spool": True},
    "spooled": {"spool": True},
    "atexit spooling": {"spool": True},
}


def main(how: str, primary: str, secondary: str, folder: str) -> None:
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # keeps warnings off standard error
    options = {
        "create_backlog_queues": False,
        "primary_name": "stage",
        "failover_interval": 0,
        "backlog_queue_count": 2,
        **OPTIONS.get(how, {}),
    }
    if options.pop("spool", False):
        options["spool_dir"] = folder
    client = PairedServiceBusClient.from_connection_strings(primary, secondary, **options)
    sender = client.get_queue_sender("orders")

    def send(name: str) -> None:
        sender.send_messages(ServiceBusMessage(name, message_id=name), timeout=10)

    if how == "atexit first":
        atexit.register(send, "last")
    elif how == "atexit early":
        send("first")
        EARLY.append(lambda: send("last"))
    elif how.startswith("atexit"):
        send("first")
        atexit.register(send, "last")
    else:
        send("first")
    print(time.time(), flush=True)
    sys.exit(7)


if __name__ == "__main__":
    main(*sys.argv[1:])
