"""Namespaces and outages on demand, for tests of applications.

`BrokerThread` is a broker in this process for tests that block; `pairbus.testing.plugin` has fixtures for pytest.
`Nemesis` stands before a real broker and plays a failing network; `NemesisThread` is its twin for tests that block.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairbus.testing.broker_thread import BrokerThread, PairClock, ServiceBusNamespace, ThreadClock
    from pairbus.testing.nemesis import Nemesis, NemesisThread
    from pairbus.testing.outages import Outage, ThreadFaults
    from pairbus.testing.pairs import ServiceBusPair
    from pairbus.testing.sent import SentMessage

__all__ = [
    "BrokerThread",
    "Nemesis",
    "NemesisThread",
    "Outage",
    "PairClock",
    "SentMessage",
    "ServiceBusNamespace",
    "ServiceBusPair",
    "ThreadClock",
    "ThreadFaults",
]

_HOMES = {
    "broker_thread": ("BrokerThread", "PairClock", "ServiceBusNamespace", "ThreadClock"),
    "nemesis": ("Nemesis", "NemesisThread"),
    "outages": ("Outage", "ThreadFaults"),
    "pairs": ("ServiceBusPair",),
    "sent": ("SentMessage",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: pytest loads the plugin in every run, also when no test uses it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'pairbus.testing' has no attribute {name!r}")
    return getattr(import_module(f"pairbus.testing.{_HOME_OF[name]}"), name)
