"""Requests that create or update queues, topics and subscriptions: how their settings are read.

Requests are read by namespace URI and in any element order: the SDKs differ in both prefixes and order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from pairbus.broker.admin.authorization_xml import read_authorization
from pairbus.broker.admin.xml import Element
from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.errors import InvalidDescription
from pairbus.settings import KINDS, SETTINGS, settings_of

S = TypeVar("S", QueueDescription, TopicDescription, SubscriptionDescription)


_ELEMENTS = {kind: {setting.element: setting for setting in settings_of(kind)} for kind in KINDS}
_ELEMENT_OF = {setting.attribute: setting.element for setting in SETTINGS}


def created(new: S, element: Element, version: str, now_ms: int) -> S:
    """Return the description of a new entity. Ranges are checked when it is stored."""
    return replace(new, **_values(new, element, version, now_ms))


def updated(current: S, element: Element, version: str, now_ms: int) -> S:
    """Return the current description with the settings of the request.

    SDKs send back the settings that they have read. Settings that their version does not know are missing, and keep
    their value. An optional text is cleared by leaving it out.
    """
    values = _values(current, element, version, now_ms)
    for attribute in current.IMMUTABLE:
        if values.get(attribute, getattr(current, attribute)) != getattr(current, attribute):
            name = _ELEMENT_OF[attribute]
            raise InvalidDescription(f"{name} of {current.path!r} is fixed at creation and cannot be changed")
    cleared = {each.attribute: None for each in settings_of(current.KIND) if each.is_cleared_by_absence}
    return replace(current, **{**cleared, **values})


def in_words_of_the_service(text: str) -> str:
    """Name the setting at the start of an error as the service does: `LockDuration`, not `lock_duration_ms`."""
    attribute, of, rest = text.partition(" of ")
    return f"{_ELEMENT_OF.get(attribute, attribute)}{of}{rest}"


def _values(current: S, element: Element, version: str, now_ms: int) -> dict[str, Any]:
    table = _ELEMENTS[current.KIND]
    values: dict[str, Any] = {}
    for name, child in element.members().items():
        if name == "AuthorizationRules" and not isinstance(current, SubscriptionDescription) and not child.is_nil:
            values["authorization"] = read_authorization(child, current.authorization, now_ms)
        elif name in table and child.text.strip() and not child.is_nil:  # other elements are ignored, as by the service
            setting = table[name]
            if version < setting.since:
                raise InvalidDescription(
                    f"{name} needs api-version {setting.since} or newer, the request has {version}"
                )
            try:
                values[setting.attribute] = setting.type.read(child.text)
            except ValueError as error:
                raise InvalidDescription(f"{name}: {error}") from None
    return values
