"""`pairbus message send` and `receive`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairbus.cli.admin.connection import reached
from pairbus.cli.duration_options import duration_option
from pairbus.cli.messages import options
from pairbus.cli.messages.output import Format, Output
from pairbus.errors import ConfigError, EntityError

if TYPE_CHECKING:
    from pairbus.transport import Carrier

TTL_MAX_S = 49 * 86_400.0  # the header of a message has 32 bits for milliseconds


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
    ttl: Annotated[
        float | None, duration_option("--ttl", help="Time to live, at most 49d.", low=0.001, high=TTL_MAX_S)
    ] = None,
    delay: Annotated[float | None, duration_option("--in", help="Schedule the message for this time from now.")] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line of standard input is the body of a message.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Each line of standard input is a message, as -o jsonl prints it.")
    ] = False,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="Send the message this number of times.")
    ] = 1,
) -> None:
    """Send messages. The body is the argument, or standard input as a whole, or each line of it.

    Returns when the service has accepted all of them. Types of properties are those of AMQP: string, int, long,
    double, boolean, timestamp, uuid, binary (base64) and others.
    """
    from pairbus.cli.messages.input import StandardInput
    from pairbus.cli.messages.run import Telling, carry_out
    from pairbus.cli.messages.source import bodies_of, messages_of
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
    path = options.destination_of(entity)
    standard_input = StandardInput()
    source = bodies_of(body, standard_input, by_line=lines, as_objects=jsonl)
    payloads = messages_of(source, fields, delay, count)
    telling = Telling("sent", "sent")
    carry_out(
        [side],
        lambda carriers: send_all(carriers[0], path, payloads, telling.progress),
        telling,
        lambda: f"; what was sent after these may be stored too{standard_input.unsent()}",
    )
    typer.echo(telling.summary())


@reached
def receive(
    side: Any,
    entity: options.Entity,
    dead_letter: options.DeadLetter = False,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, metavar="N", help="At most this number of messages.")
    ] = 1,
    where: options.Where = None,
    grep: options.Grep = None,
    session: options.Session = None,
    wait: Annotated[
        float,
        duration_option("--wait", help="How long to wait for the next message before the command ends.", low=0.05),
    ] = 1.0,
    delete: Annotated[
        bool,
        typer.Option(
            "--receive-and-delete",
            help="Delete messages as they are sent: when the connection breaks, messages on their way are lost.",
        ),
    ] = False,
    output: options.WhichFormat = Format.jsonl,
) -> None:
    """Take messages: each is completed after it was written to standard output.

    When it is interrupted, messages that were not written go back at once. Exits with 1 when there was no message, or
    when a message was written and could not be completed.
    """
    from pairbus.cli.messages.run import Telling, carry_out, many
    from pairbus.explorer import Progress, described, receive_and_delete
    from pairbus.explorer import receive as receive_under_lock
    from pairbus.transport.threads import in_thread

    address = options.address_of(entity, dead_letter=dead_letter)
    choice = options.choice_of(where, grep, session)
    if delete and (where is not None or grep is not None):
        raise typer.BadParameter("--receive-and-delete takes whatever comes: it has no --where and no --grep")
    printed = Output(output, dead_letter=address.is_dead_letter, live=True)
    telling = Telling("received", "received", "will be received again")
    telling.progress.tell = None  # the messages themselves are on the screen

    unwritten = 0

    async def take(payloads: list[bytes]) -> None:
        nonlocal unwritten
        shown = [described(payload) for payload in payloads]
        try:
            # In a thread: while a slow reader keeps the output waiting, the event loop renews the locks.
            await in_thread("pairbus-output", printed.add, shown)
        except OSError as error:
            unwritten += len(payloads)
            where = f"the service has deleted {many(unwritten)} that may not have been written"
            problem = f"standard output cannot be written ({error.strerror or error})"
            raise ConfigError(f"{problem}: {where if delete else 'the messages were given back'}") from None

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
        if not unwritten:
            printed.end()
    telling.notes()
    if progress.uncompleted:
        raise EntityError(
            f"{many(progress.uncompleted)} could not be completed after the output, and will be received again"
        )
    if not progress.done:
        raise ConfigError(f"{address} has no message that could be received")
