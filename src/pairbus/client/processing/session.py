"""The session that a handler or a hook gets: its id, its state, the end of its lock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pairbus.client.processing.message import WAIT_S

if TYPE_CHECKING:
    from pairbus.client.processing.feed import Feed


class _Session:
    """The parts of both flavours."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.session_id: str = feed.receiver.session_id or ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._feed.path} {self.session_id}{' lock lost' if self.lock_lost else ''}>"

    @property
    def lock_lost(self) -> bool:
        """True: the lock of the session was lost, and with it those of its messages."""
        return self._feed.is_lost

    @property
    def locked_until_utc(self) -> datetime | None:
        ends_s = self._feed.receiver.session_locked_until
        return None if ends_s is None else datetime.fromtimestamp(ends_s, UTC)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._feed.loop)


class ProcessorSession(_Session):
    """A session in a handler or a hook of a processor for threads."""

    def get_state(self) -> bytes | None:
        """Read the state of the session."""
        state: bytes | None = self._begin(self._feed.receiver.get_state()).result(WAIT_S)
        return state

    def set_state(self, state: bytes | str | bytearray | None) -> None:
        """Set the state of the session; None deletes it."""
        self._begin(self._feed.receiver.set_state(_encoded(state))).result(WAIT_S)


class AioProcessorSession(_Session):
    """A session in a handler or a hook of a processor for asyncio."""

    async def get_state(self) -> bytes | None:
        """Read the state of the session."""
        state: bytes | None = await asyncio.wrap_future(self._begin(self._feed.receiver.get_state()))
        return state

    async def set_state(self, state: bytes | str | bytearray | None) -> None:
        """Set the state of the session; None deletes it."""
        await asyncio.wrap_future(self._begin(self._feed.receiver.set_state(_encoded(state))))


def _encoded(state: bytes | str | bytearray | None) -> bytes | None:
    return state.encode() if isinstance(state, str) else None if state is None else bytes(state)
