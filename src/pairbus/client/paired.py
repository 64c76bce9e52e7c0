"""The constructors of a paired client, and the commands that only a pair has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pairbus.client.face import ClientFace, ReceiverT, SenderT
from pairbus.client.sides import KEYWORDS, Side
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions, check_names, factory_of
from pairbus.pairing.side_states import PairSide


class PairedClientFace(ClientFace[SenderT, ReceiverT]):
    """Makes a paired client, and has the commands of its application."""

    def __init__(self, primary: Any, options: SendAvailabilityPairedNamespaceOptions) -> None:
        factory, admin = factory_of(options), options.secondary_namespace_manager
        secondary = Side.from_client(factory, "options.messaging_factory", aio=self.AIO, admin=admin)
        self._set_up(Side.from_client(primary, "primary", aio=self.AIO), secondary, options)

    @classmethod
    def from_connection_strings(
        cls,
        primary: str,
        secondary: str,
        *,
        primary_kwargs: Mapping[str, Any] | None = None,
        secondary_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Pair two namespaces by their connection strings.

        `primary_kwargs` and `secondary_kwargs` are keywords of ServiceBusClient for one side (proxy, web sockets,
        certificates); `options` are those of SendAvailabilityPairedNamespaceOptions.
        """
        return cls._of(
            Side.from_connection_string(primary, aio=cls.AIO, **(primary_kwargs or {})),
            Side.from_connection_string(secondary, aio=cls.AIO, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def from_credential(
        cls,
        primary_host: str,
        secondary_host: str,
        credential: Any,
        *,
        primary_kwargs: Mapping[str, Any] | None = None,
        secondary_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Pair two namespaces by their hosts and a token credential of azure-identity."""
        return cls._of(
            Side.from_credential(primary_host, credential, aio=cls.AIO, **(primary_kwargs or {})),
            Side.from_credential(secondary_host, credential, aio=cls.AIO, **(secondary_kwargs or {})),
            options,
        )

    @classmethod
    def _of(cls, primary: Side, secondary: Side, options: Mapping[str, Any]) -> Self:
        _refuse_keywords_of_one_side(options)
        check_names(options)
        client = cls.__new__(cls)
        client._set_up(primary, secondary, SendAvailabilityPairedNamespaceOptions(None, secondary.client, **options))
        return client

    @property
    def options(self) -> SendAvailabilityPairedNamespaceOptions:
        return self._state.options

    # ── commands of the application ──

    def force_failover(self, entity: str) -> None:
        """Send this entity's messages to the backlog until `force_healthy` is called."""
        self._force(entity, over=True)

    def force_healthy(self, entity: str) -> None:
        """Send this entity's messages to the primary again, whatever is known about it."""
        self._force(entity, over=False)

    def fault(self, side: PairSide = "primary") -> None:
        """Declare one side unusable. Where the syphon runs, the other side is faulted too, a little later."""
        self._fault(side, "fault() was called")

    def _force(self, entity: str, *, over: bool) -> None:
        """Change the state of an entity, in the flavour's own way."""
        raise NotImplementedError


def _refuse_keywords_of_one_side(options: Iterable[str]) -> None:
    """Raise TypeError for a keyword of the SDK's client that is given for both sides at once."""
    for name in options:
        if name in KEYWORDS:
            raise TypeError(
                f"{name} is a keyword of one namespace: give it as primary_kwargs={{{name!r}: …}}, and for the other"
                f" namespace as secondary_kwargs={{{name!r}: …}}"
            )
