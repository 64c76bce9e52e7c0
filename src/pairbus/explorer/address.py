"""Splits addresses of entities into paths to peek at, to receive from and to send to."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.errors import ConfigError

DEAD_LETTERS = "/$DeadLetterQueue"
_SUBSCRIPTIONS = "/subscriptions/"


@dataclass(frozen=True, slots=True)
class Address:
    """A queue, a subscription (`TOPIC/Subscriptions/NAME`), or the dead letters of one of them."""

    owner: str
    "Queue or subscription, without the part for dead letters."
    is_dead_letter: bool = False

    @classmethod
    def parse(cls, text: str, *, dead_letter: bool = False) -> Address:
        """Read an address; ConfigError when it names no entity. `PATH/$DeadLetterQueue` means the dead letters too."""
        path = text.strip().strip("/")
        if path.lower().endswith(DEAD_LETTERS.lower()):
            path, dead_letter = path[: -len(DEAD_LETTERS)], True
        if not path or path.lower().endswith(_SUBSCRIPTIONS.rstrip("/")):
            raise ConfigError(f"{text!r} names no entity; write a queue, or TOPIC/Subscriptions/NAME")
        return cls(path, dead_letter)

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """The path to receive from and to peek at."""
        return self.owner + DEAD_LETTERS if self.is_dead_letter else self.owner

    @property
    def is_subscription(self) -> bool:
        return _SUBSCRIPTIONS in self.owner.lower()

    @property
    def destination(self) -> str:
        """The queue or topic to which a message is sent so that it arrives at this address."""
        at = self.owner.lower().find(_SUBSCRIPTIONS)
        return self.owner if at < 0 else self.owner[:at]
