"""AMQP over a web socket."""

from __future__ import annotations

import asyncio

from aiohttp import web

from pairbus.broker.wire.door import WRITE_BUFFER_MAX
from pairbus.faults.play.cable import Cable


class WebSocketWire:
    """Transport of a cable over a web socket."""

    def __init__(self, response: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.cable: Cable | None = None
        self._response = response
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._has_work = asyncio.Event()
        self._is_full = self._is_closing = False

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_size += len(data)
        if self._unsent_size > WRITE_BUFFER_MAX and self.cable is not None and not self._is_full:
            self._is_full = True
            self.cable.pause_writing()
        self._has_work.set()

    def get_write_buffer_size(self) -> int:
        return self._unsent_size + (0 if self._transport is None else self._transport.get_write_buffer_size())

    def close(self) -> None:
        self._is_closing = True
        self._has_work.set()

    def is_closing(self) -> bool:
        return self._is_closing or self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    async def send_forever(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            data, self._unsent, self._unsent_size = b"".join(self._unsent), [], 0
            if data:
                await self._response.send_bytes(data)
            if self.cable is not None and self._is_full:
                self._is_full = False
                self.cable.resume_writing()
            if self._is_closing and not self._unsent:
                await self._response.close()
                return
