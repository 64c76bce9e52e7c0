"""Script of a scripted endpoint: rules of step and action, in a table that tests write.

    endpoint.on("transfer", Reject("com.microsoft:server-busy"), path="orders", times=3)
    endpoint.on("transfer", LoseAnswer(), path="orders", times=1)
    endpoint.on("attach", Reject("amqp:unauthorized-access"), when=lambda occasion: occasion.client_sends)

At each step the first rule that is meant and not used up decides; without one everything is accepted. A rule without
a path means every entity, but not the nodes `$cbs` and `…/$management`, whose links are only met by name.

    step         happens when a client …                   path of the rule
    connect      has opened a socket                       -
    sasl         has chosen a mechanism                    -
    open, begin  says so                                   -
    token        puts a token                              the entity that the token is for
    attach       attaches a link                           the entity, `$cbs` or `entity/$management`
    transfer     sends a message or a batch                the entity
    request      asks `$management` something              the entity
    settlement   completes, abandons, … what it received   the entity
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pairbus.amqp.performatives import Composite
from pairbus.amqp.types import Symbol, encode_symbol, list_of
from pairbus.proxy.conversation import is_node, path_of

StepName = Literal["connect", "sasl", "open", "begin", "token", "attach", "transfer", "request", "settlement"]


class Action:
    """An action that replaces accepting."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Accept(Action):
    """The default action; as a rule, it lets some pass before the next rule is asked."""


@dataclass(frozen=True, slots=True)
class Reject(Action):
    """A no in the form of the step.

    connect: RST · sasl: code 1 · open: open, then close · begin: begin, then end · token: a status ·
    attach: null termini, then detach · transfer, settlement: `rejected` with all three fields · request: a status
    """

    condition: str = "amqp:internal-error"
    description: str | None = "as scripted"
    status: int = 0
    "Status of the answer to a token or request; 0: 401 for tokens, 500 for requests."


@dataclass(frozen=True, slots=True)
class Answer(Action):
    """Answers with any delivery state, also one that no good broker would send; for transfers and settlements."""

    state: Composite | bytes
    settled: bool = True
    stores: bool = False
    "Keep the message of a transfer as if it were accepted."


@dataclass(frozen=True, slots=True)
class Reply(Action):
    """Answers a `$management` request with any status and body."""

    status: int = 200
    body: Any = field(default_factory=dict)
    condition: str | None = None
    description: str = "as scripted"


@dataclass(frozen=True, slots=True)
class Detach(Action):
    """End the link with a condition: of an attach, after it was answered; of a transfer, instead of an answer."""

    condition: str = "amqp:link:detach-forced"
    description: str | None = "as scripted"


@dataclass(frozen=True, slots=True)
class Close(Action):
    """Close the connection with a condition."""

    condition: str = "amqp:connection:forced"
    description: str | None = "as scripted"


@dataclass(frozen=True, slots=True)
class Silent(Action):
    """No answer, ever. At connect and sasl the whole connection falls silent. A message is not stored."""


@dataclass(frozen=True, slots=True)
class Reset(Action):
    """RST."""


@dataclass(frozen=True, slots=True)
class HangUp(Action):
    """FIN, without a word of AMQP."""


@dataclass(frozen=True, slots=True)
class LoseAnswer(Action):
    """Do the step, send no answer, and do `then`: the fault behind every unknown outcome."""

    then: Action = field(default_factory=Silent)


@dataclass(frozen=True, slots=True)
class Delay(Action):
    """Wait, then do `then`. The other links of the connection go on; before its links, the connection waits."""

    seconds: float
    then: Action = field(default_factory=Accept)


@dataclass(frozen=True, slots=True)
class Occasion:
    """Facts of one step that a rule's `when` may look at."""

    step: StepName
    connection: int
    "Number of the connection, from 1."
    path: str = ""
    "Path in lower case; empty where a step has none."
    client_sends: bool = False
    "Attach, transfer: the client is the sender of the link."
    payload: bytes = b""
    "Bytes of a transfer or request."
    message_format: int = 0
    is_ping: bool = False
    operation: str = ""
    "Operation of a request, as `com.microsoft:schedule-message`; for a settlement, the outcome's name."


@dataclass(slots=True)
class Rule:
    """One row of the script."""

    step: StepName
    action: Action
    path: str | None = None
    times: int | None = None
    "Number of times that it applies; None: always."
    when: Callable[[Occasion], bool] | None = None
    hits: int = 0

    def takes(self, occasion: Occasion) -> bool:
        if self.step != occasion.step or (self.times is not None and self.hits >= self.times):
            return False
        if self.path is None and is_node(occasion.path):
            return False
        if self.path is not None and path_of(self.path) != occasion.path:
            return False
        return self.when is None or self.when(occasion)


class Script:
    """Rules in the order in which they were added."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def action(self, occasion: Occasion) -> Action:
        for rule in self.rules:
            if rule.takes(occasion):
                rule.hits += 1
                return rule.action
        return Accept()


def short_rejection(condition: str | None = None) -> bytes:
    """`rejected` with an error list that is too short, or without one: this blocks the Python SDK for ever."""
    if condition is None:
        return b"\x00\x53\x25" + list_of([])
    return b"\x00\x53\x25" + list_of([b"\x00\x53\x1d" + list_of([encode_symbol(Symbol(condition))])])
