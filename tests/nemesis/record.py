"""The logs of one round, read together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.history.events import Outcome
from tests.nemesis.log import read
from tests.nemesis.messages import Sent

OUTCOMES = {"ok": Outcome.OK, "failed": Outcome.FAILED, "unknown": Outcome.UNKNOWN}


class Got(NamedTuple):
    """A delivery."""

    opened_at: float
    "Time at which its link was opened: it cannot have left the broker earlier."
    sink: str
    number: int
    id: str
    digest: str


class Done(NamedTuple):
    """A completion and its answer."""

    at: float
    sink: str
    id: str
    number: int
    outcome: Outcome


class Left(NamedTuple):
    """A message that was found when all was over, in `source`, which is a sink, a backlog queue or its dead letters."""

    source: str
    path: str
    number: int
    id: str
    digest: str


@dataclass(slots=True)
class Record:
    """Results that the processes of a round were told."""

    sent: dict[str, Sent] = field(default_factory=dict)
    "Messages by id, in the order in which each worker sent them."
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    "A message without one belongs to a call that never ended: its process was killed."
    doubts: Counter[str] = field(default_factory=Counter)
    "Attempts of a client whose outcome it does not know."
    away: set[str] = field(default_factory=set)
    "Messages that a backlog queue took."
    moves: Counter[str] = field(default_factory=Counter)
    "Sends of a syphon that were not refused."
    gone: Counter[str] = field(default_factory=Counter)
    "Completions of a syphon that were confirmed."
    got: list[Got] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)

    def outcome(self, message_id: str) -> Outcome:
        return self.outcomes.get(message_id, Outcome.UNKNOWN)

    def doubtful(self, message_id: str) -> int:
        """Count the times that a further copy of a message may have been stored with an unknown outcome."""
        unended = message_id not in self.outcomes
        return self.doubts[message_id] + unended + max(self.moves[message_id] - self.gone[message_id], 0)

    def add(self, records: Iterable[list[Any]]) -> None:
        """Add the records of one process. Completions that it began and never told the end of are in doubt."""
        begun: dict[tuple[str, str, int], float] = {}
        for kind, *fields in records:
            if kind == "trying":
                at, sink, messages = fields
                begun |= {(sink, message_id, number): at for message_id, number in messages}
            elif kind != "begin":
                getattr(self, f"_{kind}")(*fields)
            if kind == "done":
                _, sink, messages, _ = fields
                for message_id, number in messages:
                    begun.pop((sink, message_id, number), None)
        self.done += [Done(at, *each, Outcome.UNKNOWN) for each, at in begun.items()]

    def _call(self, _at: float, messages: list[list[Any]]) -> None:
        for message in messages:
            sent = Sent(*message)
            self.sent[sent.id] = sent

    def _ended(self, outcome: str, ids: list[str]) -> None:
        for message_id in ids:
            self.outcomes[message_id] = OUTCOMES[outcome]

    def _doubt(self, _place: str, ids: list[str]) -> None:
        self.doubts.update(ids)

    def _away(self, _place: str, ids: list[str]) -> None:
        self.away.update(ids)

    def _move(self, ids: list[str]) -> None:
        self.moves.update(ids)

    def _refused(self, ids: list[str]) -> None:
        self.moves.subtract(ids)

    def _gone(self, ids: list[str]) -> None:
        self.gone.update(ids)

    def _got(self, *fields: Any) -> None:
        self.got.append(Got(*fields))

    def _done(self, at: float, sink: str, messages: list[tuple[str, int]], outcome: str) -> None:
        self.done += [Done(at, sink, message_id, number, OUTCOMES[outcome]) for message_id, number in messages]

    def _left(self, *fields: Any) -> None:
        self.left.append(Left(*fields))


def read_round(folder: Path) -> Record:
    """Read every log of a round."""
    record = Record()
    for file in sorted(folder.glob("*.jsonl")):
        record.add(_told(read(file)))
    return record


def _told(lines: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """Name the ends of calls, whose kind is their outcome."""
    for line in lines:
        yield ["ended", *line[:2]] if line[0] in OUTCOMES else line


def story_of(folder: Path, message_id: str) -> Iterator[str]:
    """Yield the lines of all logs that name a message."""
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if f'"{message_id}"' in line:
                    yield f"{file.stem}: {line.strip()[:400]}"


def by_worker(record: Record) -> dict[tuple[str, str, str], list[Sent]]:
    """Group the messages that have a session by worker, entity and session, in the order of their sends."""
    lanes: dict[tuple[str, str, str], list[Sent]] = defaultdict(list)
    for sent in record.sent.values():
        if sent.session:
            lanes[sent.id.rpartition("-")[0], sent.entity, sent.session].append(sent)
    return lanes
