"""Options and output that `pairbus queue`, `topic`, `subscription` and `rule` share."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from pairbus.cli.admin.connection import KEPT_OFF
from pairbus.cli.duration_options import parsed
from pairbus.cli.table import print_table
from pairbus.errors import ConfigError
from pairbus.settings.durations import NEVER, UNLIMITED, UNLIMITED_TEXT, format_span

# The service's words. The broker has them too, but these commands work without its extra.
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


def group(summary: str) -> typer.Typer:
    """Make a group of commands on one kind of entity."""
    return typer.Typer(help=summary, no_args_is_help=True, rich_markup_mode=None, epilog=KEPT_OFF)


# ── arguments and options ──


def named(kind: str) -> Callable[[str], str]:
    """Make a check for a name that is not empty."""

    def check(name: str) -> str:
        if not name.strip():
            raise typer.BadParameter(f"the name of the {kind} is empty")
        return name

    return check


def _duration(text: str) -> str:
    """Read a duration, or `never`, as the ISO text that the service takes."""
    seconds = parsed(UNLIMITED_TEXT if text.lower() == NEVER else text)
    return UNLIMITED_TEXT if seconds >= UNLIMITED.total_seconds() else format_span(timedelta(seconds=seconds))


def _status(text: str) -> str:
    for status in STATUSES:
        if text.lower() == status.lower():
            return status
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(STATUSES)}")


def duration_option(name: str, help: str, least: str = "", most: str = "") -> Any:
    """Make an option that takes a duration, or `never`, within limits that are written as users write them."""

    def read(text: str) -> str:
        found = _duration(text)
        length_s = parsed(found)
        if least and length_s < parsed(least):
            raise typer.BadParameter(f"{text} is too short: the service takes at least {least}")
        if most and length_s > parsed(most):
            raise typer.BadParameter(f"{text} is too long: the service takes at most {most}")
        return found

    return typer.Option(name, help=help, metavar="DURATION", parser=read)


Topic = Annotated[str, typer.Argument(metavar="TOPIC", callback=named("topic"), help="Path of the topic.")]
Subscription = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", callback=named("subscription"), help="Name of the subscription.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Prefix = Annotated[str, typer.Option(help="Only entities whose path starts with this text, in upper or lower case.")]
LockDuration = Annotated[
    str | None,
    duration_option("--lock-duration", "Duration of a peek-lock, at most 5 minutes; such as 30s or 5m.", "1s", "5m"),
]
MaxSizeMb = Annotated[int | None, typer.Option(help="Size of the entity in megabytes.", min=1)]
Ttl = Annotated[
    str | None,
    duration_option("--ttl", "Default and ceiling of the time to live; such as 30s, 5m, 14d or never."),
]
DeadLetterOnExpiration = Annotated[
    bool | None, typer.Option(help="Whether expired messages go to the dead-letter queue.", show_default=False)
]
DuplicateWindow = Annotated[
    str | None,
    duration_option(
        "--duplicate-window",
        "Turn duplicate detection on: how long message ids are remembered, at most 7 days; such as 10m.",
        most="7d",
    ),
]
ChangedDuplicateWindow = Annotated[
    str | None,
    duration_option(
        "--duplicate-window",
        "Where duplicate detection is on: how long message ids are remembered, at most 7 days; such as 10m.",
        most="7d",
    ),
]
MaxDeliveryCount = Annotated[int | None, typer.Option(help="Deliveries before a message is dead-lettered.", min=1)]
MaxMessageSizeKb = Annotated[int | None, typer.Option(help="Largest message in kilobytes.", min=1)]
Status = Annotated[str | None, typer.Option(help=f"One of {', '.join(STATUSES)}.", metavar="STATUS", parser=_status)]
AutoDeleteOnIdle = Annotated[
    str | None,
    duration_option(
        "--auto-delete-on-idle",
        "Delete the entity when it was not used for this time, at least 5 minutes; such as 1h or never.",
        least="5m",
    ),
]
Session = Annotated[bool, typer.Option("--requires-session", help="Messages are received by session.")]
Partitioned = Annotated[bool, typer.Option("--partitioned", help="Mark the entity as partitioned.")]
ForwardTo = Annotated[
    str | None, typer.Option(metavar="PATH", help="Queue or topic that gets every message; '' for none.")
]
ForwardDeadLetteredTo = Annotated[
    str | None, typer.Option(metavar="PATH", help="Queue or topic that gets the dead letters; '' for none.")
]
Metadata = Annotated[str | None, typer.Option("--user-metadata", metavar="TEXT", help="A note; '' for none.")]


def change(entity: Any, settings: dict[str, Any]) -> None:
    """Write the given settings into the entity that the client has read; an empty text clears a setting."""
    given = {name: value for name, value in settings.items() if value is not None}
    if not given:
        raise typer.BadParameter("no setting was given; --help lists them")
    for name, value in given.items():
        setattr(entity, name, None if value == "" else value)


def confirm_deletion(description: str, yes: bool) -> None:
    """Ask before a deletion. Without a terminal, --yes is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{description} would be deleted; give --yes where nobody can be asked")
    typer.confirm(f"Delete {description}?", abort=True, err=True)


# ── output ──


def print_entities(columns: Sequence[str], entities: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(entities, indent=2))
    else:
        print_table(columns, [[_cell(entity[column]) for column in columns] for entity in entities])


def print_settings(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(shown, indent=2))
    else:
        print_table(("setting", "value"), [[key, _cell(value)] for key, value in shown.items()])


def _cell(value: Any) -> Any:
    return "-" if value is None else value


def seconds(duration: timedelta | str | None) -> float | None:
    """Return seconds; None for unlimited. The SDK's types allow texts, which it takes but never returns."""
    return duration.total_seconds() if isinstance(duration, timedelta) and duration < UNLIMITED else None


def time_text(moment: Any) -> str | None:
    return None if moment is None or moment.year == 1 else str(moment.isoformat())


def times(runtime: Any) -> dict[str, str | None]:
    return {
        "created_at": time_text(runtime.created_at_utc),
        "updated_at": time_text(runtime.updated_at_utc),
        "accessed_at": time_text(runtime.accessed_at_utc),
    }


def path_of(address: str | None) -> str | None:
    """Return the path of a forwarding destination, which the service shows as a URL."""
    return re.sub(r"^[a-z]+://[^/]*/", "", address, flags=re.IGNORECASE) if address else None


def transfers(runtime: Any) -> dict[str, int]:
    """Return the counts of an entity that forwards."""
    return {
        "transfer": runtime.transfer_message_count or 0,
        "transfer_dead_lettered": runtime.transfer_dead_letter_message_count or 0,
    }
