"""A pair, one sender and a clock, for tests of one send as a plan: replies come from a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pairbus.pairing.commands import Command, Pause, Plan, Receipt, Reply, ToBacklog, ToPrimary, ToSpool, Where
from pairbus.pairing.events import Event
from pairbus.pairing.failover import State
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from pairbus.pairing.pair import Pair
from pairbus.pairing.plan import SenderState, requesting, sending
from pairbus.pairing.policy import Failure, Kind, Silence

QUEUES = ["b/0", "b/1", "b/2"]
HOME = Receipt(Where.PRIMARY)


@dataclass(frozen=True)
class Answer:
    """End of a scripted command, and its duration."""

    kind: Kind | None = None
    after_s: float = 0.01
    unknown: bool = False
    heard: bool | None = None
    "Whether the peer was heard until the attempt was given up; None: it was not given up by its clock."
    meanwhile: Callable[[float], object] | None = None
    "Called with the time while the command is under way: lets another event happen meanwhile."


OK = Answer()
LOST, FULL, BUSY = Answer(Kind.COMMUNICATION), Answer(Kind.FULL), Answer(Kind.BUSY)
SILENT = Answer(Kind.TIMEOUT, after_s=-1.0, unknown=True, heard=False)
"No answer and no sign of life: it takes all the silence that the command grants."
SLOW = Answer(Kind.TIMEOUT, after_s=-1.0, unknown=True, heard=True)
"Signs of life and no answer: it takes all the time that the command has."


class World:
    """A pair, one sender of `orders`, and a clock."""

    def __init__(self, *, failover_interval: float = 60, spool: bool = False, queues: int = 3, **options: Any) -> None:
        self.events: list[Event] = []
        chosen = SendAvailabilityPairedNamespaceOptions(
            failover_interval=failover_interval,
            spool_dir="spool" if spool else None,
            **options,
        )
        self.pair = Pair(chosen, self.events.append, lambda count: 0)
        self.pair.paired_with(QUEUES[:queues])
        self.entity = self.pair.entity("orders", 0.0)
        self.sender = SenderState(self.entity)
        self.now = 0.0
        self.commands: list[Command] = []

    def fail_over(self) -> None:
        self.pair.failed(self.entity, Failure(Kind.COMMUNICATION, "lost"), self.now)
        self.now += self.pair.options.failover_interval
        self.pair.tick(self.now)
        assert self.entity.state is State.FAILED_OVER
        self.events.clear()

    def send(self, *script: Answer, timeout_s: float = 60.0, behind_spool: bool = False) -> Receipt:
        """Perform the plan; pauses take their time, all other commands are answered by the whole script."""
        return self.carry_out(sending(self.pair, self.sender, timeout_s, self.now, behind_spool=behind_spool), script)

    def request(self, *script: Answer, timeout_s: float = 60.0) -> Receipt:
        """Perform the plan of a request that only the primary can answer."""
        return self.carry_out(requesting(self.pair, self.sender, timeout_s, self.now), script)

    def carry_out(self, plan: Plan, script: Iterable[Answer]) -> Receipt:
        self.commands, answers = [], iter(script)
        try:
            command = next(plan)
            while True:
                self.commands.append(command)
                command = plan.send(self.perform(command, answers))
        except StopIteration as end:
            receipt: Receipt = end.value
            return receipt
        finally:
            assert next(answers, None) is None, "an answer was left over"

    def perform(self, command: Command, answers: Iterator[Answer]) -> Reply:
        if isinstance(command, Pause):
            self.now += command.seconds
            return Reply(self.now)
        answer = next(answers, None)
        assert answer is not None, f"no answer for {command}"
        limit_s, silence = 1.0, None
        if not isinstance(command, ToSpool):
            limit_s = command.timeout_s if answer.heard else min(command.silence_s, command.timeout_s)
            if answer.heard is not None:
                silence = Silence(0.0 if answer.heard else limit_s, command.silence_s)
        self.now += limit_s if answer.after_s < 0 else min(answer.after_s, limit_s)
        if answer.meanwhile is not None:
            answer.meanwhile(self.now)
        failure = None
        if answer.kind is not None:
            failure = Failure(answer.kind, answer.kind.value, answer.unknown, silence=silence)
        return Reply(self.now, failure)

    @property
    def steps(self) -> list[str]:
        """The commands in one word each."""
        return [_word(command) for command in self.commands]


def _word(command: Command) -> str:
    if isinstance(command, ToPrimary):
        return "trial" if command.trial else "primary fresh" if command.fresh else "primary"
    if isinstance(command, ToBacklog):
        return f"{command.queue} fresh" if command.fresh else command.queue
    return "spool" if isinstance(command, ToSpool) else f"pause {command.seconds:g}"
