"""`pairbus message`: look at messages, send, receive, export, import, move and delete them, on the broker or on Azure.

Imports of the network are in the functions: they take a third of a second, which other commands should not pay.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from pairbus.cli.admin.connection import KEPT_OFF
from pairbus.cli.messages import (
    files as message_files,
)
from pairbus.cli.messages import (
    looking as message_looking,
)
from pairbus.cli.messages import (
    moving as message_moving,
)
from pairbus.cli.messages import (
    sending as message_sending,
)

CODES = (
    "Exit codes: 0 done; 1 it could not be done, or messages that were asked for are left or could not be completed;"
    " 2 wrong usage; 130 interrupted."
)

COMMANDS: tuple[tuple[str, Callable[..., None], tuple[str, ...]], ...] = (
    (
        "peek",
        message_looking.peek,
        (
            "peek orders",
            "peek orders --dead-letter --where \"amount > 100 AND sys.Label = 'eur'\"",
            "peek events/Subscriptions/audit --from 1200 --count 50 -o jsonl",
            "peek orders --grep smith --all -o json > found.json",
        ),
    ),
    (
        "tail",
        message_looking.tail,
        (
            "tail orders",
            "tail orders --dead-letter --last 10",
            "tail events/Subscriptions/audit --where \"level = 'error'\" -o jsonl | jq .body",
        ),
    ),
    (
        "send",
        message_sending.send,
        (
            "send orders 'a body'",
            "send orders --subject eur --property amount:int=5 --property vip:boolean=true < body.json",
            "send orders --lines < bodies.txt",
            "peek orders -d -o jsonl | pairbus message send orders --jsonl",
            "send orders hello --in 5m --session s1",
        ),
    ),
    (
        "receive",
        message_sending.receive,
        (
            "receive orders",
            "receive orders --count 100 --wait 10s -o jsonl >> orders.jsonl",
            "receive orders --dead-letter --where \"DeadLetterReason = 'Poison'\" --count 5",
            "receive orders --count 10 --receive-and-delete",
        ),
    ),
    (
        "export",
        message_files.export_messages,
        (
            "export orders > orders.jsonl",
            "export orders --dead-letter --out letters.jsonl",
            "export orders --where \"region = 'eu'\" --out eu.jsonl",
        ),
    ),
    (
        "import",
        message_files.import_messages,
        (
            "import orders orders.jsonl",
            "import orders - < orders.jsonl",
            "export orders | pairbus message import orders-copy -",
        ),
    ),
    (
        "move",
        message_moving.move,
        (
            "move orders orders-archive --yes",
            "move orders orders-retry --dead-letter --where \"DeadLetterReason = 'Timeout'\"",
            "move orders orders --target @fabrikam.txt --limit 1000",
            "move orders orders --yes --credential default --namespace HOST --target HOST",
        ),
    ),
    (
        "purge",
        message_moving.purge,
        (
            "purge orders --yes",
            "purge orders --dead-letter --where \"DeadLetterReason = 'TTLExpiredException'\" --yes",
        ),
    ),
)
"(name, function, examples), in the order of the help."


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus message …`."""
    group = typer.Typer(
        help="Look at messages, send, receive, export, import, move and delete them.",
        no_args_is_help=True,
        rich_markup_mode=None,
        epilog=f"{CODES} {KEPT_OFF}",
    )
    for name, function, examples in COMMANDS:
        group.command(name, epilog=_epilog(examples))(function)
    app.add_typer(group, name="message")


def _epilog(examples: tuple[str, ...]) -> str:
    return "\b\nExamples:\n" + "".join(f"  pairbus message {example}\n" for example in examples) + f"\b\n{CODES}"
