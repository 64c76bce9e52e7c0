"""Namespaces and trouble on demand, for tests of what an application does about it.

`BrokerThread` is a broker in this process for tests that block; `pairbus.testing.plugin` has fixtures for pytest.
`Nemesis` stands before a real broker and plays a failing network; `ScriptedEndpoint` stands in for a namespace and
answers whatever a test wants to hear. Each has a twin on a thread of its own for tests that block.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.testing.broker_thread import BrokerThread, ServiceBusNamespace, ThreadClock
    from pairbus.testing.nemesis import Nemesis, NemesisThread
    from pairbus.testing.outages import Outage, ThreadFaults
    from pairbus.testing.pairs import ServiceBusPair
    from pairbus.testing.script import (
        Accept,
        Answer,
        Close,
        Delay,
        Detach,
        HangUp,
        LoseAnswer,
        Occasion,
        Reject,
        Reply,
        Reset,
        Silent,
        short_rejection,
    )
    from pairbus.testing.scripted import ScriptedEndpoint, ScriptedThread
    from pairbus.testing.sent import SentMessage

__all__ = [
    "Accept",
    "Answer",
    "BrokerThread",
    "Close",
    "Delay",
    "Detach",
    "HangUp",
    "LoseAnswer",
    "Nemesis",
    "NemesisThread",
    "Occasion",
    "Outage",
    "Reject",
    "Reply",
    "Reset",
    "ScriptedEndpoint",
    "ScriptedThread",
    "SentMessage",
    "ServiceBusNamespace",
    "ServiceBusPair",
    "Silent",
    "ThreadClock",
    "ThreadFaults",
    "short_rejection",
]

_HOMES = {
    "broker_thread": ("BrokerThread", "ServiceBusNamespace", "ThreadClock"),
    "nemesis": ("Nemesis", "NemesisThread"),
    "outages": ("Outage", "ThreadFaults"),
    "pairs": ("ServiceBusPair",),
    "scripted": ("ScriptedEndpoint", "ScriptedThread"),
    "sent": ("SentMessage",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: pytest loads the plugin in every run, also in those that need none of this."""
    if name not in __all__:
        raise AttributeError(f"module 'pairbus.testing' has no attribute {name!r}")
    return getattr(import_module(f"pairbus.testing.{_HOME_OF.get(name, 'script')}"), name)
