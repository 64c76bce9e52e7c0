"""Judge of a history: the answers that callers got, compared with the messages at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pairbus.pairing.commands import Where
from pairbus.pairing.failover import State

if TYPE_CHECKING:
    from tests.sim.broker import Copy
    from tests.sim.world import World


@dataclass(slots=True)
class Call:
    """One send, and its caller's knowledge of it."""

    message_id: str
    path: str
    payload: bytes
    lane: str
    "Sender of the call: the calls of a lane follow each other."
    receipt: Where | None = None
    "The caller was told where the message is stored."
    refusal: str = ""
    "The caller was told that the message is stored nowhere."
    may_be_stored: bool = False
    "The caller was told, with the refusal, that the message may be stored all the same."


@dataclass(slots=True)
class History:
    calls: dict[str, Call] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    "Ids that may be there twice: a process stored or completed them, and its answer was lost."
    uncompleted: set[str] = field(default_factory=set)
    "Ids whose completion was refused: another process, which cannot know, may bring them home once more."
    reported: set[str] = field(default_factory=set)
    "Ids that a caller or operator was told may be there twice."
    lost_links: int = 0
    "Receivers that ended with messages under their locks, which their queue keeps back until the locks run out."
    _doubts: dict[asyncio.Future[Any], list[str]] = field(default_factory=dict)

    def in_doubt(self, request: asyncio.Future[Any], ids: list[str]) -> None:
        """Note a request that concerns these ids; its outcome is unknown until its answer is heard."""
        self._doubts[request] = ids

    def heard(self, request: asyncio.Future[Any]) -> None:
        self._doubts.pop(request, None)

    def excuse(self, ids: Iterable[str]) -> None:
        self.excused.update(ids)

    def close(self) -> None:
        for ids in self._doubts.values():
            self.excused.update(ids)


def violations(world: World) -> list[str]:
    """Return one line for each broken promise; none for a world in which all were kept."""
    history = world.history
    history.close()
    found = [f"asyncio: {complaint}" for complaint in world.loop.complaints]
    home: dict[str, list[Copy]] = {}
    for queue in world.primary.queues.values():
        for copy in queue.history:
            home.setdefault(copy.message_id, []).append(copy)
            found += _check_copy(history, queue.path, copy)
    for call in history.calls.values():
        found += _check_call(world, call, home.get(call.message_id, []))
    found += _check_rest(world)
    return found + _check_order(world)


def _check_copy(history: History, path: str, copy: Copy) -> list[str]:
    call = history.calls[copy.message_id]
    found = []
    if path != call.path.lower():
        found.append(f"misrouted: {copy.message_id} for {call.path} is in {path}, via {copy.via}")
    if copy.payload != call.payload:
        found.append(f"altered: {copy.message_id} via {copy.via}: {copy.payload!r} is not {call.payload!r}")
    return found


def _check_call(world: World, call: Call, copies: list[Copy]) -> list[str]:
    found = []
    elsewhere = world.elsewhere(call.message_id)
    if call.receipt is not None and not copies and not elsewhere:
        found.append(f"lost: {call.message_id} for {call.path}, its caller was told {call.receipt.value}")
    if call.refusal and not call.may_be_stored and (copies or elsewhere):
        where = [copy.via for copy in copies] + elsewhere
        found.append(f"untrue: {call.message_id} is stored ({where}), its caller was told {call.refusal!r}")
    a_queue_works = not world.unreliable.issuperset(world.secondary.queues)
    if call.refusal.startswith(Where.BACKLOG.value) and a_queue_works:
        found.append(f"unavailable: {call.message_id} was refused ({call.refusal}), and a queue had no trouble at all")
    by_others = call.message_id in world.history.uncompleted and len({copy.via for copy in copies}) == len(copies)
    if len(copies) > 1 and not by_others and call.message_id not in world.history.excused:
        found.append(f"duplicate: {call.message_id} came via {[(copy.via, round(copy.at, 3)) for copy in copies]}")
    return found + _check_report(world, call, copies)


def _check_report(world: World, call: Call, copies: list[Copy]) -> list[str]:
    """A message that the primary has stored itself, and that comes home later than duplicate detection remembers."""
    window_s = world.options.duplicate_detection_window
    stored = [copy.at for copy in copies if copy.via.endswith("direct")]
    late = [copy for copy in copies if copy.via.endswith("syphon") and stored and copy.at > stored[0] + window_s]
    if not late or call.receipt is None or call.message_id in world.history.reported:
        return []
    return [f"not reported: {call.message_id} is there twice, {late[0].at - stored[0]:.0f} s apart"]


def _check_rest(world: World) -> list[str]:
    """Check that no message waits, no queue is out of the rotation and no entity is away, once the world is healed."""
    found = []
    for queue in world.secondary.queues.values():
        found += [f"left behind: {copy.message_id} in {queue.path}" for copy in queue.copies.values()]
        if not world.may_dead_letter:
            found += [f"dead-lettered: {copy.message_id} in {queue.path}: {copy.reason}" for copy in queue.dead]
        found += [f"dead-lettered without a reason: {copy.message_id}" for copy in queue.dead if len(copy.reason) < 10]
    for process in world.senders:
        if not process.is_alive:
            continue
        states = [f"{entity.path} {entity.state.value}" for entity in process.pair.entities()]
        found += [f"not healthy: {state} in {process.name}" for state in states if State.HEALTHY.value not in state]
        rotation = process.pair.rotation
        rotation.pick(None, world.loop.time() + process.pair.options.backlog_retry_interval)
        found += [f"out for ever: {path} in {process.name}" for path in rotation.queues if not rotation.has(path)]
        if process.spool is not None:
            waiting = process.spool.disk.waiting.values()
            found += [f"left in the spool: {entry.message_id} of {process.name}" for entry in waiting]
            refused = process.spool.disk.refused.values() if not world.may_dead_letter else ()
            found += [f"refused by the spool: {entry.message_id}: {reason}" for entry, reason in refused]
    return found


def _check_order(world: World) -> list[str]:
    """Check that a spool brings the messages of a lane home in the order in which they were sent. Where order is
    kept, the one syphon does so too, from any number of queues, also when it loses its links or is killed and
    another one follows.

    Not what a caller was told had failed, before it sent the next one: that may be stored whenever its bytes arrive.
    """
    roles = {"spool", "syphon"} if world.keeps_order else {"spool"}
    places = {message_id: place for place, message_id in enumerate(world.history.calls)}
    found = []
    for queue in world.primary.queues.values():
        latest: dict[tuple[str, str], int] = {}
        seen: set[tuple[str, str]] = set()
        for copy in queue.history:
            call, role = world.history.calls[copy.message_id], copy.via.split()[-1]
            if role not in roles or (role, copy.message_id) in seen or call.refusal:
                continue
            seen.add((role, copy.message_id))
            key, place = (role, call.lane), places[copy.message_id]
            if place < latest.get(key, -1):
                found.append(f"out of order: {copy.message_id} of {call.lane} came home late, via {copy.via}")
            latest[key] = max(place, latest.get(key, -1))
    return found
