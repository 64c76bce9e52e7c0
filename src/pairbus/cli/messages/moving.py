"""`pairbus message move` and `purge`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.admin.connection import reached, reached_with_target
from pairbus.cli.messages import options
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.explorer import Address, Choice


@reached_with_target
def move(
    sides: Any,
    entity: options.Entity,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue or topic that gets the messages.")],
    dead_letter: options.DeadLetter = False,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    limit: options.Limit = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Move all messages without asking.")] = False,
) -> None:
    """Move messages to another entity, of this namespace or of another one. At least once.

    Without --where, --grep, --session and --limit all messages are moved: then it asks first, with their number,
    unless --yes is given.

    A message is completed only after its destination has accepted it: an interruption can leave it in both places,
    never in none, and leaves nothing locked; the same command goes on. Messages that arrive meanwhile stay. Everything
    but what the service adds passes unaltered. With --where or --grep the command first peeks at all messages. To reach
    the chosen ones it must receive other messages too: these stay locked meanwhile and are released at the end.
    --target names another namespace. If it is a host, --credential is used for it too; --ca-file is used for both.
    To send dead letters back to where they came from, `pairbus redrive` removes their reasons and minds duplicates.
    """
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.explorer import move as move_messages

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    if choice.is_all and limit is None:
        choice = asked("Move", sides[0], address, choice, limit, yes, f" to {to}")
    telling = Telling("moved", "moved")
    carry_out(
        sides,
        lambda carriers: move_messages(
            carriers[0], address, carriers[-1], to, choice=choice, limit=limit, progress=telling.progress
        ),
        telling,
        "; the same command goes on (at least once: the last ones may be in both places)",
    )
    _end(telling)


@reached
def purge(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    limit: options.Limit = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Delete messages for good. Asks first, with their number, unless --yes is given; `export` before it keeps a copy.

    Messages that arrive meanwhile stay, and so do deferred and scheduled ones.
    """
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.explorer import purge as purge_messages

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = asked("Delete", side, address, options.choice_of(where, grep, session), limit, yes)
    telling = Telling("deleted", "deleted", "still there")
    carry_out(
        [side],
        lambda carriers: purge_messages(carriers[0], address, choice=choice, limit=limit, progress=telling.progress),
        telling,
    )
    _end(telling)


def asked(
    verb: str, side: Any, address: Address, choice: Choice, limit: int | None, yes: bool, where: str = ""
) -> Choice:
    """Ask, with the number of messages, before they are taken away; return the choice of the counted messages.

    Messages that arrive after the count stay. Without a terminal --yes is needed.
    """
    if yes:
        return choice
    which = "all messages" if choice.is_all and limit is None else "the chosen messages"
    if not is_asked():
        raise ConfigError(f"{verb} {which} of {address}{where}? Give --yes where nobody can be asked")
    from pairbus.cli.messages.run import carry_out, many
    from pairbus.explorer import count

    counted = carry_out([side], lambda carriers: count(carriers[0], address, choice))
    if not counted.messages and counted.is_exact:
        typer.echo(f"{address} has no such message" if which != "all messages" else f"{address} has no message")
        raise typer.Exit(0)
    number = counted.messages if limit is None else min(counted.messages, limit)
    least = "at least " if not counted.is_exact and number == counted.messages else ""
    of = "all of them" if choice.is_all and number == counted.messages else "those that were chosen"
    typer.confirm(f"{verb} {least}{many(number)} of {address}{where}, {of}?", abort=True, err=True)
    return replace(choice, last=counted.last)


def is_asked() -> bool:
    """Tell whether somebody can answer a question."""
    return sys.stdin.isatty()


def _end(telling: Any) -> None:
    """Print how it ended; exit with 1 when messages that were asked for are left, or could not be completed."""
    telling.notes()
    typer.echo(telling.summary())
    if telling.progress.left or telling.progress.uncompleted:
        raise typer.Exit(1)
