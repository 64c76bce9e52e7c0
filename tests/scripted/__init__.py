"""An endpoint that stands in for a namespace and answers whatever a test wants to hear.

`ScriptedEndpoint` runs on the loop of an asyncio test, `ScriptedThread` on a thread of its own for tests that block.
The actions (`Accept`, `Reject`, `Silent` and so on) are what a script says.
"""

from __future__ import annotations

from tests.scripted.endpoint import ScriptedEndpoint, ScriptedThread
from tests.scripted.script import (
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

__all__ = [
    "Accept",
    "Answer",
    "Close",
    "Delay",
    "Detach",
    "HangUp",
    "LoseAnswer",
    "Occasion",
    "Reject",
    "Reply",
    "Reset",
    "ScriptedEndpoint",
    "ScriptedThread",
    "Silent",
    "short_rejection",
]
