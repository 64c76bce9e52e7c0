"""`pairbus message`: look at messages, send, receive, export, import, move and delete them, on the broker or on Azure.

Imports of the network are in the functions: they take a third of a second, which other commands should not pay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli import message_options as options
from pairbus.cli.connection import KEPT_OFF, reached
from pairbus.cli.durations import duration_option
from pairbus.cli.message_output import Format, Output
from pairbus.errors import ConfigError

if TYPE_CHECKING:
    from pairbus.client.sides import Side
    from pairbus.transport import Carrier

COUNT = 20
CODES = (
    "Exit codes: 0 done; 1 it could not be done, or messages that were asked for are left; 2 wrong usage; 130"
    " interrupted."
)
_app = typer.Typer(
    help="Look at messages, send, receive, export, import, move and delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=f"{CODES} {KEPT_OFF}",
)


def register(app: typer.Typer) -> None:
    """Mounts `pairbus message`."""
    app.add_typer(_app, name="message")


def _epilog(*examples: str) -> str:
    return "\b\nExamples:\n" + "".join(f"  pairbus message {example}\n" for example in examples) + f"\b\n{CODES}"


# ── looking ──


@_app.command(
    epilog=_epilog(
        "peek orders",
        "peek orders --dead-letter --where \"amount > 100 AND sys.Label = 'eur'\"",
        "peek events/Subscriptions/audit --from 1200 --count 50 -o jsonl",
        "peek orders --grep smith --all -o json > found.json",
    )
)
@reached
def peek(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    first: options.From = 0,
    last: options.To = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="At most so many messages.")] = COUNT,
    everything: Annotated[bool, typer.Option("--all", help="All messages, instead of --count.")] = False,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    output: options.WhichFormat = Format.table,
) -> None:
    """Look at messages without taking them: nothing is locked or counted as delivered.

    Scheduled and deferred messages are shown too. In a table long bodies are cut on a terminal; JSON has all of a
    message, with the AMQP types of its properties. Characters that would steer the terminal are shown as escapes.
    """
    from pairbus.cli.message_run import Telling, carry_out
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


@_app.command(
    epilog=_epilog(
        "tail orders",
        "tail orders --dead-letter --last 10",
        "tail events/Subscriptions/audit --where \"level = 'error'\" -o jsonl | jq .body",
    )
)
@reached
def tail(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    before: Annotated[
        int, typer.Option("--last", min=0, metavar="N", help="Begin so many numbers before the end.")
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
    from pairbus.cli.message_run import INTERRUPTED, carry_out
    from pairbus.cli.message_tail import follow

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    printed = Output(output, dead_letter=address.is_dead_letter, live=True)
    try:
        carry_out([side], lambda carriers: follow(carriers[0], address, choice, printed, before, every))
    except typer.Exit as ended:
        printed.end()
        if ended.exit_code != INTERRUPTED:
            raise


# ── sending and receiving ──


@_app.command(
    epilog=_epilog(
        "send orders 'a body'",
        "send orders --subject eur --property amount:int=5 --property vip:boolean=true < body.json",
        "send orders --lines < bodies.txt",
        "peek orders -d -o jsonl | pairbus message send orders --jsonl",
        "send orders hello --in 5m --session s1",
    )
)
@reached
def send(
    side: Any,
    entity: options.Destination,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The body; read from standard input when not given.")
    ] = None,
    message_id: Annotated[str | None, typer.Option(metavar="ID", help="Message id; a new one when not given.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="Subject, also called label.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Session id.")] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="ID", help="Correlation id.")] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="Such as application/json.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME[:TYPE]=VALUE", help="Application property. Repeat for more."),
    ] = None,
    ttl: Annotated[float | None, duration_option("--ttl", help="Time to live.", low=0.001)] = None,
    delay: Annotated[float | None, duration_option("--in", help="Schedule it for so much later.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is the body of a message.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line of standard input is a message, as -o jsonl prints it.")
    ] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="Send so many of them.")] = 1,
) -> None:
    """Send messages. The body is the argument, or standard input as a whole, or each line of it.

    Returns when the service has accepted all of them. Types of properties are those of AMQP: string, int, long,
    double, boolean, timestamp, uuid, binary (base64) and others.
    """
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.cli.message_source import bodies_of, messages_of
    from pairbus.explorer import send as send_all

    fields = options.fields_of(
        {
            "message_id": message_id,
            "subject": subject,
            "session_id": session,
            "correlation_id": correlation_id,
            "content_type": content_type,
            "application_properties": dict(options.property_of(text) for text in properties or []),
            "time_to_live_ms": None if ttl is None else int(ttl * 1000),
        }
    )
    if (lines and jsonl) or (body is not None and (lines or jsonl)):
        raise typer.BadParameter("give one of BODY, --lines and --jsonl")
    if message_id is not None and (lines or jsonl or count > 1):
        raise typer.BadParameter("--message-id is for one message: several with one id would be duplicates")
    path = _destination(entity)
    source = bodies_of(body, by_line=lines, as_objects=jsonl)
    payloads = messages_of(source, fields, delay, count)
    telling = Telling("sent", "sent")
    carry_out(
        [side],
        lambda carriers: send_all(carriers[0], path, payloads, telling.progress),
        telling,
        "; what was sent after these may be stored too",
    )
    typer.echo(telling.summary())


@_app.command(
    epilog=_epilog(
        "receive orders",
        "receive orders --count 100 --wait 10s -o jsonl >> orders.jsonl",
        "receive orders --dead-letter --where \"DeadLetterReason = 'Poison'\" --count 5",
        "receive orders --count 10 --receive-and-delete",
    )
)
@reached
def receive(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="At most so many messages.")] = 1,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    wait: Annotated[float, duration_option("--wait", help="For the next message, before it ends.", low=0.05)] = 1.0,
    delete: Annotated[
        bool,
        typer.Option("--receive-and-delete", help="At most once: a message whose connection breaks is lost."),
    ] = False,
    output: options.WhichFormat = Format.jsonl,
) -> None:
    """Take messages: each is completed after it was written to standard output.

    Interrupted, messages that were not written go back at once. Exits with 1 when there was no message.
    """
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.explorer import Progress, described, receive_and_delete
    from pairbus.explorer import receive as receive_under_lock

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    if delete and (where is not None or grep is not None):
        raise typer.BadParameter("--receive-and-delete takes whatever comes: it has no --where and no --grep")
    printed = Output(output, dead_letter=address.is_dead_letter, live=True)
    telling = Telling("received", "received")
    telling.progress.tell = None  # the messages are on the screen themselves

    async def take(payloads: list[bytes]) -> None:
        try:
            printed.add([described(payload) for payload in payloads])
        except OSError as error:
            raise ConfigError(f"standard output cannot be written ({error}): the messages were given back") from None

    async def work(carriers: list[Carrier]) -> Progress:
        if delete:
            return await receive_and_delete(
                carriers[0], address, take, limit=count, session=session, wait_s=wait, progress=telling.progress
            )
        return await receive_under_lock(
            carriers[0], address, take, choice=choice, limit=count, wait_s=wait, progress=telling.progress
        )

    try:
        progress = carry_out([side], work, telling)
    finally:
        printed.end()
    if not progress.done:
        raise ConfigError(f"{address} has no message that could be received")


# ── files ──


@_app.command(
    name="export",
    epilog=_epilog(
        "export orders > orders.jsonl",
        "export orders --dead-letter --out letters.jsonl",
        "export orders --where \"region = 'eu'\" --out eu.jsonl",
    ),
)
@reached
def export_messages(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; standard output otherwise.")] = None,
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
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.cli.message_source import written_whole
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


@_app.command(
    name="import",
    epilog=_epilog(
        "import orders orders.jsonl",
        "import orders - < orders.jsonl",
        "export orders | pairbus message import orders-copy -",
    ),
)
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
    line, delete its field raw. Interrupted, it notes how far it came: the same command goes on there, and repeats at
    most the messages whose answers were missing. The notes are removed at the end. Standard input has no notes: --skip.
    """
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.explorer import ImportFile, Lines, import_file, import_lines

    path = _destination(entity)
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
        lines = Lines(sys.stdin.buffer, "standard input")
        for _ in range(skip):
            lines.skip_line()
        carry_out(
            [side],
            lambda carriers: import_lines(carriers[0], path, lines, telling.progress),
            telling,
            "; to go on, leave these lines out with --skip (at least once)",
        )
    telling.notes()
    typer.echo(telling.summary())


