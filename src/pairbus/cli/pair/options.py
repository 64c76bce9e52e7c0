"""Options that name a pair, the same in all commands that take one."""

from __future__ import annotations

from typing import Annotated

import typer

from pairbus.pairing.options import RANGES

Primary = Annotated[
    str | None,
    typer.Option(envvar="PAIRBUS_PRIMARY", metavar="CS|HOST", help="Connection string of the primary, @FILE, or host."),
]
Secondary = Annotated[
    str | None,
    typer.Option(
        envvar="PAIRBUS_SECONDARY", metavar="CS|HOST", help="Connection string of the secondary, @FILE, or host."
    ),
]
PrimaryName = Annotated[
    str | None, typer.Option(metavar="NAME", help="First part of the backlog paths; from the primary's host.")
]
BacklogQueueCount = Annotated[
    int,
    typer.Option(
        min=1,
        max=int(RANGES["backlog_queue_count"].most),
        help="How many queues the clients use; others are shown as not in rotation.",
    ),
]
