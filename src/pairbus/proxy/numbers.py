"""The numbers of one session in which messages were refused, or passed in another order.

A message that the proxy refuses takes a delivery id, a transfer id and a credit at the client, and none of them at the
target. From then on the two count differently, and the numbers in their frames are translated. A session without a
refused message passes byte for byte.
"""

from __future__ import annotations

from dataclasses import replace

from pairbus.amqp.frames import frame
from pairbus.amqp.link import ranges
from pairbus.amqp.performatives import Disposition, Flow, Transfer, decode_performative
from pairbus.amqp.transfers import disposition_frame
from pairbus.proxy.conversation import FollowedLink, Unit

MASK = 0xFFFFFFFF
NO_STATE = b"\x40"


class DeliveryNumbers:
    """Numbers of the client in one session, against those of the target."""

    def __init__(self) -> None:
        self._next_id: int | None = None
        "Delivery id that the target expects next; None: any."
        self._at_target: dict[int, int] = {}
        "Client's delivery id → the target's, for deliveries that reached it and are not settled."
        self.differ = False
        "True when client and target have ever counted deliveries differently."
        self._missing_frames = 0
        "Transfers of the client that never reached the target."
        self._missing: dict[FollowedLink, int] = {}
        "Deliveries that never reached the target, by link."
        self._last_flow: dict[FollowedLink, Flow] = {}
        "Last flow of the target with the credit of each link on which the client sends."
        self._transfers_down = 0
        "Number of all transfers of the target."
        self._down_at: dict[FollowedLink, int] = {}
        "Number of transfers of the target at the last flow of each link."

    # ── from the client ──

    def refuse(self, link: FollowedLink, frames: int) -> None:
        """Note that a delivery of `frames` transfers does not pass."""
        self._missing_frames += frames
        self._missing[link] = self._missing.get(link, 0) + 1

    def transfer(self, unit: Unit) -> bytes:
        """Return the frame of a transfer with the numbers of the target."""
        clients_id = unit.delivery_id
        if clients_id is not None:  # it begins a delivery
            at_target = clients_id if self._next_id is None else self._next_id
            self._next_id = (at_target + 1) & MASK
            self.differ = self.differ or at_target != clients_id
            if not unit.is_settled or unit.has_more:
                self._at_target[clients_id] = at_target
        return self._renumbered(unit, clients_id) if self.differ else unit.raw

    def _renumbered(self, unit: Unit, clients_id: int | None) -> bytes:
        start = unit.raw[4] * 4
        transfer, end = decode_performative(unit.raw[start:], 0)
        if not isinstance(transfer, Transfer) or transfer.delivery_id is None:
            return unit.raw
        expected = None if self._next_id is None else (self._next_id - 1) & MASK
        at_target = (
            expected if clients_id is not None else self._at_target.get(transfer.delivery_id, transfer.delivery_id)
        )
        if unit.is_settled and not unit.has_more:
            self._at_target.pop(transfer.delivery_id, None)
        changed = replace(transfer, delivery_id=at_target)
        return frame(int.from_bytes(unit.raw[6:8], "big"), changed.encode() + unit.raw[start + end :])

    def flow_up(self, unit: Unit, flow: Flow) -> bytes:
        """Return the frame of the client's flow with the numbers of the target."""
        missing = self._missing.get(unit.link, 0) if unit.link is not None else 0
        if not missing and not self._missing_frames:
            return unit.raw
        count = flow.delivery_count
        changed = replace(
            flow,
            next_outgoing_id=(flow.next_outgoing_id - self._missing_frames) & MASK,
            delivery_count=None if count is None else (count - missing) & MASK,
        )
        return frame(int.from_bytes(unit.raw[6:8], "big"), changed.encode())

    def last_word(self, unit: Unit, disposition: Disposition) -> list[bytes]:
        """Return the frames of a sender's disposition with the numbers of the target."""
        if not self.differ:
            return [unit.raw]
        last = disposition.first if disposition.last is None else disposition.last
        span = (last - disposition.first) & MASK
        clients_ids = [each for each in self._at_target if (each - disposition.first) & MASK <= span]
        if not clients_ids:
            return [unit.raw]
        state = disposition.state.encode() if disposition.state is not None else NO_STATE
        channel = int.from_bytes(unit.raw[6:8], "big")
        ids = sorted(self._at_target[each] for each in clients_ids)
        return [disposition_frame(channel, False, *each, disposition.settled, state) for each in ranges(ids)]

    # ── from the target ──

    def answered(self, disposition: Disposition, unsettled: dict[int, FollowedLink]) -> list[int]:
        """Return the client's ids of its unsettled deliveries that the target's disposition names, in their order."""
        last = disposition.first if disposition.last is None else disposition.last
        span = (last - disposition.first) & MASK
        at_target = self._at_target
        clients_ids = [
            each for each in unsettled if each in at_target and (at_target[each] - disposition.first) & MASK <= span
        ]
        return sorted(clients_ids, key=lambda each: (at_target[each] - disposition.first) & MASK)

    def settled(self, delivery_id: int) -> None:
        """Note that the target has settled a delivery of the client."""
        self._at_target.pop(delivery_id, None)

    def transfer_down(self) -> None:
        self._transfers_down += 1

    def flow_down(self, unit: Unit, flow: Flow) -> bytes:
        """Return the frame of the target's flow with the numbers of the client."""
        link = unit.link
        if link is not None and link.client_sends:
            self._last_flow[link] = flow
            self._down_at[link] = self._transfers_down
        if not self._missing_frames:
            return unit.raw
        return frame(int.from_bytes(unit.raw[6:8], "big"), self._for_client(flow, link).encode())

    def credit(self, link: FollowedLink) -> Flow | None:
        """Return the target's last flow with the credit of a link, corrected by the messages refused since."""
        flow = self._last_flow.get(link)
        if flow is None:
            return None
        since = self._transfers_down - self._down_at[link]
        return replace(
            self._for_client(flow, link),
            next_outgoing_id=(flow.next_outgoing_id + since) & MASK,
            echo=False,
            drain=False,
        )

    def _for_client(self, flow: Flow, link: FollowedLink | None) -> Flow:
        expected, count = flow.next_incoming_id, flow.delivery_count
        missing = 0 if link is None else self._missing.get(link, 0)
        return replace(
            flow,
            next_incoming_id=None if expected is None else (expected + self._missing_frames) & MASK,
            delivery_count=None if count is None else (count + missing) & MASK,
        )

    def forget(self, link: FollowedLink) -> None:
        """Forget a link that is gone."""
        for table in (self._missing, self._last_flow, self._down_at):
            table.pop(link, None)
