"""The SASL exchange that precedes AMQP (AMQP 5.3), for both ends.

Service Bus authorises by tokens on `$cbs`, so a server here mostly accepts; `check` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pairbus.amqp.errors import DECODE_ERROR, UNAUTHORIZED_ACCESS, ProtocolError
from pairbus.amqp.performatives import Composite, SaslInit, SaslMechanisms, SaslOutcome

OK, AUTH_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class SaslServer:
    """Mechanisms that a server offers, and the function that decides."""

    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    check: Callable[[str, bytes], bool] = lambda mechanism, response: True
    "(mechanism, initial response) → may the client go on?"

    def offer(self) -> Composite:
        return SaslMechanisms(sasl_server_mechanisms=self.mechanisms)

    def answer(self, performative: Composite) -> SaslOutcome:
        if not isinstance(performative, SaslInit):
            raise ProtocolError(DECODE_ERROR, f"sasl-init expected, {performative.NAME} found")
        known = performative.mechanism in self.mechanisms
        good = known and self.check(performative.mechanism, performative.initial_response or b"")
        return SaslOutcome(code=OK if good else AUTH_FAILED)


@dataclass(frozen=True, slots=True)
class SaslClient:
    """Mechanism that a client chooses."""

    mechanism: str = "ANONYMOUS"
    response: bytes = b""
    hostname: str | None = None

    def answer(self, performative: Composite) -> SaslInit | None:
        """Return the next frame for the server; None when the server has accepted."""
        if isinstance(performative, SaslMechanisms):
            offered = performative.sasl_server_mechanisms
            offered = [offered] if isinstance(offered, str) else offered
            if self.mechanism not in offered:
                raise ProtocolError(UNAUTHORIZED_ACCESS, f"the server offers {', '.join(map(str, offered))}")
            return SaslInit(mechanism=self.mechanism, initial_response=self.response, hostname=self.hostname)
        if isinstance(performative, SaslOutcome):
            if performative.code != OK:
                raise ProtocolError(
                    UNAUTHORIZED_ACCESS, f"SASL {self.mechanism} was refused with code {performative.code}"
                )
            return None
        raise ProtocolError(DECODE_ERROR, f"unexpected {performative.NAME}")
