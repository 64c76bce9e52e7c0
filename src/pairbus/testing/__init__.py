"""Trouble on demand, for tests of what an application does about it.

`Nemesis` stands before a real broker and plays a failing network; `ScriptedEndpoint` stands in for a namespace and
answers whatever a test wants to hear. Each has a twin on a thread of its own for tests that block.
"""

from pairbus.testing.nemesis import Nemesis, NemesisThread
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

__all__ = [
    "Accept",
    "Answer",
    "Close",
    "Delay",
    "Detach",
    "HangUp",
    "LoseAnswer",
    "Nemesis",
    "NemesisThread",
    "Occasion",
    "Reject",
    "Reply",
    "Reset",
    "ScriptedEndpoint",
    "ScriptedThread",
    "Silent",
    "short_rejection",
]
