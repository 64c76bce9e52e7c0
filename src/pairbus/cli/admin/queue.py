"""`pairbus queue`: create, list, show, update and delete queues of any namespace, ours or Azure's."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pairbus.cli.admin import entity_options as options
from pairbus.cli.admin.connection import connected, listing, queue_by, queue_shown
from pairbus.cli.table import is_terminal

_app = options.group("Create, list, show, update and delete queues.")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        callback=options.named("queue"),
        help="Path of the queue, such as orders or contoso/x-servicebus-transfer/0.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands `pairbus queue …`."""
    app.add_typer(_app, name="queue")


@_app.command(
    epilog="""\b
Examples:
  pairbus queue create orders --lock-duration 30 --max-delivery-count 5
  pairbus queue create contoso/x-servicebus-transfer/0 --max-size-mb 5120
  pairbus queue create payments --duplicate-window PT10M --ttl P14D
  pairbus queue create inbox --forward-to orders
"""
)
@connected
@options.with_settings("queue", is_new=True)
def create(client: Any, name: Name, settings: dict[str, Any]) -> None:
    """Create a queue. Settings that are not given have the service's defaults."""
    client.create_queue(name, **options.created(settings))
    typer.echo(f"created {name}")


class SortBy(StrEnum):
    name = "name"
    status = "status"
    active = "active"
    dead_lettered = "dead-lettered"
    scheduled = "scheduled"
    deferred = "deferred"
    size = "size"


COLUMNS = ("name", "status", "active", "dead_lettered", "scheduled", "deferred", "size_bytes")
COUNTS = COLUMNS[2:]
_SORTED = {SortBy.dead_lettered: "dead_lettered", SortBy.size: "size_bytes"}


@_app.command(
    "list",
    epilog="""\b
Examples:
  pairbus queue list --prefix contoso/ --json
  pairbus queue list --non-empty --sort dead-lettered
""",
)
@listing
def list_queues(
    listed: list[tuple[str, Any]],
    prefix: options.Prefix = "",
    non_empty: Annotated[bool, typer.Option("--non-empty", help="Only queues with messages in them.")] = False,
    sort: Annotated[
        SortBy,
        typer.Option(metavar="|".join(SortBy), help="Counts and sizes are sorted from the largest down."),
    ] = SortBy.name,
    as_json: options.Json = False,
) -> None:
    """List queues with their message counts, and the totals.

    On a terminal the totals are the last line of the table; elsewhere they are a line on standard error.
    """
    queues = [
        {"name": queue.name, "status": status, **_counts(queue)}
        for status, queue in listed
        if queue.name.lower().startswith(prefix.lower())
    ]
    if non_empty:
        queues = [queue for queue in queues if any(queue[count] for count in COUNTS[:-1])]
    column = _SORTED.get(sort, sort.value)
    queues.sort(key=lambda queue: (-queue[column] if column in COUNTS else queue[column].lower(), queue["name"]))
    totals = {count: sum(queue[count] for queue in queues) for count in COUNTS}
    if not as_json and is_terminal():
        queues.append({"name": f"{len(queues)} in all", "status": "-", **totals})
    options.print_entities(COLUMNS, queues, as_json)
    if not as_json and not is_terminal():
        shown = ", ".join(f"{total} {count.replace('_', ' ')}" for count, total in totals.items())
        typer.echo(f"{len(queues)} in all: {shown}", err=True)


@_app.command(epilog="Example: pairbus queue show orders --json")
@queue_shown
def show(settings_and_counts: tuple[Any, Any], name: Name, as_json: options.Json = False) -> None:
    """Show a queue's settings and counts."""
    queue, runtime = settings_and_counts
    shown: dict[str, Any] = {
        "name": queue.name,
        **options.settings_shown("queue", queue),
        **_counts(runtime),
        **options.transfers(runtime),
        **options.times(runtime),
    }
    options.print_settings(shown, as_json)


@_app.command(
    epilog="""\b
Examples:
  pairbus queue update orders --status SendDisabled
  pairbus queue update orders --ttl never --forward-dead-lettered-to graveyard
"""
)
@connected
@options.with_settings("queue", is_new=False)
def update(client: Any, name: Name, settings: dict[str, Any]) -> None:
    """Change settings of a queue; the others stay as they are."""
    queue = queue_by(client, name)
    options.change(queue, settings)
    client.update_queue(queue)
    typer.echo(f"updated {name}")


@_app.command(epilog="Example: pairbus queue delete orders --yes")
@connected
def delete(client: Any, name: Name, yes: options.Yes = False) -> None:
    """Delete a queue with every message in it. Asks first, unless --yes is given."""
    queue_by(client, name)  # the service deletes any entity with this path
    options.confirm_deletion(f"queue {name} with every message in it", yes)
    client.delete_queue(name)
    typer.echo(f"deleted {name}")


def _counts(runtime: Any) -> dict[str, int]:
    active, dead_lettered, scheduled = (
        runtime.active_message_count,
        runtime.dead_letter_message_count,
        runtime.scheduled_message_count,
    )
    transferred = sum(options.transfers(runtime).values())
    return {
        "active": active,
        "dead_lettered": dead_lettered,
        "scheduled": scheduled,
        # No answer has this count; it is the rest of the total. Azure counts deferred messages as active.
        "deferred": max(0, runtime.total_message_count - active - dead_lettered - scheduled - transferred),
        "size_bytes": runtime.size_in_bytes,
    }
