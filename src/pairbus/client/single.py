"""The constructors of a single client, which has one namespace: those of the SDK's client, and four options of ours."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from pairbus.client.face import ClientFace, ReceiverT, SenderT
from pairbus.client.sides import KEYWORDS, Side
from pairbus.errors import did_you_mean
from pairbus.pairing.options import SINGLE, SendAvailabilityPairedNamespaceOptions

_OF_PAIRS = {
    *inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters,
    "primary_kwargs",
    "secondary_kwargs",
} - {*SINGLE}


class SingleClientFace(ClientFace[SenderT, ReceiverT]):
    """Makes a client of one namespace: it has the engine of a paired client, without a secondary."""

    def __init__(self, fully_qualified_namespace: str, credential: Any, **keywords: Any) -> None:
        """Make a client by the host of a namespace and a credential, with the keywords of the SDK's client.

        `control_socket`, `ledger`, `on_event` and `policy` are those of SendAvailabilityPairedNamespaceOptions.
        """
        options, of_sdk = _parted(keywords)
        self._set_up(Side.from_credential(fully_qualified_namespace, credential, aio=self.AIO, **of_sdk), None, options)

    @classmethod
    def from_connection_string(cls, conn_str: str, **keywords: Any) -> Self:
        """Make a client by a connection string, with the keywords of the constructor."""
        options, of_sdk = _parted(keywords)
        client = cls.__new__(cls)
        client._set_up(Side.from_connection_string(conn_str, aio=cls.AIO, **of_sdk), None, options)
        return client


def _parted(keywords: Mapping[str, Any]) -> tuple[SendAvailabilityPairedNamespaceOptions, dict[str, Any]]:
    """Return our options and the keywords of the SDK's client. TypeError for a name that neither of them has."""
    known = {*KEYWORDS, *SINGLE}
    for name in keywords:
        if name in _OF_PAIRS:
            raise TypeError(
                f"{name} is an option of a pair, and this client has one namespace: give it to"
                " PairedServiceBusClient.from_connection_strings(primary, secondary, …)"
            )
        if name not in known:
            hint = did_you_mean(name, known) or ";"
            raise TypeError(f"got an unexpected keyword argument {name!r}{hint} a client takes {sorted(known)}")
    ours = {name: value for name, value in keywords.items() if name in SINGLE}
    return (
        SendAvailabilityPairedNamespaceOptions(**ours),
        {name: value for name, value in keywords.items() if name not in SINGLE},
    )
