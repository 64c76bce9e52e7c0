"""Compares two looks: a browser needs the difference, and a user wants to read the events. No I/O.

A look is plain JSON without nulls. The difference is a merge patch (RFC 7396): a null removes a key, so that watching
a thousand entities costs a line of text for each one that changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pairbus.pairing.rotation import primary_of

STATE_WORDS = {
    "HEALTHY": "healthy again",
    "SUSPECT": "suspect: sends fail",
    "FAILED_OVER": "failed over",
    "HELD_OVER": "failed over by hand",
}
NAMES_MAX = 5  # of entities in one event


def without_nulls(value: Any) -> Any:
    """Return JSON without its null members."""
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return value


def patch_of(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes `after` of `before`; empty when they are equal."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if old == value and type(old) is type(value):
            continue
        if isinstance(old, dict) and isinstance(value, dict):
            patch[key] = patch_of(old, value)
        else:
            patch[key] = value
    return patch


def patched(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a merge patch, as the browser does."""
    after = dict(before)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, dict):
            old = after.get(key)
            after[key] = patched(old if isinstance(old, dict) else {}, value)
        else:
            after[key] = value
    return after


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the list of events."""

    kind: str
    "Kind: namespace, fault, state, backlog, entity or dead-letter."
    tone: str
    "Colour of the line: good, bad or plain."
    text: str
    namespace: str | None = None
    entity: str | None = None


def happenings(before: dict[str, Any], after: dict[str, Any]) -> list[Happening]:
    """Return the events between two looks, in a good order for reading."""
    news: list[Happening] = []
    earlier = before.get("namespaces", {})
    for name, namespace in after.get("namespaces", {}).items():
        old = earlier.get(name)
        if old is not None:
            news += _of_namespace(name, old, namespace)
    news += _of_states(_states(before), _states(after))
    news += _of_backlog(before.get("pair", {}).get("backlog", {}), after.get("pair", {}).get("backlog", {}))
    return news


def _of_namespace(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Happening]:
    if before.get("reachable", True) != after.get("reachable", True):
        if after.get("reachable", True):
            yield Happening("namespace", "good", f"{name} answers again", name)
        else:
            yield Happening("namespace", "bad", f"{name} is away: {after.get('error', 'no answer')}", name)
    faults = {one["id"]: one for one in before.get("faults", [])}
    now = {one["id"]: one for one in after.get("faults", [])}
    for number in now.keys() - faults.keys():
        yield Happening("fault", "bad", f"fault on in {name}: {fault_words(now[number])}", name)
    for number in faults.keys() - now.keys():
        yield Happening("fault", "good", f"fault off in {name}: {fault_words(faults[number])}", name)
    moved_s = after.get("clock", {}).get("offset_seconds", 0) - before.get("clock", {}).get("offset_seconds", 0)
    if moved_s > 0:
        yield Happening("clock", "plain", f"the clock of {name} moved by {moved_s:g} s", name)
    if "entities" in before and "entities" in after:
        yield from _of_entities(name, before["entities"], after["entities"])


def _of_entities(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Happening]:
    if before == after:
        return
    for word, paths in (
        ("created", sorted(after.keys() - before.keys())),
        ("deleted", sorted(before.keys() - after.keys())),
    ):
        if paths:
            more = f" and {len(paths) - NAMES_MAX} more" if len(paths) > NAMES_MAX else ""
            yield Happening("entity", "plain", f"{word} in {name}: {', '.join(paths[:NAMES_MAX])}{more}", name)
    for path, entity in after.items():
        dead, was_dead = entity.get("dead", 0), before.get(path, entity).get("dead", 0)
        if dead > was_dead:
            many = "1 message" if dead - was_dead == 1 else f"{dead - was_dead} messages"
            yield Happening("dead-letter", "bad", f"{many} dead-lettered in {path}", name, path)


def fault_words(fault: dict[str, Any]) -> str:
    """Describe a fault in a few words."""
    place = f" of {fault['entity']}" if fault.get("entity") else ""
    direction = f", {fault['direction']}" if fault.get("direction") else ""
    return f"{fault['kind']}{place}{direction}"


def _states(look: dict[str, Any]) -> dict[str, Any]:
    entities: dict[str, Any] = look.get("pair", {}).get("entities", {})
    return entities


def _of_states(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Happening]:
    for path, entity in after.items():
        state, earlier = entity["state"], before.get(path, {}).get("state", "HEALTHY")
        if state != earlier:
            tone = "good" if state == "HEALTHY" else "bad"
            cause = f" ({entity['cause']})" if entity.get("cause") and tone == "bad" else ""
            yield Happening("state", tone, f"{path}: {STATE_WORDS.get(state, state)}{cause}", None, path)


def _of_backlog(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Happening]:
    if not before or not after:
        return
    had, has = before.get("messages", 0), after.get("messages", 0)
    if has and not had:
        yield Happening("backlog", "bad", f"messages wait in backlog queues: {has}")
    if had and not has:
        yield Happening("backlog", "good", "the backlog is drained")


def backlog_of(
    entities: dict[str, Any], primary_name: str | None = None, ages: dict[str, float] | None = None
) -> dict[str, Any]:
    """Sum the backlog queues among entities; of one primary, or of all. `ages`: path → age of the oldest message."""
    queues = {
        path: entity
        for path, entity in entities.items()
        if (name := primary_of(path)) is not None and (primary_name is None or name.lower() == primary_name.lower())
    }
    full = {
        path: without_nulls(
            {
                "messages": queue.get("active", 0),
                "dead": queue.get("dead", 0),
                "oldest_s": round(ages[path]) if ages and path in ages and queue.get("active") else None,
            }
        )
        for path, queue in queues.items()
        if queue.get("active") or queue.get("dead")
    }
    sums = {
        "queues": len(queues),
        "messages": sum(queue.get("active", 0) for queue in queues.values()),
        "dead": sum(queue.get("dead", 0) for queue in queues.values()),
    }
    oldest = [one["oldest_s"] for one in full.values() if "oldest_s" in one]
    if oldest:
        sums["oldest_s"] = max(oldest)
    return {**sums, "by_queue": full}
