"""Options and output that `pairbus queue`, `topic`, `subscription` and `rule` share."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, get_type_hints

import typer

from pairbus.cli.admin.connection import KEPT_OFF
from pairbus.cli.duration_options import parsed
from pairbus.cli.table import print_table
from pairbus.errors import ConfigError
from pairbus.settings import STATUSES, Setting, settings_of
from pairbus.settings.durations import NEVER, UNLIMITED, UNLIMITED_MS, UNLIMITED_TEXT, format_span, short_text
from pairbus.settings.types import PATH

DUPLICATES, DUPLICATE_WINDOW = "requires_duplicate_detection", "duplicate_detection_history_time_window"
"The SDK's attributes: a window turns duplicate detection on."


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


Topic = Annotated[str, typer.Argument(metavar="TOPIC", callback=named("topic"), help="Path of the topic.")]
Subscription = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", callback=named("subscription"), help="Name of the subscription.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Prefix = Annotated[str, typer.Option(help="Only entities whose path starts with this text, in upper or lower case.")]


# ── options from the table of settings ──


def with_settings(kind: str, *, is_new: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting of the kind, before its other options.

    The command gets those that were given as one argument `settings`: a value by the SDK's attribute.
    """
    shown = [each for each in settings_of(kind) if each.option and (is_new or not each.is_fixed)]

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(command).parameters.items()
            if name != "settings"
        ]
        options = [
            inspect.Parameter(
                _key(each),
                inspect.Parameter.KEYWORD_ONLY,
                default=_absent(each),
                annotation=_annotation(each, is_new=is_new),
            )
            for each in shown
        ]
        count = sum(parameter.default is inspect.Parameter.empty for parameter in own)

        @functools.wraps(command)
        def with_options(*args: Any, **values: Any) -> None:
            settings = {each.sdk: value for each in shown if (value := values.pop(_key(each))) is not _absent(each)}
            command(*args, **values, settings=settings)

        later = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own[count:]]
        parameters = [*own[:count], *options, *later]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del with_options.__wrapped__  # readers of the signature must see this one
        return with_options

    return decorated


def _absent(setting: Setting) -> bool | None:
    """Return the value of an option that is not given. A setting that is chosen at creation has no `--no-…`."""
    return False if setting.is_fixed else None


def _key(setting: Setting) -> str:
    return setting.option.replace("-", "_")


def _annotation(setting: Setting, *, is_new: bool) -> Any:
    option, help = f"--{setting.option}", setting.help
    match setting.type.word:
        case "flag" if setting.is_fixed:
            return Annotated[bool, typer.Option(option, help=help)]
        case "flag":
            names = f"{option} / --no-{setting.option}"
            return Annotated[bool | None, typer.Option(names, help=help, show_default=False)]
        case "number":
            return Annotated[int | None, typer.Option(option, help=help, min=1)]
        case "duration":
            if setting.sdk == DUPLICATE_WINDOW:
                when = "Turn duplicate detection on" if is_new else "Where duplicate detection is on"
                help = f"{when}: {help[0].lower()}{help[1:]}"
            parser = functools.partial(_limited_duration, setting)
            return Annotated[str | None, typer.Option(option, help=help, metavar="DURATION", parser=parser)]
        case "status":
            return Annotated[str | None, typer.Option(option, help=help, metavar="STATUS", parser=_status)]
    metavar = "ENTITY" if setting.type is PATH else "TEXT"
    return Annotated[str | None, typer.Option(option, help=help, metavar=metavar)]


def _limited_duration(setting: Setting, text: str) -> str:
    """Read a duration within the limits of the setting, which the error writes as users write them."""
    duration = _duration(text)
    length_ms = parsed(duration) * 1000
    if length_ms < setting.low:
        raise typer.BadParameter(f"{text} is too short: the service takes at least {short_text(setting.low / 1000)}")
    if setting.high is not None and setting.high < UNLIMITED_MS and length_ms > setting.high:
        raise typer.BadParameter(f"{text} is too long: the service takes at most {short_text(setting.high / 1000)}")
    return duration


def created(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords that create an entity; an empty text is no setting."""
    wanted = {name: value for name, value in settings.items() if value != ""}
    return {**wanted, DUPLICATES: True} if DUPLICATE_WINDOW in wanted else wanted


def change(entity: Any, settings: dict[str, Any]) -> None:
    """Write the given settings into the entity that the client has read; an empty text clears a setting."""
    if not settings:
        raise typer.BadParameter("no setting was given; --help lists them")
    for name, value in settings.items():
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


def settings_shown(kind: str, entity: Any) -> dict[str, Any]:
    """Return the settings of an entity by the name of their option; durations are seconds, None is unlimited."""
    shown: dict[str, Any] = {"status": str(entity.status)}
    for setting in settings_of(kind):
        if not setting.option or setting.sdk == "status":
            continue
        value = setting.type.from_sdk(getattr(entity, setting.sdk))
        if setting.type.word != "duration":
            shown[_key(setting)] = value
            continue
        is_off = setting.sdk == DUPLICATE_WINDOW and not entity.requires_duplicate_detection
        shown[f"{_key(setting)}_s"] = None if is_off or value is None else value / 1000
    return shown


def time_text(moment: Any) -> str | None:
    return None if moment is None or moment.year == 1 else str(moment.isoformat())


def times(runtime: Any) -> dict[str, str | None]:
    return {
        "created_at": time_text(runtime.created_at_utc),
        "updated_at": time_text(runtime.updated_at_utc),
        "accessed_at": time_text(runtime.accessed_at_utc),
    }


def transfers(runtime: Any) -> dict[str, int]:
    """Return the counts of an entity that forwards."""
    return {
        "transfer": runtime.transfer_message_count or 0,
        "transfer_dead_lettered": runtime.transfer_dead_letter_message_count or 0,
    }
