"""Creates, changes and deletes entities for the page, by the administration of the namespace, which checks the rights.

Settings of a form are texts, numbers and flags; durations are written as 30s, 5m, 1h or 14d. A setting that is left out
has the default of the service, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web
from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError

from pairbus.dashboard.requests import read_object, text_of
from pairbus.errors import ConfigError, EntityNotFound, PairbusError
from pairbus.faults.fault import read_duration
from pairbus.sdk.refusals import words_of
from pairbus.settings import KINDS, STATUSES, Setting
from pairbus.settings import SETTINGS as TABLE
from pairbus.settings.durations import short_text
from pairbus.transport.threads import in_thread

if TYPE_CHECKING:
    from pairbus.dashboard.api import Page

SUBSCRIPTIONS = "/subscriptions/"
ENDLESS = timedelta(days=36_500)  # times to live from here on are shown as none

Names = dict[str, str]


SETTINGS = {setting.sdk: setting for setting in TABLE if setting.label}
"Settings that forms have, by the name that the SDK and the JSON of the page use."


def form_of_settings() -> dict[str, Any]:
    """Return what the page needs to draw forms: the settings, and the words of a status."""
    rows = [
        {
            "name": name,
            "label": setting.label,
            "type": setting.type.word,
            "kinds": setting.kinds,
            "is_fixed": setting.is_fixed,
            "hint": setting.hint,
        }
        for name, setting in SETTINGS.items()
    ]
    return {"settings": rows, "statuses": STATUSES}


async def settings(page: Page, request: web.Request, names: Names) -> Any:
    """Answer GET settings?path=…: the settings of an entity, by name."""
    kind, name = _named(await page.entity(names["name"], text_of(request, "path")), text_of(request, "path"))
    entity = await administer(page, names, lambda admin: getattr(admin, f"get_{kind}")(*name))
    return {name: _shown(each, getattr(entity, name)) for name, each in SETTINGS.items() if kind in each.kinds}


async def create(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST create: {"kind", "path", "settings"}."""
    body = await read_object(request)
    kind, path = body.get("kind"), body.get("path")
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r:.60}; {', '.join(KINDS)} are known")
    if not isinstance(path, str) or not path.strip("/ "):
        raise ConfigError(
            "path is missing: it names the queue, the topic, or the subscription as TOPIC/Subscriptions/NAME"
        )
    name = topic_and_name(path.strip()) if kind == "subscription" else (path.strip(),)
    values = _read(kind, body.get("settings", {}), is_new=True)
    await administer(page, names, lambda admin: getattr(admin, f"create_{kind}")(*name, **values))
    await page.watch.refresh(names["name"])
    return {"created": path.strip()}


async def change(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST change: {"path", "settings"}: these settings change, the others stay."""
    body = await read_object(request)
    path = str(body.get("path") or "")
    kind, name = _named(await page.entity(names["name"], path), path)
    values = _read(kind, body.get("settings", {}), is_new=False)

    def work(admin: Any) -> None:
        entity = getattr(admin, f"get_{kind}")(*name)
        for each, value in values.items():
            setattr(entity, each, value)
        getattr(admin, f"update_{kind}")(*name[:-1], entity)

    await administer(page, names, work)
    await page.watch.refresh(names["name"])
    return {"changed": path}


async def delete(page: Page, request: web.Request, names: Names) -> Any:
    """Answer POST delete: {"path"}: the entity is gone for good, with all its messages."""
    body = await read_object(request)
    path = str(body.get("path") or "")
    kind, name = _named(await page.entity(names["name"], path), path)
    await administer(page, names, lambda admin: getattr(admin, f"delete_{kind}")(*name))
    await page.watch.refresh(names["name"])
    return {"deleted": path}


def _named(entity: dict[str, Any], path: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of an entity, and its name as the administration takes it."""
    if not entity:
        raise EntityNotFound(f"there is no entity {path!r:.200}")
    kind: str = entity["kind"]
    return kind, topic_and_name(path) if kind == "subscription" else (path,)


def topic_and_name(path: str) -> tuple[str, str]:
    """Split the path of a subscription; ConfigError when it is none."""
    at = path.lower().find(SUBSCRIPTIONS)
    if at <= 0 or not path[at + len(SUBSCRIPTIONS) :]:
        raise ConfigError(f"{path!r:.200} names no subscription; write TOPIC/Subscriptions/NAME")
    return path[:at], path[at + len(SUBSCRIPTIONS) :]


def _read(kind: str, settings: Any, *, is_new: bool) -> dict[str, Any]:
    """Read the settings of a request; ConfigError names the one that is wrong."""
    if not isinstance(settings, dict):
        raise ConfigError("settings must be an object")
    values = {}
    for name, value in settings.items():
        setting = SETTINGS.get(name)
        if setting is None or kind not in setting.kinds:
            names = ", ".join(each for each, one in SETTINGS.items() if kind in one.kinds)
            raise ConfigError(f"a {kind} has no setting {name!r:.60}; known are {names}")
        if setting.is_fixed and not is_new:
            raise ConfigError(f"{name} cannot be changed: it is chosen when the {kind} is created")
        values[name] = _value(setting, value)
    return values


def _value(setting: Setting, value: Any) -> Any:
    """Read a value of a form as the SDK takes it; ConfigError says what is needed."""
    word = setting.type.word
    if word == "duration" and isinstance(value, str):
        try:
            return timedelta(seconds=read_duration(value))
        except ValueError as error:
            raise ConfigError(f"{setting.sdk}: {error}") from None
    if word == "text" and value in (None, ""):
        return None
    is_of_type = type(value) is setting.type.json_type and word != "duration"
    if is_of_type and (word != "status" or value in STATUSES):
        return value
    needed = {"flag": "true or false", "number": "a whole number", "status": f"one of {', '.join(STATUSES)}"}
    raise ConfigError(f"{setting.sdk} is {value!r:.60}; {needed.get(word, f'a {word} as text')} is needed")


def _shown(setting: Setting, value: Any) -> Any:
    if isinstance(value, timedelta):
        return None if value >= ENDLESS else short_text(value.total_seconds())
    return None if value is None else setting.type.from_sdk(value)


async def administer(page: Page, names: Names, work: Callable[[Any], Any]) -> Any:
    """Do work with the administration client of a namespace; its errors are ours."""
    target = page.target(names["name"])
    side = await target.side()

    def run() -> Any:
        with side.new_admin() as admin:  # type: ignore[union-attr]
            return work(admin)

    try:
        return await in_thread("pairbus-admin", run)
    except ResourceNotFoundError as error:
        raise EntityNotFound(words_of(error)) from None
    except HttpResponseError as error:
        is_theirs = error.status_code is not None and 400 <= error.status_code < 500
        raise (ConfigError if is_theirs else PairbusError)(words_of(error)) from None
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
