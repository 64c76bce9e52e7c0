"""The witness in a sender sees every attempt, also the first one of a send to a healthy entity."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.client.sends import Sends
from tests.client.world import Stage, message
from tests.nemesis.log import Log, read
from tests.nemesis.watch import watch_sends
from tests.scripted import Detach, LoseAnswer, ScriptedEndpoint


async def test_attempt_without_an_answer_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the record, a copy that this attempt stored counts as a message that nobody may have."""
    for name in ("_to_primary", "_to_backlog"):
        monkeypatch.setattr(Sends, name, getattr(Sends, name))  # restored after the test
    watch_sends(Log(tmp_path / "log"))
    async with ScriptedEndpoint() as primary, ScriptedEndpoint() as secondary:
        stage = Stage(primary, secondary)
        sender = stage.client("aio").sender("orders").sender
        primary.on("transfer", LoseAnswer(Detach()))
        await sender.send_messages(message())
        await stage.close()
    assert next(read(tmp_path / "log"))[:2] == ["doubt", "the primary"]
