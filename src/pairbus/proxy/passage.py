"""One connection through the proxy, frame by frame: the rules decide which frames pass, wait or are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from pairbus.amqp.errors import CONNECTION_FORCED
from pairbus.amqp.frames import frame
from pairbus.amqp.link import ranges
from pairbus.amqp.performatives import Attach, Begin, Close, Composite, Detach, Disposition, End, Error, Flow, Rejected
from pairbus.amqp.transfers import disposition_frame
from pairbus.faults.play.cable import CableFaults
from pairbus.proxy.conversation import DOWN, UP, Conversation, Direction, FollowedLink, Unit, is_node, settled_ids
from pairbus.proxy.counts import Counts
from pairbus.proxy.held_frames import HeldUnits
from pairbus.proxy.joint import Joint
from pairbus.proxy.numbers import DeliveryNumbers
from pairbus.proxy.verdicts import FrameAct, FrameRules, How

logger = logging.getLogger("pairbus.proxy")


@dataclass(slots=True)
class _Refusal:
    """A message of the client that does not pass, frame by frame."""

    delivery_id: int
    error: Error
    frames: int = 0


class Passage(Joint):
    """One client, one connection to the target."""

    def __init__(
        self,
        rules: FrameRules,
        faults: CableFaults,
        counts: Counts,
        now: float,
        *,
        changed: Callable[[], None],
        is_late_both_ways: bool = False,
    ) -> None:
        """Make a passage for a client that was accepted. For `changed` and `is_late_both_ways` see `Joint`."""
        super().__init__(faults, self._read, changed, is_late_both_ways=is_late_both_ways)
        self.conversation = Conversation()
        self.used_at = now
        "Time when the client was accepted, or last had a link to an entity."
        self._rules = rules
        self._counts = counts
        self._has_begun = False
        self._held = HeldUnits()
        self._numbers: dict[int, DeliveryNumbers] = {}
        "Delivery numbers, by the client's channel."
        self._refusals: dict[FollowedLink, _Refusal] = {}
        self._lost_answers: set[tuple[Direction, int, int]] = set()
        "Deliveries whose answer cuts the connection: (side that sent it, the client's channel, its id)."
        self._lost_replies: set[str] = set()
        "Paths of nodes whose next answer cuts the connection."
        self._unsaid: list[tuple[FollowedLink, tuple[Composite, ...]]] = []

    def close_connection(self, text: str) -> None:
        """Send a close of AMQP to both ends, then cut the connection."""
        error = Error(CONNECTION_FORCED, text)
        for each in self._wires.values():
            each.write(frame(0, Close(error=error).encode()))
        self.cut()

    # ── operations on links ──

    def links(self) -> list[FollowedLink]:
        """Return the links that are attached and not cut."""
        return [link for link in self.conversation.links() if not link.is_cut]

    def detach(self, link: FollowedLink, error: Error) -> None:
        """Tell the client that its link is detached. The target gets the client's own detach."""
        link.is_cut = True
        self._forget(link)
        if DOWN in link.handles:
            self._say(link, Detach(handle=link.handles[DOWN], closed=True, error=error))
        else:  # the target has not answered the attach, and its answer will not pass
            handle = self.conversation.free_handle(link)
            refusal = Attach(name=link.name, handle=handle, role=link.client_sends, initial_delivery_count=0)
            self._say(link, refusal, Detach(handle=handle, closed=True, error=error))

    def _forget(self, link: FollowedLink) -> None:
        """Forget a link that is gone, or was detached by the proxy."""
        self._held.drop(lambda other: other is link)
        self._refusals.pop(link, None)
        if link.channel in self._numbers:
            self._numbers[link.channel].forget(link)

    def release(self, is_released: Callable[[object], bool] = lambda key: True) -> None:
        """Let the frames pass that are held under such keys; frames of links that are gone are dropped."""
        if self.is_ending:
            return
        for direction, link, unit in self._held.take(is_released):
            if link.handles.get(UP) is not None and not link.is_cut:
                self._forward(direction, unit)
        self._press()

    # ── frames ──

    def _read(self, direction: Direction, data: bytes) -> None:
        if not self._has_begun and direction is UP:
            self._has_begun = True
            if not data.startswith(b"AMQP"[: len(data)]):
                speaks = "TLS" if data[:1] == b"\x16" else "HTTP or a web socket"
                logger.info("a client speaks %s: only faults of whole connections meet it", speaks)
        for unit in self.conversation.read(direction, data):
            self._pass(direction, unit)
            if self.is_ending:
                break

    def _pass(self, direction: Direction, unit: Unit) -> None:
        link = unit.link
        if isinstance(unit.performative, Disposition):
            if direction is DOWN:
                self._pass_answer(unit, unit.performative)
            else:
                self._pass_settlement(unit, unit.performative)
        elif link is None:
            self._pass_without_link(direction, unit)
        elif link.is_cut:
            # The client got a detach already. Its own detach still goes to the target, which knows the link.
            if direction is UP and isinstance(unit.performative, Detach) and link.is_known:
                self._forward(UP, unit)
        elif isinstance(unit.performative, Detach):
            self._forget(link)
            if link.is_known:
                self._forward(direction, unit)
        elif direction is UP and unit.is_transfer and link in self._refusals:
            self._refuse(link, unit)
        elif self._held.must_wait(direction, link, unit):
            self._hold(direction, link, unit, None)
        else:
            self._carry_out(self._decide(direction, link, unit), direction, link, unit)

    def _pass_without_link(self, direction: Direction, unit: Unit) -> None:
        """Pass a frame of a session or of the connection."""
        channel = int.from_bytes(unit.raw[6:8], "big")
        if direction is UP and isinstance(unit.performative, End | Close):
            self._held.drop(lambda other: isinstance(unit.performative, Close) or other.channel == channel)
        if direction is UP and isinstance(unit.performative, Begin):
            self._numbers[channel] = DeliveryNumbers()
        self._forward(direction, unit)
        if self._unsaid and isinstance(unit.performative, Begin):
            self._say_unsaid()

    def _decide(self, direction: Direction, link: FollowedLink, unit: Unit) -> FrameAct | None:
        """Ask the rules about a frame of a link."""
        if direction is UP:
            if isinstance(unit.performative, Attach):
                return self._rules.attach(link)
            if unit.delivery_id is not None:
                return self._rules.message(link, unit)
            if (
                isinstance(unit.performative, Flow)
                and not link.client_sends
                and unit.performative.link_credit
                and not is_node(link.path)
            ):
                return self._rules.asks(link)
        elif unit.delivery_id is not None:
            if is_node(link.path):
                return FrameAct(How.LOSE_ANSWER) if link.path in self._lost_replies else None
            return self._rules.delivery(link)
        return None

    def _carry_out(self, act: FrameAct | None, direction: Direction, link: FollowedLink, unit: Unit) -> None:
        if act is None:
            self._forward(direction, unit)
        elif act.how is How.HOLD:
            self._hold(direction, link, unit, act.key)
        elif act.how is How.RESET:
            self.reset()
        elif act.how is How.DETACH:
            assert act.error is not None
            self.detach(link, act.error)
        elif act.how is How.REFUSE:
            assert act.error is not None and unit.delivery_id is not None
            self._refusals[link] = _Refusal(unit.delivery_id, act.error)
            self._refuse(link, unit)
        elif direction is DOWN:
            self.cut()
        else:
            if is_node(link.path):
                self._lost_replies.add(link.path)
            elif unit.delivery_id is not None:
                self._lost_answers.add((UP, link.channel, unit.delivery_id))
            self._forward(direction, unit)

    def _refuse(self, link: FollowedLink, unit: Unit) -> None:
        """Drop one more frame of a message, and reject the message after its last frame."""
        refusal = self._refusals[link]
        refusal.frames += 1
        if unit.has_more:
            return
        del self._refusals[link]
        numbers = self._numbers[link.channel]
        numbers.refuse(link, refusal.frames)
        self.conversation.deliveries(link.channel, UP).pop(refusal.delivery_id, None)
        if not unit.is_settled:
            state = Rejected(error=refusal.error)
            self._say(link, Disposition(role=True, first=refusal.delivery_id, settled=True, state=state))
        credit = numbers.credit(link)
        if credit is not None:
            self._say(link, credit)

    def _hold(self, direction: Direction, link: FollowedLink, unit: Unit, key: object) -> None:
        self._held.add(direction, link, unit, key)
        if unit.delivery_id is not None and direction is UP:
            self._counts.of(link.path).transfers_held += 1
        self._press()

    def _press(self) -> None:
        """Stop reading from a peer while the frames that are held of it reach the limit."""
        for direction, wire in self._wires.items():
            if self._held.is_full(direction):
                wire.pause("held")
            else:
                wire.resume("held")

    # ── answers and settlements ──

    def _pass_settlement(self, unit: Unit, disposition: Disposition) -> None:
        """Pass the client's disposition of messages that it received; one frame is one event."""
        channel = int.from_bytes(unit.raw[6:8], "big")
        if not disposition.role:  # the disposition of a sender
            numbers = self._numbers.get(channel)
            for raw in [unit.raw] if numbers is None else numbers.last_word(unit, disposition):
                self._forward(UP, Unit(raw))
            return
        unsettled = self.conversation.deliveries(channel, DOWN)
        ids = settled_ids(disposition, unsettled)
        links = [unsettled.pop(each) if disposition.settled else unsettled[each] for each in ids]
        if not links or is_node(links[0].path):
            self._forward(UP, unit)
            return
        link = unit.link = links[0]
        if link.is_cut:
            return
        if self._held.must_wait(UP, link, unit):
            self._hold(UP, link, unit, None)
            return
        act = self._rules.settlement(link)
        if act is not None and act.how is How.LOSE_ANSWER:
            self._lost_answers.update((DOWN, channel, each) for each in ids if not disposition.settled)
        if act is None or act.how is not How.REFUSE:
            self._carry_out(act, UP, link, unit)
        elif not disposition.settled:
            self._say(link, replace(disposition, role=False, settled=True, state=Rejected(error=act.error)))

    def _pass_answer(self, unit: Unit, disposition: Disposition) -> None:
        """Pass the target's disposition of messages that the client sent, or its answer to the client's settlements."""
        channel = self.conversation.client_channel(unit)
        sender = UP if disposition.role else DOWN
        unsettled = self.conversation.deliveries(channel, sender)
        numbers = self._numbers.get(channel) if sender is UP else None
        if numbers is not None and numbers.differ:
            is_translated, ids = True, numbers.answered(disposition, unsettled)
        else:
            is_translated, ids = False, settled_ids(disposition, unsettled)
        if self._lost_answers and any((sender, channel, each) in self._lost_answers for each in ids):
            self.cut()
            return
        own_ids = []
        for delivery_id in ids:
            link = unsettled.pop(delivery_id) if disposition.settled else unsettled[delivery_id]
            if disposition.settled and numbers is not None:
                numbers.settled(delivery_id)
            counts = self._counts.of(link.path)
            if link.is_cut or self._rules.drops_answer(link, to_settlement=not disposition.role):
                counts.answers_dropped += 1
            else:
                counts.answers += 1
                own_ids.append(delivery_id)
        if len(own_ids) == len(ids) and not is_translated:
            self._forward(DOWN, unit)
            return
        own_channel = int.from_bytes(unit.raw[6:8], "big")
        state = disposition.state.encode() if disposition.state is not None else b"\x40"
        for first, last in ranges(own_ids):
            raw = disposition_frame(own_channel, disposition.role, first, last, disposition.settled, state)
            self._forward(DOWN, Unit(raw))

    # ── writing ──

    def _forward(self, direction: Direction, unit: Unit) -> None:
        self._counts.passed(direction, unit)
        if unit.link is not None and isinstance(unit.performative, Attach):
            unit.link.is_known = True
        self._wires[direction.other].write(self._translated(direction, unit))

    def _translated(self, direction: Direction, unit: Unit) -> bytes:
        """Return the frame with the numbers of its receiver."""
        if not unit.is_transfer and not isinstance(unit.performative, Flow):
            return unit.raw
        channel = int.from_bytes(unit.raw[6:8], "big") if direction is UP else self.conversation.client_channel(unit)
        numbers = self._numbers.get(channel)
        if numbers is None:
            return unit.raw
        if isinstance(unit.performative, Flow):
            renumbered = numbers.flow_up if direction is UP else numbers.flow_down
            return renumbered(unit, unit.performative)
        if direction is UP:
            return numbers.transfer(unit)
        numbers.transfer_down()
        return unit.raw

    def _say(self, link: FollowedLink, *performatives: Composite) -> None:
        """Send performatives to the client as if from the target; not before the target has begun the session."""
        channel = self.conversation.broker_channel(link.channel)
        if channel is None:
            self._unsaid.append((link, performatives))
            return
        for performative in performatives:
            self._wires[UP].write(frame(channel, performative.encode()))

    def _say_unsaid(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        for link, performatives in unsaid:
            self._say(link, *performatives)
