"""The parts of a processor that both flavours share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from pairbus.client.processing.options import check_handler, options_of, queue_options, subscription_options
from pairbus.client.processing.processing import Processing, ProcessorCounts
from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pairbus.client.face import ClientFace


class ProcessorFace:
    """A processor of one queue or subscription; it begins with `start`, or as a context manager."""

    AIO: ClassVar[bool]

    def __init__(
        self, client: ClientFace[Any, Any], names: tuple[str, ...], handler: Any, keywords: dict[str, Any]
    ) -> None:
        check_handler(handler, aio=self.AIO)
        self._client = client
        self._state = client._state
        self._options = options_of(keywords)
        self._handler = handler
        self._is_queue = len(names) == 1
        only_entity = client._primary._entity_name
        if self._is_queue:
            self._place = queue_options(names[0], only_entity=only_entity)
        else:
            self._place = subscription_options(names[0], names[1], only_entity=only_entity)
        self._processing: Processing | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {describe(self._place.path, self._processing)}>"

    @property
    def outage(self) -> str | None:
        """The reason why no messages come; None while all is well."""
        return None if self._processing is None else self._processing.outage

    @property
    def counts(self) -> ProcessorCounts:
        """Numbers since the start: handled, failed, completed, retried, dead-lettered and so on."""
        return ProcessorCounts() if self._processing is None else self._processing.counts

    def _check_startable(self) -> None:
        self._state.check()
        if self._processing is not None:
            raise PairbusError(f"the processor of {self._place.path} was started before: make another one")

    @property
    def _running(self) -> Processing | None:
        """The work in this process; None before the start, and in a forked child."""
        return self._processing if self._pid == os.getpid() else None

    def _started(self) -> Processing:
        if self._running is None:
            raise PairbusError(f"the processor of {self._place.path} is not started")
        return self._running

    def _raise_failure(self) -> None:
        if self._processing is not None and self._processing.failure is not None:
            raise self._processing.failure


def describe(path: str, processing: Processing | None) -> str:
    """Say in one line what a processor does; any thread may ask."""
    if processing is None:
        return f"{path} not started"
    counts = processing.counts
    sessions = f" sessions={len(processing.sessions)}" if processing.sessions else ""
    outage = processing.outage
    why = f" gets no messages: {outage}" if outage is not None and processing.state == "running" else ""
    return (
        f"{path} {processing.state}{why} active={processing.active} waiting={processing.waiting}{sessions}"
        f" handled={counts.handled} failed={counts.failed}"
    )
