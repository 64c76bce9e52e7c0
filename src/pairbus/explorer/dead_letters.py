"""Groups dead letters by reason, and sends them back by the re-drive of Pairbus."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.message import Message
from pairbus.backlog.envelope import Home, Spoiled
from pairbus.errors import ConfigError
from pairbus.explorer.address import Address
from pairbus.explorer.message import DESCRIPTION, ENQUEUED_TIME, REASON, annotations_of, sequence_number_of
from pairbus.explorer.pages import walk
from pairbus.explorer.progress import Progress
from pairbus.explorer.times import time_text
from pairbus.pairing.events import Event
from pairbus.syphon import Syphon
from pairbus.syphon.decide.redriving import Redriving
from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.syphon.shared import wall_ms
from pairbus.transport import Carrier

NOT_CHOSEN = "NotChosen"


@dataclass(slots=True)
class Group:
    """Dead letters of one reason."""

    reason: str
    count: int = 0
    description: str | None = None
    "Description of the first letter."
    first_sequence_number: int | None = None
    oldest: str | None = None
    newest: str | None = None
    "Enqueued times of the oldest and the newest letter."


async def grouped(carrier: Carrier, address: Address, progress: Progress | None = None) -> list[Group]:
    """Group the dead letters of a queue or subscription by their reason, the largest group first."""
    progress = progress or Progress()
    groups: dict[str, Group] = {}
    async for page in walk(carrier, Address(address.owner, is_dead_letter=True), bodies=False):
        for payload in page:
            _add(groups, payload)
        progress.step(done=len(page))
    return sorted(groups.values(), key=lambda group: (-group.count, group.reason))


def _add(groups: dict[str, Group], payload: bytes) -> None:
    reason, description = reason_of(payload)
    group = groups.setdefault(reason, Group(reason))
    enqueued = annotations_of(payload).get(ENQUEUED_TIME)
    moment = time_text(int(enqueued)) if isinstance(enqueued, int) else None
    if not group.count:
        group.description, group.first_sequence_number = description, sequence_number_of(payload)
    group.count += 1
    if moment is not None:
        group.oldest = min(group.oldest or moment, moment)
        group.newest = max(group.newest or moment, moment)


def reason_of(payload: bytes) -> tuple[str, str | None]:
    """Return reason and description of a dead letter; the reason is empty when it has none."""
    try:
        message = Message.decode(payload)
    except ProtocolError:
        return "", None
    reason, description = message.property(REASON), message.property(DESCRIPTION)
    return "" if reason is None else str(reason), None if description is None else str(description)


def redrive(
    carrier: Carrier,
    address: Address,
    *,
    reasons: Collection[str] | None = None,
    path: str | None = None,
    duplicate_window_s: float | None = None,
    new_ids: bool = False,
    publish: Callable[[Event], None] = lambda event: None,
) -> Syphon:
    """Make a syphon that sends dead letters back, those of some reasons or all: `await redrive(…).run_once()`.

    Letters of other reasons stay, and count as blocked. The rest is as in `pairbus.syphon.redrive`: a message is
    completed after its entity has accepted it, `stop` leaves no message locked. An entity that detects duplicates would
    drop letters whose ids it remembers: they stay unless `new_ids` is given; a `duplicate_window_s` of 0 means that the
    entity does not detect duplicates, None that this is not known.
    """
    if reasons is not None and not reasons:
        raise ConfigError("reasons is empty: name the reasons whose dead letters are sent back")
    origin = f"{carrier.endpoint.authority}/{address.owner}"
    letters = Redriving(path or address.destination, origin, duplicate_window_s, new_ids)

    def opened(payload: bytes) -> Home | Spoiled:
        reason, _ = reason_of(payload)
        if reasons is not None and reason not in reasons:
            return Spoiled(NOT_CHOSEN, f"Its reason is {reason!r}, which was not asked for.")
        return letters.open(payload, wall_ms())

    return Syphon(
        carrier,
        carrier,
        [address.owner],
        settings=SyphonSettings(),
        publish=publish,
        new_opener=lambda: opened,
        sub_queue="dead-letter",
    )
