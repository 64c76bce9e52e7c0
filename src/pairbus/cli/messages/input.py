"""Standard input of `pairbus message`, read in a thread: messages are sent, and signals heard, while it waits.

The thread reads the file below Python's buffer. A thread that waits within the buffer would hold its lock, which the
interpreter needs when the process ends.
"""

from __future__ import annotations

import select
import sys
from collections.abc import AsyncIterator
from typing import Any

from pairbus.errors import ConfigError
from pairbus.explorer.files import LINE_MAX
from pairbus.transport.threads import in_thread

CHUNK = 1 << 20


class StandardInput:
    """Lines of standard input, or all of it. It counts lines that were read and not sent."""

    def __init__(self) -> None:
        buffer: Any = sys.stdin.buffer
        self._file: Any = getattr(buffer, "raw", buffer)
        self._unsent = 0

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield lines with their ends. A line counts as sent when the next one is asked for."""
        begun: list[bytes] = []
        size = 0
        while chunk := await self._chunk():
            *whole, last = chunk.split(b"\n")
            self._unsent = len(whole) + bool(last)
            for piece in whole:
                yield b"".join((*begun, piece, b"\n"))
                begun, size = [], 0
                self._unsent -= 1
            if last:
                begun.append(last)
                size += len(last)
            if size > LINE_MAX:
                raise ConfigError(f"standard input has a line of more than {LINE_MAX >> 20} MB")
        if begun:
            yield b"".join(begun)
            self._unsent = 0

    async def whole(self) -> bytes:
        chunks: list[bytes] = []
        while chunk := await self._chunk():
            chunks.append(chunk)
            self._unsent += chunk.count(b"\n")
        return b"".join(chunks)

    def unsent(self) -> str:
        """Say how many lines were read and not sent, as the end of a sentence; empty when there are none."""
        if not self._unsent:
            return ""
        lines = "1 line of standard input was" if self._unsent == 1 else f"{self._unsent} lines of standard input were"
        return f"; {lines} read and not sent"

    async def _chunk(self) -> bytes:
        try:
            return await in_thread("pairbus-input", self._read)
        except OSError as error:
            raise ConfigError(f"standard input cannot be read: {error.strerror or error}") from None

    def _read(self) -> bytes:
        while True:
            chunk: bytes | None = self._file.read(CHUNK)
            if chunk is not None:
                return chunk
            select.select([self._file], [], [])  # another process has made the file non-blocking
