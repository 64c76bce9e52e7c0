"""Takes messages out of an entity: receive under lock, act, complete. Receive, move and purge use it.

The service delivers messages in their order only, and a message can be passed over only by holding its lock. A choice
of messages is therefore found by peeking first; then messages are received until all chosen ones have arrived; the
others are held meanwhile and released at the end.

Laws of this file.
 1. A message is completed only after `act` has returned it.
 2. A batch is acted upon and completed to its end, or released: also when the caller is cancelled.
 3. Messages that arrive after the beginning are not touched.
 4. A message that comes again after `act` has returned it is completed, and not acted upon once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pairbus.explorer.address import Address
from pairbus.explorer.calls import RetryPatience, explained, is_passing, uninterrupted
from pairbus.explorer.choice import Choice, state_of
from pairbus.explorer.intake import CREDIT, WAIT_S, MessageIntake
from pairbus.explorer.message import sequence_number_of, session_id_of
from pairbus.explorer.pages import NUMBER_MAX, extent, peek, search, walk
from pairbus.explorer.progress import Progress
from pairbus.transport import Carrier, ReceivedMessage, TransportError

HELD_MAX = 20_000  # messages that are passed over and held; only their locks are kept, 20 000 × 0.3 KB
LEFT_MAX = 1_000  # messages that are counted one by one at the end
CHOSEN_WAIT_S = 10.0  # wait for messages chosen by number, which exist: a message of 100 MB takes its time


@dataclass(slots=True)
class Acted:
    """Says what `act` did with a batch."""

    done: list[ReceivedMessage] = field(default_factory=list)
    "Messages to complete; the others of the batch are released."
    error: TransportError | None = None
    "Reason why the others are not done; they are tried again when the trouble may pass."
    failed_at: tuple[Carrier, str] | None = None
    "Namespace and entity that the error is about; None: the entity that messages are taken from."


ActOnMessages = Callable[[list[ReceivedMessage]], Awaitable[Acted]]


@dataclass(slots=True)
class Taking:
    """One run over an entity. `limit`: the largest number of messages to take."""

    carrier: Carrier
    address: Address
    choice: Choice
    act: ActOnMessages
    progress: Progress
    limit: int | None = None
    wait_s: float = WAIT_S
    only_present: bool = True
    "True: messages that arrive after the beginning are not touched."
    last: int | None = None
    "Highest sequence number at the beginning, where the caller knows it; None: that of the first look."
    _wanted: dict[int, str | None] | None = None
    "Sequence numbers of the chosen messages that are not completed, and their sessions; None: all messages."
    _wanted_in: Counter[str | None] = field(default_factory=Counter)
    "Number of these messages by session."
    _uncompleted: set[int] = field(default_factory=set)
    "Sequence numbers of messages that were acted upon, and are not known to be completed."
    _last: int = NUMBER_MAX
    _left: int = NUMBER_MAX
    _held_too_many: bool = False
    _failed_at: tuple[Carrier, str] | None = None

    async def run(self) -> Progress:
        """Take the chosen messages. PairbusError when it could not be done; counts are in the progress."""
        self._left = NUMBER_MAX if self.limit is None else self.limit
        try:
            if await self._look():
                credit = min(CREDIT, self._left) if self.choice.is_all else CREDIT
                patience = RetryPatience()
                if self.only_present:
                    patience.succeeded()  # the look has reached the namespace
                wait_s = max(self.wait_s, CHOSEN_WAIT_S) if self.choice.numbers else self.wait_s
                async with MessageIntake(
                    self.carrier,
                    self.address,
                    session=self.choice.session,
                    sessions=self._sessions(),
                    credit=credit,
                    wait_s=wait_s,
                ) as intake:
                    await self._take(intake, patience)
                for session in intake.locked_sessions:
                    self.progress.note(f"session {session!r} is locked by another receiver")
        except TransportError as error:
            raise explained(error, *(self._failed_at or (self.carrier, self.address.path))) from error
        await self._count_left()
        return self.progress

    async def _look(self) -> bool:
        """Find the messages that are there now; False when there is none to take."""
        if not self.only_present:
            return True
        ends = await extent(self.carrier, self.address)
        if ends is not None:
            self._last = ends[1] if self.last is None else self.last
        if ends is None or ends[0] > self._last:
            self.progress.left = 0
            return False
        if self.choice.is_all:
            return True
        wanted: dict[int, str | None] = {}
        others = 0
        self.choice.last = min(self._last, NUMBER_MAX if self.choice.last is None else self.choice.last)
        async for page in search(self.carrier, self.address, self.choice, bodies=False):
            for payload in page:
                number = sequence_number_of(payload)
                if state_of(payload) != "active":
                    others += 1
                elif number is not None:
                    wanted[number] = session_id_of(payload)
        if others:
            self.progress.note(f"{others} of the chosen messages are deferred or scheduled, and cannot be received")
        self._wanted, self._wanted_in = wanted, Counter(wanted.values())
        self.progress.total = min(len(wanted), self._left)
        return bool(wanted)

    def _sessions(self) -> list[str] | None:
        """Return the sessions of the chosen messages; None when all sessions are to be visited."""
        sessions = [session for session in self._wanted_in if session is not None]
        return sessions if self._wanted is not None and len(sessions) == len(self._wanted_in) else None

    async def _take(self, intake: MessageIntake, patience: RetryPatience) -> None:
        async for messages in intake.batches(patience):
            acted = await uninterrupted(self._batch(intake, messages))
            if acted.error is not None:
                self._failed_at = acted.failed_at
                if not is_passing(acted.error):
                    raise acted.error
                await patience.failed(acted.error)
                self._failed_at = None
            elif self.progress.done:
                patience.succeeded()
            if self._left <= 0 or (self._wanted is not None and not self._wanted):
                return
            if len(intake.held) > HELD_MAX:
                self._held_too_many = True
                return

    async def _batch(self, intake: MessageIntake, messages: list[ReceivedMessage]) -> Acted:
        chosen: list[ReceivedMessage] = []
        again: list[ReceivedMessage] = []
        for message in messages:
            number = sequence_number_of(message.payload) or 0
            if number in self._uncompleted:
                again.append(message)
            elif self.only_present and number > self._last:
                intake.skip_rest()
            elif len(chosen) < self._left and self._is_chosen(number, message.payload):
                chosen.append(message)
        acted = await self.act(chosen) if chosen else Acted()
        await self._complete(intake, [*again, *acted.done])
        done = {message.delivery_id for message in acted.done}
        await intake.release(message for message in chosen if message.delivery_id not in done)
        if self._wanted is not None and intake.session is not None and not self._wanted_in[intake.session]:
            intake.skip_rest()
        self._left -= len(acted.done)
        self.progress.step(done=len(acted.done), passed=len(messages) - len(chosen) - len(again))
        return acted

    async def _complete(self, intake: MessageIntake, messages: list[ReceivedMessage]) -> None:
        failed = await intake.complete(messages)
        for message in messages:
            number = sequence_number_of(message.payload) or 0
            if message.delivery_id in failed:
                self._uncompleted.add(number)
            else:
                self._note_gone(number)
        self.progress.uncompleted = len(self._uncompleted)

    def _note_gone(self, number: int) -> None:
        self._uncompleted.discard(number)
        if self._wanted is not None and number in self._wanted:
            self._wanted_in[self._wanted.pop(number)] -= 1

    def _is_chosen(self, number: int, payload: bytes) -> bool:
        return number in self._wanted if self._wanted is not None else self.choice.takes(payload)

    async def _count_left(self) -> None:
        progress = self.progress
        await self._look_for_uncompleted()
        if not self.only_present:
            return
        if progress.left is None:
            progress.left = len(self._uncompleted)
            if self._left > 0:
                progress.left = await self._look_for_rest() if self._wanted is None else len(self._wanted)
        if self._held_too_many:
            progress.note(f"more than {HELD_MAX} messages that were not chosen lie before those that are left")
        progress.step()

    async def _look_for_uncompleted(self) -> None:
        """Find out which of the messages that are not known to be completed are still there."""
        for number in sorted(self._uncompleted):
            payloads = await peek(self.carrier, self.address, number, 1, bodies=False)
            if not any(sequence_number_of(payload) == number for payload in payloads):
                self._note_gone(number)
        self.progress.uncompleted = len(self._uncompleted)

    async def _look_for_rest(self) -> int:
        left = len(self._uncompleted)
        async for page in walk(self.carrier, self.address, last=self._last, bodies=False):
            rest = [payload for payload in page if sequence_number_of(payload) not in self._uncompleted]
            active = sum(state_of(payload) == "active" for payload in rest)
            left += active
            if active < len(rest):
                self.progress.note("deferred and scheduled messages are left: they cannot be received")
            if left >= LEFT_MAX:
                self.progress.note(f"more than {LEFT_MAX} messages are left")
                break
        return left