# ── moving and deleting ──


@_app.command(
    epilog=_epilog(
        "move orders orders-archive",
        "move orders orders-retry --dead-letter --where \"DeadLetterReason = 'Timeout'\"",
        "move orders orders --target @fabrikam.txt --limit 1000",
    )
)
@reached
def move(
    side: Any,
    entity: options.Entity,
    to: Annotated[str, typer.Argument(metavar="TO", help="Queue or topic that gets them.")],
    dead_letter: options.DeadLetter = False,
    target: Annotated[
        str | None,
        typer.Option(envvar="PAIRBUS_TARGET", metavar="CS", help="Connection string of another namespace, or @FILE."),
    ] = None,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    limit: options.Limit = None,
) -> None:
    """Move messages to another entity, of this namespace or of another one. At least once.

    A message is completed only after its destination has accepted it: an interruption can leave it in both places,
    never in none, and leaves nothing locked; the same command goes on. Messages that arrive meanwhile stay. Everything
    but what the service adds passes unaltered. Chosen by --where or --grep, messages are found by a look at all of
    them; the others are held for the time and given back.
    To send dead letters back to where they came from, `pairbus redrive` removes their reasons and minds duplicates.
    """
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.cli.secrets import Namespaces
    from pairbus.explorer import move as move_messages

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    sides: list[Side] = [side]
    if target is not None:
        sides.append(Namespaces(None, None).side(target, "--target", "PAIRBUS_TARGET"))
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


@_app.command(
    epilog=_epilog(
        "purge orders --yes",
        "purge orders --dead-letter --where \"DeadLetterReason = 'TTLExpiredException'\" --yes",
    )
)
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
    """Delete messages for good. Asks first, unless --yes is given; `export` before it keeps a copy.

    Messages that arrive meanwhile stay, and so do deferred and scheduled ones.
    """
    from pairbus.cli.entity_options import confirm_deletion
    from pairbus.cli.message_run import Telling, carry_out
    from pairbus.explorer import purge as purge_messages

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    which = "all messages" if choice.is_all and limit is None else "the chosen messages"
    confirm_deletion(f"{which} of {address}", yes)
    telling = Telling("deleted", "deleted")
    carry_out(
        [side],
        lambda carriers: purge_messages(carriers[0], address, choice=choice, limit=limit, progress=telling.progress),
        telling,
    )
    _end(telling)


def _end(telling: Any) -> None:
    """Say how it ended; exit with 1 when something that was asked for is left."""
    telling.notes()
    typer.echo(telling.summary())
    if telling.progress.left:
        raise typer.Exit(1)


def _destination(entity: str) -> str:
    address = options.address_of(entity)
    if address.is_subscription or address.is_dead_letter:
        raise typer.BadParameter(f"{entity}: messages are sent to a queue or topic")
    return address.path
