"""Makes the page of a namespace when the first browser comes: until then a broker only keeps its log of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from pairbus.dashboard.event_log import EventLog, EventRecorder

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.dashboard.api import Page


class LazyPage:
    """Makes the page at the first request."""

    def __init__(self, make: Callable[[EventLog], Any], recorder: EventRecorder) -> None:
        self._make = make
        self._recorder = recorder
        self._page: Page | None = None
        self._is_closed = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of a browser."""
        if self._is_closed:
            raise web.HTTPServiceUnavailable(text="the broker stops")
        if self._page is None:
            self._recorder.close()
            self._page = self._make(self._recorder.log)
        assert self._page is not None
        return await self._page.handle(request)

    async def close(self) -> None:
        """End all tasks of the page."""
        self._is_closed = True
        self._recorder.close()
        if self._page is not None:
            await self._page.close()


def lazy_page(namespace: Namespace, connection_string: Callable[[], str], host: str, hosts: frozenset[str]) -> LazyPage:
    """Return the page of a namespace; `Broker` has it as its argument `page`."""

    def make(log: EventLog) -> Page:
        from pairbus.dashboard.on_broker import page_of

        return page_of(namespace, connection_string(), host, frozenset(name.lower() for name in hosts), log)

    return LazyPage(make, EventRecorder(namespace))
