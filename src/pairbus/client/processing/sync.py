"""The processor for threads: handlers run in a pool of threads, all else happens in the thread of the engine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from pairbus.client.processing.face import ProcessorFace
from pairbus.client.processing.processing import Processing
from pairbus.client.processing.runners import ThreadRunner

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SLICE_S = 0.5  # between two looks at the processor while nothing is asked


class ServiceBusProcessor(ProcessorFace):
    """Calls a function for each message, in a thread of a pool, and settles it; from `get_queue_processor` of a client.

    Python cannot end a thread: a handler whose lock was lost sees it in `message.lock_lost`.
    """

    AIO = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to take messages; returns at once, also while the namespace is away."""
        self._check_startable()
        options = self._options
        runner = ThreadRunner(self._handler, options.on_error, auto_complete=options.auto_complete)

        async def begin(engine: Any) -> Processing:
            processing = Processing(
                engine.receiving,
                self._place,
                options,
                runner,
                self._state.events.tell,
                is_queue=self._is_queue,
                can_cancel=False,
            )
            processing.start()
            return processing

        self._client._processors.add(self)
        self._processing = self._client._run(begin)

    def run_forever(self) -> None:
        """Return after SIGTERM, SIGINT or `stop`, when handlers have ended and nothing is locked.

        A second signal ends it without waiting for handlers. In a thread that is not the main one there are no signals.
        Raises the error that ended the processor, when the client was faulted or closed.
        """
        processing = self._started()
        signals = _Signals()
        with signals.taken():
            while processing.state != "ended" and not signals.count:
                signals.came.wait(SLICE_S)
            if signals.count:
                self._stop_by(signals)
        self._raise_failure()

    def _stop_by(self, signals: _Signals) -> None:
        """Stop in a thread of its own, so that a second signal is heard."""
        stopping = threading.Thread(target=self.stop, name="pairbus-stop", daemon=True)
        stopping.start()
        while stopping.is_alive():
            stopping.join(SLICE_S)
            if signals.count > 1:
                self.stop(drain=False)
                return

    def pause(self) -> None:
        """Take no messages until `resume`. Returns when none arrives any more; handlers that run go on."""
        self._call(self._started().pause)

    def resume(self) -> None:
        self._call(self._started().resume)

    def stop(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no messages any more, and return when nothing is locked. May be repeated.

        With `drain` it waits until the handlers have ended, for `timeout` seconds at most. Otherwise, and afterwards,
        the messages of handlers that still run are released; these handlers see `message.lock_lost`.
        """
        processing = self._running
        if processing is None or not self._client._life.has_engine:
            return
        self._call(lambda: processing.stop(drain=drain, timeout_s=timeout))
        self._client._processors.discard(self)

    def _call(self, work: Callable[[], Any]) -> Any:
        return self._client._run(lambda engine: work())


class _Signals:
    """The signals that end a service, counted."""

    def __init__(self) -> None:
        self.count = 0
        self.came = threading.Event()

    def _note(self, *_: object) -> None:
        self.count += 1
        self.came.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the signals in the main thread, and put their handlers back afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
