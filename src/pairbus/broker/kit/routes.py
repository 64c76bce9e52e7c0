"""A request to a switch of the broker, and its answers, for every transport: the port and the control socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from pairbus.host.control.serving import ControlAnswer


@dataclass(frozen=True, slots=True)
class SwitchRequest:
    """A request to one namespace."""

    method: str
    rest: tuple[str, ...]
    "The segments of the path behind the route."
    body: bytes

    def is_(self, method: str) -> bool:
        """Tell whether this is a request with this method, to the route itself."""
        return self.method == method and not self.rest


class SwitchLines:
    """An answer that is told line by line. Whoever gets it closes it; the generator then knows that nobody reads on.

    The first line is there before the answer begins: a PairbusError until then is an answer of its own.
    """

    def __init__(self, content_type: str, generator: AsyncGenerator[bytes, None]) -> None:
        self.content_type = content_type
        self._generator = generator
        self._first = b""

    async def begin(self) -> None:
        self._first = await anext(self._generator, b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._first
        async for line in self._generator:
            yield line

    async def close(self) -> None:
        await self._generator.aclose()


def not_allowed(*methods: str) -> ControlAnswer:
    return ControlAnswer(405, {"error": "405: Method Not Allowed"}, allow=",".join(methods))
