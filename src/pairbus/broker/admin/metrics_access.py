"""Who may read the page of metrics of a namespace: everybody on the loopback, elsewhere clients with Listen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiohttp import web

from pairbus.auth.sas import LISTEN, Grant, TokenNotValid
from pairbus.telemetry.metrics.serving import metrics_answer
from pairbus.telemetry.metrics.text import Family


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """The page of metrics of one namespace."""

    families: Callable[[], Iterable[Family]]
    is_open: bool
    "True when only this machine can reach the port."

    async def answer(self, grant: Grant | None) -> web.Response:
        """Answer a request; `grant` is None when it had no token. TokenNotValid: the caller has no right."""
        if grant is None and not self.is_open:
            raise TokenNotValid("without a token metrics are for the loopback only; ask for /$metrics with one")
        if grant is not None and LISTEN not in grant.rights:
            raise TokenNotValid(f"{LISTEN} claim is required for '/$metrics'; the key has {', '.join(grant.rights)}")
        return await metrics_answer(self.families())
