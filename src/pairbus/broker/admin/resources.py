"""Entities as HTTP resources: shown, listed, created, updated and deleted.

/{queue or topic}
/{topic}/Subscriptions                      /{topic}/Subscriptions/{name}
/{topic}/Subscriptions/{name}/Rules         /{topic}/Subscriptions/{name}/Rules/{rule}
/$Resources/queues                          /$Resources/topics
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from pairbus.broker.admin import AdminNamespace, QueueInfo, SubscriptionInfo, TopicInfo
from pairbus.broker.admin.atom import feed
from pairbus.broker.admin.entity_xml import queue_entry, subscription_entry, topic_entry
from pairbus.broker.admin.rule_xml import read_default_rule, read_rule, rule_entry
from pairbus.broker.admin.settings import created, updated
from pairbus.broker.admin.xml import Element, parse_description
from pairbus.broker.description import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.wire.address import EntityName, parse_entity
from pairbus.errors import EntityNotFound

PAGE_SIZE_MAX = 100
VERSIONS = (
    "2013-08",
    "2013-10",
    "2014-01",
    "2014-05",
    "2014-09",
    "2015-01",
    "2016-07",
    "2017-04",
    "2021-05",
    "2024-05",
)

_STARTSWITH = re.compile(r"\s*startswith\s*\(\s*path\s*,\s*'((?:[^']|'')*)'\s*\)\s*eq\s*true\s*", re.IGNORECASE)
Info = QueueInfo | TopicInfo | SubscriptionInfo | RuleDescription


class AdminRefusal(Exception):
    """An answer other than success, decided by the resources; it carries the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Call:
    """The parts of a request that decide about an answer."""

    path: str
    base_url: str
    "Scheme and authority of the request: links in answers must lead back to where the client came in."
    version: str
    query: Mapping[str, str]

    @classmethod
    def of(cls, path: str, base_url: str, query: Mapping[str, str]) -> Call:
        """Check the API version; a request without one gets the newest."""
        version = query.get("api-version", VERSIONS[-1])
        if version not in VERSIONS:
            raise AdminRefusal(
                400, f"SubCode=40000. api-version {version!r} is not supported; known are {', '.join(VERSIONS)}"
            )
        return cls(path, base_url, version, query)


