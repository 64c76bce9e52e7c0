"""Entities of one history, and where a message that is sent to one of them must arrive. Knows no code of the broker but
its descriptions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from pairbus.broker.description import QueueDescription, RuleDescription, SubscriptionDescription, TopicDescription
from pairbus.filters import CorrelationFilter, Filter, SqlAction, SqlFilter, TrueFilter

COLORS = ("red", "blue")
SESSIONS = ("s0", "s1", "s2")
WINDOW_MS = 3_600_000  # longer than any history: an id that was accepted stays known
GRAVE = "grave"

Description = QueueDescription | TopicDescription | SubscriptionDescription


@dataclass(frozen=True, slots=True)
class Place:
    """Entity of the broker, with its description and rules."""

    path: str
    description: Description
    color: str | None = None
    "Color of the messages that a subscription selects; None: all of them."
    rules: tuple[tuple[Filter, SqlAction | None], ...] = ()

    @property
    def is_topic(self) -> bool:
        return isinstance(self.description, TopicDescription)

    @property
    def forward_to(self) -> str | None:
        return None if isinstance(self.description, TopicDescription) else self.description.forward_to

    @property
    def forward_dead_to(self) -> str | None:
        return None if isinstance(self.description, TopicDescription) else self.description.forward_dead_lettered_to

    @property
    def has_sessions(self) -> bool:
        return not isinstance(self.description, TopicDescription) and self.description.requires_session

    @property
    def detects_duplicates(self) -> bool:
        return getattr(self.description, "requires_duplicate_detection", False)

    @property
    def buries_expired(self) -> bool:
        return getattr(self.description, "dead_letter_on_expiration", False)

    @property
    def changes_copies(self) -> bool:
        return any(action is not None for _, action in self.rules)

    @property
    def topic(self) -> str | None:
        return self.description.topic if isinstance(self.description, SubscriptionDescription) else None


class Topology:
    """The entities, destinations before the entities that forward to them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.places: dict[str, Place] = {}
        self._arrivals: dict[tuple[str, str], Counter[str]] = {}
        self._add(Place(GRAVE, QueueDescription(GRAVE, **self._receiving())))
        queues = []
        for number in range(dice.choice((1, 2, 2))):
            path = f"q{number}"
            has_sessions, detects = dice.choice(((False, False), (True, False), (False, True), (True, True)))
            settings = self._receiving() | self._buries()
            settings |= {"requires_session": has_sessions} | self._window(detects)
            self._add(Place(path, QueueDescription(path, **settings)))
            queues.append(path)
        if dice.random() < 0.6:
            self._add_topic("t", queues)
            queues.append("t")
        if dice.random() < 0.5:
            self._add_forwarding("f0", dice.choice(queues))
            if dice.random() < 0.4:
                self._add_forwarding("f1", "f0")
        self.entries = [path for path, place in self.places.items() if place.topic is None and path != GRAVE]
        self.leaves = [path for path, place in self.places.items() if not place.is_topic and not place.forward_to]

    def _receiving(self) -> dict[str, Any]:
        dice = self._dice
        return {
            "lock_duration_ms": dice.choice((1_000, 2_000, 5_000)),
            "max_delivery_count": dice.choice((1, 3, 3, 10)),
            "dead_letter_on_expiration": dice.random() < 0.5,
        }

    def _buries(self) -> dict[str, Any]:
        return {"forward_dead_lettered_to": GRAVE if self._dice.random() < 0.3 else None}

    def _window(self, detects: bool) -> dict[str, Any]:
        return {"requires_duplicate_detection": detects, "duplicate_window_ms": WINDOW_MS}

    def _add(self, place: Place) -> None:
        self.places[place.path] = place

    def _add_forwarding(self, path: str, to: str) -> None:
        settings = self._window(self._dice.random() < 0.2)
        self._add(Place(path, QueueDescription(path, forward_to=to, **settings)))

    def _add_topic(self, path: str, queues: list[str]) -> None:
        dice = self._dice
        for number in range(dice.choice((1, 2, 3))):
            settings = self._receiving() | self._buries()
            color, rules = self._rules()
            kind = dice.choice(("plain", "plain", "sessions", "forwards"))
            if kind == "sessions":
                settings["requires_session"] = True
            elif kind == "forwards":
                settings["forward_to"] = dice.choice(queues)
            elif dice.random() < 0.3:
                rules = [(found, SqlAction("SET seen = 1")) for found, _ in rules[:1]]
            description = SubscriptionDescription(path, f"sub{number}", **settings)
            self._add(Place(description.path, description, color, tuple(rules)))
        self._add(Place(path, TopicDescription(path, **self._window(dice.random() < 0.3))))

    def _rules(self) -> tuple[str | None, list[tuple[Filter, SqlAction | None]]]:
        """A selection, and rules that mean it. Two rules that both match are one copy all the same."""
        color = self._dice.choice((None, *COLORS))
        filters: list[Filter] = [TrueFilter(), SqlFilter("color = 'red' OR color = 'blue'")]
        if color is not None:
            filters = [SqlFilter(f"color = '{color}'"), CorrelationFilter(properties={"color": color})]
        return color, [(found, None) for found in self._dice.choice((filters, filters[:1], filters[1:]))]

    def descriptions(self) -> list[str]:
        """The stored form of every entity."""
        found = []
        for place in self.places.values():
            found.append(place.description.to_json())
            if isinstance(place.description, SubscriptionDescription):
                found += [
                    RuleDescription(place.description.topic, place.description.name, f"r{at}", each, action).to_json()
                    for at, (each, action) in enumerate(place.rules)
                ]
        return found

    # ── where a message must arrive ──

    def arrivals(self, entry: str, color: str) -> Counter[str]:
        """The places where copies of a message come to rest, and how many in each."""
        found = self._arrivals.get((entry, color))
        if found is None:
            found = self._arrivals[entry, color] = self._arriving(entry, color)
        return found

    def _arriving(self, entry: str, color: str) -> Counter[str]:
        under_way, found = Counter({entry: 1}), Counter[str]()
        for place in reversed(self.places.values()):
            count = under_way.pop(place.path, 0)
            if place.detects_duplicates:
                count = min(count, 1)
            if not count:
                continue
            if place.is_topic:
                for each in self.places.values():
                    if each.topic == place.path and each.color in (None, color):
                        under_way[each.path] += count
            elif place.forward_to is not None:
                under_way[place.forward_to] += count
            else:
                found[place.path] += count
        return found

    def is_direct(self, entry: str, leaf: str) -> bool:
        """Whether a message gets there without being forwarded."""
        return leaf == entry or self.places[leaf].topic == entry

    def sources_of(self, leaf: str) -> list[str]:
        """The places whose messages may be found here: itself, and those that forward their dead letters to it."""
        return [leaf, *(path for path, place in self.places.items() if place.forward_dead_to == leaf)]
