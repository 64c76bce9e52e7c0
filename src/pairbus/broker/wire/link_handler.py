"""The broker's end of a link, which the core keeps as the link's `context`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.amqp.events import Delivery, TransactionalDelivery
from pairbus.amqp.link import Link, SentDelivery
from pairbus.amqp.session import Session
from pairbus.broker.refusal import Refusal

if TYPE_CHECKING:
    from pairbus.broker.entities.entity import Entity
    from pairbus.broker.wire.peer import Peer


class LinkHandler:
    """One end of one link. A peer calls it with the events of the link; each kind of end handles those that it gets.

    `Inlet`: a client sends. `Outlet`: a client receives. `Applicant`: a client waits for a session.
    `RequestLink` and `ResponseLink`: requests to `$cbs` and `$management`, and the answers. `CoordinatorLink`:
    commands to begin and end transactions.
    """

    def __init__(self, peer: Peer, link: Link) -> None:
        self.peer = peer
        self.link = link

    def on_delivery(self, delivery: Delivery, now_ms: int) -> None:
        """Take a message that the client has sent."""

    def on_transactional(self, delivery: TransactionalDelivery, now_ms: int) -> None:
        """Take a message that the client has sent in a transaction."""
        self.on_delivery(delivery, now_ms)

    def on_aborted(self) -> None:
        """Note that the client has taken a message back while it was sending it."""

    def on_flow(self) -> None:
        """Note that the client gives credit, or takes it back."""
        self.on_window()

    def on_window(self) -> None:
        """Note that the window of the session has opened: messages may leave."""

    def on_readable(self, now_ms: int) -> None:
        """Note that the client reads again after it had not."""
        self.on_window()

    def on_disposed(
        self, session: Session, deliveries: list[SentDelivery], settled: bool, state: Any, now_ms: int
    ) -> None:
        """Take the client's settlement of messages that it got."""

    def submit(self, now_ms: int) -> None:
        """Hand on what was gathered since the last event."""

    def close(self) -> None:
        """Let go of everything: the link is over."""


def end_of(link: Link) -> LinkHandler | None:
    """Return the broker's end of a link; None before the link is led anywhere, and when it was refused."""
    return link.context  # type: ignore[return-value]  # nothing else is set in the broker


class EntityLink(LinkHandler):
    """End of a link to an entity: the client sends to it, receives from it, or applies for one of its sessions."""

    def __init__(self, peer: Peer, link: Link, entity: Entity, path: str) -> None:
        super().__init__(peer, link)
        self.entity = entity
        self.paths: tuple[str, ...] = (path,)
        "Paths as the client spelled them, two where it sends via another entity; its tokens must cover them."

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.entity.path} {self.link!r}>"

    def end(self, refusal: Refusal) -> None:
        """End the link from our side: its token expired, or its entity is gone or disabled."""
        self.peer.detach(self.link, refusal)


def entity_link_of(link: Link) -> EntityLink:
    """Return the broker's end of a link that leads to an entity, as all links of `Namespace.links` do."""
    end = end_of(link)
    assert isinstance(end, EntityLink)
    return end
