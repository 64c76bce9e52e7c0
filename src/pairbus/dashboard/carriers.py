"""Opens a carrier for each namespace when its first message is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pairbus.dashboard.targets import WatchedNamespace
    from pairbus.transport import Carrier

CONNECT_S = 3.0


class Carriers:
    """Carriers of a page, by the name of their namespace."""

    def __init__(self) -> None:
        self._carriers: dict[str, Carrier] = {}

    async def of(self, target: WatchedNamespace) -> Carrier:
        """Return the carrier of a namespace; it connects when it is used."""
        if target.name not in self._carriers:
            side = await target.side()
            self._carriers.setdefault(target.name, side.new_carrier(CONNECT_S))
        return self._carriers[target.name]

    async def close(self) -> None:
        carriers, self._carriers = self._carriers, {}
        for carrier in carriers.values():
            await carrier.close()
