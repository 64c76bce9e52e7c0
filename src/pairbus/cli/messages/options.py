"""Options of `pairbus message`, and the messages that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.messages.output import Format

if TYPE_CHECKING:
    from pairbus.explorer import Address, Choice

NUMBER_MAX = (1 << 63) - 1  # a sequence number has 64 bits on the wire, and is never negative
Entity = Annotated[
    str, typer.Argument(metavar="ENTITY", help="Queue, or TOPIC/Subscriptions/NAME; or the path of their dead letters.")
]
Destination = Annotated[str, typer.Argument(metavar="ENTITY", help="Queue or topic that gets the messages.")]
DeadLetter = Annotated[bool, typer.Option("--dead-letter", "-d", help="The dead letters of the entity.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only messages for which this SQL filter is true, in the language of rules.",
        show_default=False,
    ),
]
Grep = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Only messages with this text in body or properties, in upper or lower case."),
]
Session = Annotated[str | None, typer.Option(metavar="ID", help="Only messages of this session.")]
From = Annotated[int, typer.Option("--from", min=0, max=NUMBER_MAX, metavar="NUMBER", help="Lowest sequence number.")]
To = Annotated[
    int | None, typer.Option("--to", min=0, max=NUMBER_MAX, metavar="NUMBER", help="Highest sequence number.")
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="At most this number of messages.")]
WhichFormat = Annotated[
    Format,
    typer.Option("--output", "-o", metavar="table|json|jsonl", help="json is one array, jsonl one object a line."),
]


def address_of(entity: str, *, dead_letter: bool = False) -> Address:
    """Read the argument; ConfigError when it names no entity."""
    from pairbus.explorer import Address

    return Address.parse(entity, dead_letter=dead_letter)


def destination_of(entity: str) -> str:
    """Read the argument that names a destination: a queue or topic."""
    address = address_of(entity)
    if address.is_subscription or address.is_dead_letter:
        raise typer.BadParameter(f"{entity}: messages are sent to a queue or topic")
    return address.path


def choice_of(
    where: str | None, grep: str | None, session: str | None, first: int = 0, last: int | None = None
) -> Choice:
    """Make the choice of messages. A wrong filter, or an empty condition, is a usage error."""
    from pairbus.explorer import Choice
    from pairbus.filters import FilterSyntaxError

    for name, value in (("--where", where), ("--grep", grep), ("--session", session)):
        if value == "":
            raise typer.BadParameter(f"{name} is empty: leave it out, or say what to look for")
    try:
        return Choice(where=where, text=grep, session=session, first=first, last=last)
    except FilterSyntaxError as error:
        raise typer.BadParameter(f"--where: {error}") from None


def property_of(text: str) -> tuple[str, dict[str, str | None]]:
    """Read NAME=VALUE or NAME:TYPE=VALUE."""
    name, equals, value = text.partition("=")
    name, _, kind = name.partition(":")
    if not equals or not name:
        raise typer.BadParameter(f"--property {text!r}: NAME=VALUE or NAME:TYPE=VALUE is needed, such as n:int=5")
    return name, {"type": kind or "string", "value": value}


def fields_of(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, {})}
