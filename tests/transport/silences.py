"""How tests expect that a call is given up because the peer was silent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pairbus.pairing.policy import Silence
from pairbus.transport import Timeout

HEARD, SILENT = Silence(0.0, 3.0), Silence(3.0, 3.0)


@contextmanager
def silent_peer() -> Iterator[pytest.ExceptionInfo[Timeout]]:
    """Expect the error of a call during which the peer was silent for longer than allowed."""
    with pytest.raises(Timeout) as caught:
        yield caught
    assert caught.value.silence.is_too_long, caught.value.silence
