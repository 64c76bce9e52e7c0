"""`pairbus message export` and `import`: messages as files of JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.admin.connection import reached
from pairbus.cli.messages import options

if TYPE_CHECKING:
    from pairbus.transport import Carrier


@reached
def export_messages(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: standard output.")] = None,
    first: options.From = 0,
    last: options.To = None,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    limit: options.Limit = None,
) -> None:
    """Write messages as JSON lines, with their raw bytes: `import` sends them byte for byte. They stay where they are.

    FILE appears when it is whole; an interrupted export leaves FILE.part.
    """
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.cli.messages.source import written_whole
    from pairbus.explorer import Progress, export

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session, first, last)
    telling = Telling("exported", "exported")
    if out is None:
        telling.progress.tell = None

    async def work(carriers: list[Carrier]) -> Progress:
        with written_whole(out) as write:
            return await export(carriers[0], address, write, choice=choice, limit=limit, progress=telling.progress)

    carry_out([side], work, telling)
    typer.echo(telling.summary(), err=out is None)


@reached
def import_messages(
    side: Any,
    entity: options.Destination,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines; - for standard input.")],
    notes: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Notes of how far it came; FILE.pairbus-import otherwise.")
    ] = None,
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the first N lines of standard input.")] = 0,
) -> None:
    """Send the messages of a file of JSON lines. At least once, and in order.

    A line with raw bytes, as `export` writes it, is sent byte for byte but for what the service adds; to edit such a
    line, delete its field raw. The command notes in a file how far it came. After an interruption the same command
    continues there; only messages without an answer can be sent twice. The notes are removed at the end. There are no
    notes for standard input: use --skip.
    """
    from pairbus.cli.messages.input import StandardInput
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.explorer import ImportFile, Lines, import_file, import_lines

    path = options.destination_of(entity)
    telling = Telling("imported", "imported")
    if file != "-":
        if skip:
            raise typer.BadParameter("--skip is for standard input: a file has notes")
        source = ImportFile(Path(file), f"{side.endpoint.authority}/{path}", notes)
        carry_out(
            [side],
            lambda carriers: import_file(carriers[0], path, source, telling.progress),
            telling,
            "; the same command goes on there (at least once)",
        )
    else:
        standard_input = StandardInput()
        lines = Lines(standard_input.lines(), "standard input", skip=skip)
        carry_out(
            [side],
            lambda carriers: import_lines(carriers[0], path, lines, telling.progress),
            telling,
            lambda: f"; to go on, leave these lines out with --skip (at least once){standard_input.unsent()}",
        )
    telling.notes()
    typer.echo(telling.summary())
