"""Connections of `format("servicebus")` that a process keeps from one micro-batch to the next."""

from __future__ import annotations

from pairbus.host.forks import call_in_forked_child
from pairbus.spark.options import Options
from pairbus.transport import Carrier, Endpoint

_carriers: dict[tuple[Endpoint, str | None, str | None, float], Carrier] = {}
"Carriers on the loop of `connections.run`. They end with the process: Spark ends workers idle for a minute."

call_in_forked_child(_carriers.clear)


def carrier_of(options: Options) -> Carrier:
    """Return the carrier, for use within `connections.run`; never closed. The secret is read again: keys may change."""
    secret = options.secret
    key = (secret.endpoint(options.transport), secret.credential, options.ca_file, options.timeout_s)
    carrier = _carriers.get(key)
    if carrier is None:
        carrier = _carriers[key] = options.carrier()
    return carrier
