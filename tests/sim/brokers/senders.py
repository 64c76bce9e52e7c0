"""Clients that send: one message or a batch, now or later, new or once more, and cancel what is scheduled."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pairbus.broker.entities.draft import Draft
from pairbus.broker.refusal import Refusal
from tests.broker.topic_world import draft
from tests.sim.brokers.ledger import Call, Ledger, Sent
from tests.sim.brokers.topology import COLORS, SESSIONS

if TYPE_CHECKING:
    from tests.sim.brokers.world import World

LATER_MS = (50, 500, 3_000)


class Sender:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.ledger: Ledger = world.ledger
        self._dice = world.dice

    def trace(self, text: str) -> None:
        self.world.trace(f"{self.name} {text}")

    # ── sending ──

    def send(self) -> None:
        """Send one message or a batch."""
        dice = self._dice
        entry = dice.choice(self.world.topology.entries)
        later_ms = dice.choice(LATER_MS) if dice.random() < 0.15 else 0
        messages = [self._new(entry, later_ms) for _ in range(dice.choice((1, 1, 1, 2, 4)))]
        known = [each for each in self.ledger.sent.values() if each.entry == entry and not each.cancels]
        if self.world.topology.places[entry].detects_duplicates and known and dice.random() < 0.4:
            again = dice.choice(known)
            messages = dice.choice(([again], [again, *messages], [*messages, again]))
        self._send(entry, list({each.text: each for each in messages}.values()))

    def _new(self, entry: str, later_ms: int) -> Sent:
        dice, world = self._dice, self.world
        text, color = f"m{world.number()}", dice.choice(COLORS)
        leaves = world.topology.arrivals(entry, color)
        session_id: str | None = dice.choice(SESSIONS)
        if dice.random() < 0.1 and not any(self._needs_session(leaf, entry) for leaf in leaves):
            session_id = None
        ttl_ms = 0
        if dice.random() < 0.1 and all(world.topology.is_direct(entry, leaf) for leaf in leaves):
            ttl_ms = dice.choice((300, 2_000))
        now_ms = world.now_ms()
        at_ms = now_ms + later_ms if later_ms else 0
        body = draft(text, color=color).body
        return Sent(text, entry, color, session_id, body, ttl_ms, at_ms, now_ms)

    def _needs_session(self, leaf: str, entry: str) -> bool:
        """A subscription with sessions dead-letters a message that has none; a queue must not get it."""
        place = self.world.topology.places[leaf]
        return place.has_sessions and place.topic != entry

    def _send(self, entry: str, messages: list[Sent]) -> None:
        call = self.ledger.call([each.text for each in messages])
        for each in messages:
            self.ledger.sent[each.text] = each
            each.calls.append(call)
        assert self.world.process is not None
        entity = self.world.process.entry(entry)
        drafts, now_ms = [_draft(each) for each in messages], self.world.now_ms()
        if messages[0].scheduled_ms > now_ms and self._dice.random() < 0.7:
            self.trace(f"schedules {call.texts} in {entry}")
            entity.schedule(drafts, now_ms, partial(self._scheduled, call, messages))
        else:
            self.trace(f"sends {call.texts} to {entry}")
            entity.send(drafts, now_ms, partial(self._answered, call))
        self.world.process.used(entry)

    def _answered(self, call: Call, refusal: Refusal | None) -> None:
        self.trace(f"hears of {call.texts}: {'accepted' if refusal is None else refusal.condition}")
        self.ledger.answered(call, refusal is None)

    def _scheduled(self, call: Call, messages: list[Sent], answer: Refusal | list[int]) -> None:
        self._answered(call, answer if isinstance(answer, Refusal) else None)
        for each, seq in zip(messages, () if isinstance(answer, Refusal) else answer, strict=False):
            each.seq = each.seq or seq

    def cancel(self) -> None:
        """Cancel a scheduled message, whose time may have come already."""
        known = [each for each in self.ledger.sent.values() if each.seq and not each.cancels]
        if not known:
            return
        sent = self._dice.choice(known[-3:])
        call = self.ledger.call([sent.text])
        sent.cancels.append(call)
        self.trace(f"cancels {sent.text} of {sent.entry}")
        assert self.world.process is not None
        entity = self.world.process.entry(sent.entry)
        entity.cancel_scheduled([sent.seq], self.world.now_ms(), partial(self._answered, call))
        self.world.process.used(sent.entry)


def _draft(sent: Sent) -> Draft:
    return Draft(
        sent.body,
        message_id=sent.text,
        ttl_ms=sent.ttl_ms,
        scheduled_ms=sent.scheduled_ms,
        session_id=sent.session_id,
    )
