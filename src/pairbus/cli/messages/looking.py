"""`pairbus message peek` and `tail`: look at messages without taking them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.admin.connection import reached
from pairbus.cli.duration_options import duration_option
from pairbus.cli.messages import options
from pairbus.cli.messages.output import Format, Output

if TYPE_CHECKING:
    from pairbus.transport import Carrier

COUNT = 20


@reached
def peek(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    first: options.From = 0,
    last: options.To = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="At most this number of messages.")
    ] = COUNT,
    everything: Annotated[bool, typer.Option("--all", help="All messages, instead of --count.")] = False,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    output: options.WhichFormat = Format.table,
) -> None:
    """Look at messages without taking them: nothing is locked or counted as delivered.

    Scheduled and deferred messages are shown too. In a table long bodies are cut on a terminal; JSON has all of a
    message, with the AMQP types of its properties. Characters that control a terminal are shown as escapes.
    """
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.explorer import described, search

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session, first, last)
    printed = Output(output, dead_letter=address.is_dead_letter)
    telling = Telling("found", "found")

    async def work(carriers: list[Carrier]) -> None:
        limit = None if everything else count
        async for page in search(carriers[0], address, choice, limit=limit, progress=telling.progress):
            telling.clear()
            printed.add([described(payload) for payload in page])

    carry_out([side], work, telling)
    printed.end()


@reached
def tail(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    before: Annotated[
        int, typer.Option("--last", min=0, metavar="N", help="Begin this number of sequence numbers before the end.")
    ] = 0,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    every: Annotated[float, duration_option("--every", help="How often to look.", low=0.1, high=3600)] = 1.0,
    output: options.WhichFormat = Format.table,
) -> None:
    """Show messages as they arrive, without taking them, until Ctrl-C; then it exits with 0.

    A message that a receiver completes between two looks is not seen.
    """
    from pairbus.cli.messages.run import INTERRUPTED, carry_out
    from pairbus.cli.messages.tail import follow

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    printed = Output(output, dead_letter=address.is_dead_letter, live=True)
    try:
        carry_out([side], lambda carriers: follow(carriers[0], address, choice, printed, before, every))
    except typer.Exit as ended:
        printed.end()
        if ended.exit_code != INTERRUPTED:
            raise
