"""Entities created, changed and deleted from the page, by the administration of the namespace, which checks the rights.

Settings of a form are texts, numbers and flags; durations are written as 30s, 5m, 1h or 14d. A setting that is left out
has the default of the service, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError

from pairbus.dashboard.requests import read_object, text_of
from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.faults.fault import read_duration
from pairbus.settings.durations import short_text
from pairbus.transport.threads import in_thread

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

SUBSCRIPTIONS = "/subscriptions/"
ENDLESS = timedelta(days=36_500)  # times to live from here on are shown as none

Names = dict[str, str]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of entities that the page can read and write."""

    kinds: tuple[str, ...]
    type: str
    "Type of its values: flag, number, duration, text or status."
    is_fixed: bool = False
    "True when it can be set at creation only."


_BOXES, _ENTRIES, _ALL = ("queue", "subscription"), ("queue", "topic"), ("queue", "topic", "subscription")

SETTINGS: dict[str, Setting] = {
    "requires_session": Setting(_BOXES, "flag", is_fixed=True),
    "requires_duplicate_detection": Setting(_ENTRIES, "flag", is_fixed=True),
    "duplicate_detection_history_time_window": Setting(_ENTRIES, "duration"),
    "lock_duration": Setting(_BOXES, "duration"),
    "max_delivery_count": Setting(_BOXES, "number"),
    "default_message_time_to_live": Setting(_ALL, "duration"),
    "dead_lettering_on_message_expiration": Setting(_BOXES, "flag"),
    "forward_to": Setting(_BOXES, "text"),
    "forward_dead_lettered_messages_to": Setting(_BOXES, "text"),
    "max_size_in_megabytes": Setting(_ENTRIES, "number"),
    "status": Setting(_ALL, "status"),
}
"Names are those of the SDK."

STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


async def settings(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET settings?path=…: the settings of an entity, by name."""
    kind, name = _named(await page.entity(names["name"], text_of(request, "path")), text_of(request, "path"))
    found = await _administer(page, names, lambda admin: getattr(admin, f"get_{kind}")(*name))
    return {each: _shown(getattr(found, each)) for each, one in SETTINGS.items() if kind in one.kinds}


async def create(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST create: {"kind", "path", "settings"}."""
    asked = await read_object(request)
    kind, path = asked.get("kind"), asked.get("path")
    if kind not in _ALL:
        raise ConfigError(f"kind is {kind!r:.60}; {', '.join(_ALL)} are known")
    if not isinstance(path, str) or not path.strip("/ "):
        raise ConfigError(
            "path is missing: it names the queue, the topic, or the subscription as TOPIC/Subscriptions/NAME"
        )
    name = _split(path.strip()) if kind == "subscription" else (path.strip(),)
    given = _read(kind, asked.get("settings", {}), is_new=True)
    await _administer(page, names, lambda admin: getattr(admin, f"create_{kind}")(*name, **given))
    await page.watch.refresh(names["name"])
    return {"created": path.strip()}


async def change(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST change: {"path", "settings"}: these settings change, the others stay."""
    asked = await read_object(request)
    path = str(asked.get("path") or "")
    kind, name = _named(await page.entity(names["name"], path), path)
    given = _read(kind, asked.get("settings", {}), is_new=False)

    def work(admin: Any) -> None:
        found = getattr(admin, f"get_{kind}")(*name)
        for each, value in given.items():
            setattr(found, each, value)
        getattr(admin, f"update_{kind}")(*name[:-1], found)

    await _administer(page, names, work)
    await page.watch.refresh(names["name"])
    return {"changed": path}


async def delete(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST delete: {"path"}: the entity is gone for good, with all its messages."""
    asked = await read_object(request)
    path = str(asked.get("path") or "")
    kind, name = _named(await page.entity(names["name"], path), path)
    await _administer(page, names, lambda admin: getattr(admin, f"delete_{kind}")(*name))
    await page.watch.refresh(names["name"])
    return {"deleted": path}


def _named(entity: dict[str, Any], path: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of an entity, and its name as the administration takes it."""
    if not entity:
        raise EntityNotFound(f"there is no entity {path!r:.200}")
    kind: str = entity["kind"]
    return kind, _split(path) if kind == "subscription" else (path,)


def _split(path: str) -> tuple[str, str]:
    at = path.lower().find(SUBSCRIPTIONS)
    if at <= 0 or not path[at + len(SUBSCRIPTIONS) :]:
        raise ConfigError(f"{path!r:.200} names no subscription; write TOPIC/Subscriptions/NAME")
    return path[:at], path[at + len(SUBSCRIPTIONS) :]


def _read(kind: str, given: Any, *, is_new: bool) -> dict[str, Any]:
    """Read the settings of a request; ConfigError names the one that is wrong."""
    if not isinstance(given, dict):
        raise ConfigError("settings must be an object")
    found = {}
    for name, value in given.items():
        setting = SETTINGS.get(name)
        if setting is None or kind not in setting.kinds:
            known = ", ".join(each for each, one in SETTINGS.items() if kind in one.kinds)
            raise ConfigError(f"a {kind} has no setting {name!r:.60}; known are {known}")
        if setting.is_fixed and not is_new:
            raise ConfigError(f"{name} cannot be changed: it is chosen when the {kind} is created")
        found[name] = _value(name, setting.type, value)
    return found


def _value(name: str, kind: str, value: Any) -> Any:
    if kind == "duration" and isinstance(value, str):
        try:
            return timedelta(seconds=read_duration(value))
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
    if kind == "text" and (value is None or isinstance(value, str)):
        return value or None
    if kind == "status" and value in STATUSES:
        return value
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if (kind == "flag" and isinstance(value, bool)) or (kind == "number" and is_number):
        return value
    words = {"flag": "true or false", "number": "a whole number", "status": f"one of {', '.join(STATUSES)}"}
    raise ConfigError(f"{name} is {value!r:.60}; {words.get(kind, f'a {kind} as text')} is needed")


def _shown(value: Any) -> Any:
    if not isinstance(value, timedelta):
        return value if value is None or isinstance(value, bool | int) else str(getattr(value, "value", value))
    if value >= ENDLESS:
        return None
    return short_text(value.total_seconds())


async def _administer(page: Page, names: Names, work: Callable[[Any], Any]) -> Any:
    target = page.target(names["name"])
    side = await target.side()

    def run() -> Any:
        with side.new_admin() as admin:  # type: ignore[union-attr]
            return work(admin)

    try:
        return await in_thread("pairbus-admin", run)
    except ResourceNotFoundError as error:
        raise EntityNotFound(_line(error)) from None
    except HttpResponseError as error:
        is_theirs = error.status_code is not None and 400 <= error.status_code < 500
        raise (ConfigError if is_theirs else PairbusError)(_line(error)) from None
    except (ValueError, TypeError) as error:  # the SDK's own checks
        raise ConfigError(_line(error)) from None
    except (AzureError, OSError) as error:
        raise PairbusError(f"{target.name}: {_line(error)}") from None
    finally:
        if not target.can_switch:
            target.operations += 1


def _line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:400] if lines else type(error).__name__
