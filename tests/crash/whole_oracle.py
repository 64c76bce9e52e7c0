"""Promises that hold for a whole namespace after any number of kills, judged by the answers that its clients got."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.crash.whole_world import PASSED, RULED, SESSION_SINKS, Copy, Made, Seen

State = bytes | None


@dataclass(slots=True)
class Told:
    """Facts known about one message."""

    made: Made
    tries: int = 0
    is_accepted: bool = False
    is_selected: bool | None = None
    "Whether the rules of `ruled` select it; None when they changed while it was sent."
    rule_version: int = 0
    "Version of the rule of its colour, when the message was sent for the first time."
    seen: Counter[Copy] = field(default_factory=Counter)
    completed: set[Copy] = field(default_factory=set)
    maybe_completed: set[Copy] = field(default_factory=set)
    passed: set[Copy] = field(default_factory=set)
    "Copies that are dead-lettered, as the broker has acknowledged."
    drained: Counter[Copy] = field(default_factory=Counter)


class Rules:
    """The rules of `ruled`, one for a colour, as far as they are known."""

    def __init__(self) -> None:
        self._possible: defaultdict[str, set[bool]] = defaultdict(lambda: {False})
        self._versions: Counter[str] = Counter()

    def version(self, colour: str) -> int:
        """A number that grows at the begin and at the end of every change."""
        return self._versions[colour]

    def state(self, colour: str) -> bool | None:
        """Return whether the rule exists; None: perhaps."""
        [first, *more] = self._possible[colour]
        return None if more else first

    def change(self, colour: str) -> None:
        """A change of the rule begins."""
        self._possible[colour] = {True, False}
        self._versions[colour] += 1

    def changed(self, colour: str, exists: bool) -> None:
        """The change was acknowledged."""
        self._possible[colour] = {exists}
        self._versions[colour] += 1

    def found(self, colour: str, exists: bool) -> list[str]:
        """Compare with a rule as the broker tells it after its start; return the fault, if there is one."""
        if exists in self._possible[colour]:
            if len(self._possible[colour]) > 1:
                self.changed(colour, exists)
            return []
        return [f"the rule for {colour} is {'there' if exists else 'gone'} after a kill"]


class Oracle:
    """Answers that the clients of one namespace were given, and the faults in them."""

    def __init__(self) -> None:
        self.messages: dict[str, Told] = {}
        self.rules = Rules()
        self.wrong: list[str] = []
        "Faults that were noticed at once."
        self.states: defaultdict[tuple[str, str], set[State]] = defaultdict(lambda: {None})
        "Possible states of each session: the last one acknowledged, and those tried since."
        self._numbers: dict[tuple[str, Copy, str], int] = {}
        self._bearers: dict[tuple[str, int], tuple[Copy, str]] = {}

    # ── sending ──

    def trying(self, made: Made) -> Told:
        """A send begins, perhaps not the first one of this message."""
        told = self.messages.setdefault(made.id, Told(made))
        if not told.tries:
            told.is_selected = None if made.is_scheduled else self.rules.state(made.colour)
            told.rule_version = self.rules.version(made.colour)
        told.tries += 1
        return told

    def sent(self, told: Told, *, is_accepted: bool) -> None:
        """A send has ended, with or without an answer."""
        if not told.is_accepted and self.rules.version(told.made.colour) != told.rule_version:
            told.is_selected = None
        told.is_accepted |= is_accepted

    # ── receiving ──

    def saw(self, sink: str, path: str, copy: Seen) -> tuple[Told, Copy]:
        """A copy was received from `path`, which is the sink or where its dead letters go."""
        key = (sink, copy.variant)
        told = self.messages.get(copy.id)
        if told is None:
            self.wrong.append(f"nobody sent {copy.id}, which came to {path}")
            told = Told(Made(copy.id, b"", "", "", False, {key: copy.content}, copy.content))
        self._check_copy(told, key, path, copy)
        told.seen[key] += 1
        return told, key

    def _check_copy(self, told: Told, key: Copy, path: str, copy: Seen) -> None:
        what = f"{copy.id} {key[1]}".strip()
        content = told.made.content if key[0] == RULED else told.made.copies.get(key)
        if content is None or (key[0] == RULED and told.is_selected is False):
            self.wrong.append(f"{what} came to {path}, where it does not belong")
        elif content != copy.content or told.made.session not in ("", copy.session):
            self.wrong.append(f"{what} came to {path} with another content")
        if key in told.completed:
            self.wrong.append(f"{what} came to {path} again after it was completed")
        if key in told.passed and path == key[0]:
            self.wrong.append(f"{what} came to {path} again after it was dead-lettered")
        if self._numbers.setdefault((path, key, copy.id), copy.number) != copy.number:
            self.wrong.append(f"{what} came to {path} under two numbers: it was there twice")
        if self._bearers.setdefault((path, copy.number), (key, copy.id)) != (key, copy.id):
            self.wrong.append(f"number {copy.number} of {path} was given to two messages")

    def drained(self, sink: str, path: str, copy: Seen) -> None:
        """A copy was found when all was over."""
        told, key = self.saw(sink, path, copy)
        told.drained[key] += 1

    def state_found(self, sink: str, session: str, state: State) -> None:
        """Check the state that a receiver read when it accepted the session; from then on this state is known."""
        possible = self.states[sink, session]
        if state not in possible:
            self.wrong.append(f"the state of {session} in {sink} is {state!r}, not one of {possible}")
        self.states[sink, session] = {state}

    # ── judging ──

    def faults(self) -> list[str]:
        """Return one sentence for each broken promise, when all entities are drained."""
        found = list(self.wrong)
        for message_id, told in self.messages.items():
            if not told.is_accepted and not told.seen:  # no subscription has the message: otherwise all must have it
                continue
            expected = set(told.made.copies) | ({(RULED, "")} if told.is_selected else set())
            found += [f"{message_id} never came to {copy}" for copy in expected - set(told.seen)]
            for copy in told.seen:
                found += _faults_at(message_id, told, copy)
        return found + self._disorder()

    def _disorder(self) -> list[str]:
        """Messages of one session and one sender, each sent after the answer to the one before, out of order."""
        lines: defaultdict[tuple[str, str], list[tuple[str, int]]] = defaultdict(list)
        for (path, (sink, _), message_id), number in self._numbers.items():
            told = self.messages.get(message_id)
            if sink in SESSION_SINKS and told and told.tries == 1 and told.is_accepted and not told.made.is_scheduled:
                lines[path, told.made.session].append((message_id, number))
        wrong = []
        for (path, session), line in lines.items():
            numbers = [number for _, number in sorted(line)]
            if numbers != sorted(numbers):
                wrong.append(f"{session} of {path} is out of order")
        return wrong


def _faults_at(message_id: str, told: Told, copy: Copy) -> list[str]:
    count = told.drained[copy]
    if count > 1:
        return [f"{message_id} was there {count} times, of {copy}"]
    if not count and copy not in told.maybe_completed:
        return [f"{message_id} is lost, {'after it was passed on ' if copy[0] in PASSED else ''}of {copy}"]
    return []