class Resources:
    """The entities of one namespace, in the documents of the administration API."""

    def __init__(self, namespace: AdminNamespace) -> None:
        self._namespace = namespace

    # ── reading ──

    def show(self, call: Call) -> tuple[str, str]:
        """Return `entry` or `feed`, and the document."""
        name = parse_entity(call.path)
        if name.lists is not None and not self._is_root(call.path):
            if name.subscription is None:
                return "feed", self._feed(
                    call, self._namespace.subscription_keys(name.root), f"{name.root}/Subscriptions/"
                )
            keys = self._namespace.rule_keys(name.root, name.subscription)
            return "feed", self._feed(call, keys, f"{name.root}/Subscriptions/{name.subscription}/Rules/")
        return "entry", self._entry(call, self._info(call.path))

    def list_roots(self, call: Call, kind: str) -> str:
        """List the queues or the topics."""
        keys = self._namespace.queue_keys() if kind == "queues" else self._namespace.topic_keys()
        prefix = _filtered_prefix(call.query.get("$filter"))
        return self._feed(call, [key for key in keys if key.startswith(prefix)], "")

    def known_path(self, path: str) -> str | None:
        """Return the path of an existing entity as its creator spelled it; None when there is no such entity."""
        try:
            return _path_of(self._info(path))
        except EntityNotFound:
            return None

    def _is_root(self, path: str) -> bool:
        try:
            self._root(path)
        except EntityNotFound:
            return False
        return True

    def _root(self, path: str) -> QueueInfo | TopicInfo:
        try:
            return self._namespace.queue_info(path)
        except EntityNotFound:
            return self._namespace.topic_info(path)

    def _info(self, path: str) -> Info:
        name = parse_entity(path)
        if name.subscription is None or self._is_root(path):
            return self._root(path)
        if name.rule is None:
            return self._namespace.subscription_info(name.root, name.subscription)
        return self._namespace.rule(name.root, name.subscription, name.rule)

    def _entry(self, call: Call, info: Info) -> str:
        match info:
            case QueueInfo():
                return queue_entry(info, call.base_url, self._namespace.name, call.version)
            case TopicInfo():
                return topic_entry(info, call.base_url, self._namespace.name, call.version)
            case SubscriptionInfo():
                return subscription_entry(info, call.base_url, self._namespace.name, call.version)
            case RuleDescription():
                return rule_entry(info, call.base_url, self._namespace.name)

    def _feed(self, call: Call, keys: Sequence[str], parent: str) -> str:
        """Write one page of a listing. Only the entities of the page are looked at."""
        skip = _page_number(call.query.get("$skip"), "$skip", default=0)
        top = _page_number(call.query.get("$top"), "$top", default=PAGE_SIZE_MAX)
        top = min(top or PAGE_SIZE_MAX, PAGE_SIZE_MAX)
        url = f"{call.base_url}/{quote(call.path, safe='/$')}"
        next_url = None
        if skip + top < len(keys):
            filtered = f"&$filter={quote(call.query['$filter'])}" if "$filter" in call.query else ""
            next_url = f"{url}?api-version={call.version}&$skip={skip + top}&$top={top}{filtered}"
        entries = [self._entry(call, self._info(f"{parent}{key}")) for key in keys[skip : skip + top]]
        title = call.path.rpartition("/")[2]
        return feed(title, entries, f"{url}?api-version={call.version}", next_url, self._namespace.now_ms())

    # ── writing ──

    async def put(self, call: Call, body: bytes, condition: str | None) -> tuple[int, str]:
        """Create, or update when the condition is `*`; return the status and the entry."""
        kind, element = parse_description(body)
        if condition is None:
            return 201, self._entry(call, await self._create(call, kind, element))
        if condition.strip() != "*":
            raise AdminRefusal(412, f"If-Match is {condition!r}; only '*' can match, because no answer carries an ETag")
        return 200, self._entry(call, await self._update(call, kind, element))

    async def delete(self, path: str) -> None:
        name = parse_entity(path)
        if name.lists is not None and not self._is_root(path):
            raise AdminRefusal(405, f"'/{path}' is a list; delete its entries one by one")
        await self._namespace.delete(path)

    async def _create(self, call: Call, kind: str, element: Element) -> Info:
        name, version, now_ms = parse_entity(call.path), call.version, self._namespace.now_ms()
        _check_kind(kind, name, call.path)
        match kind:
            case "QueueDescription":
                queue = created(QueueDescription(call.path), element, version, now_ms)
                return QueueInfo(await self._namespace.create(queue), 0, 0, 0, 0, 0, 0)
            case "TopicDescription":
                topic = created(TopicDescription(call.path), element, version, now_ms)
                return TopicInfo(await self._namespace.create(topic), 0, 0, 0, 0, 0, 0)
            case "SubscriptionDescription":
                return await self._create_subscription(name, element, version)
        assert name.subscription is not None and name.rule is not None
        return await self._namespace.create(read_rule(element, name.root, name.subscription, name.rule))

    async def _create_subscription(self, name: EntityName, element: Element, version: str) -> SubscriptionInfo:
        assert name.subscription is not None
        new = SubscriptionDescription(name.root, name.subscription)
        subscription = created(new, element, version, self._namespace.now_ms())
        rule = read_default_rule(element, name.root, name.subscription)
        if rule is None:
            stored = await self._namespace.create(subscription)
        else:
            stored = await self._namespace.create_subscription(subscription, [rule])
        return SubscriptionInfo(stored, 0, 0, 0, 0, 0, 0)

    async def _update(self, call: Call, kind: str, element: Element) -> Info:
        name, now_ms = parse_entity(call.path), self._namespace.now_ms()
        info = self._info(call.path)
        if isinstance(info, RuleDescription):
            _check_kind(kind, name, call.path)
            assert name.subscription is not None and name.rule is not None
            return await self._namespace.update(read_rule(element, name.root, name.subscription, name.rule))
        current: Any = info.description
        if kind != type(current).__name__:
            raise AdminRefusal(400, f"SubCode=40000. '{current.path}' is a {current.KIND}; the request has a {kind}")
        stored: Any = await self._namespace.update(updated(current, element, call.version, now_ms))
        return replace(info, description=stored)


def _check_kind(kind: str, name: EntityName, path: str) -> None:
    """Check that the description fits the place of the entity in the URL."""
    if name.rule is not None:
        expected: tuple[str, ...] = ("RuleDescription",)
    elif name.subscription is not None:
        expected = ("SubscriptionDescription",)
    else:
        expected = ("QueueDescription", "TopicDescription")
    if kind not in expected or name.lists is not None:
        raise AdminRefusal(
            400, f"SubCode=40000. '/{path}' is no place for a {kind}; expected is {' or '.join(expected)}"
        )


def _path_of(info: Info) -> str:
    return info.path if isinstance(info, RuleDescription) else info.description.path


def _filtered_prefix(text: str | None) -> str:
    if text is None or not text.strip():
        return ""
    match = _STARTSWITH.fullmatch(text)
    if match is None:
        raise AdminRefusal(400, f"SubCode=40000. $filter {text!r}: only startswith(path, '…') eq true is supported")
    return match[1].replace("''", "'").lower()


def _page_number(text: str | None, name: str, *, default: int) -> int:
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII):
        raise AdminRefusal(400, f"SubCode=40000. {name} is {text!r}; it must be a whole number from 0")
    return int(text)
