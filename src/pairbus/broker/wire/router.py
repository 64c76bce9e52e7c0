"""Decides where a new link leads: `$cbs`, an entity's `$management`, an entity or its dead letters; or refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.amqp.errors import INVALID_FIELD, NOT_ALLOWED, UNAUTHORIZED_ACCESS
from pairbus.amqp.link import Link, ReceiverLink, SenderLink, address_of
from pairbus.amqp.performatives import Attach, Coordinator
from pairbus.amqp.types import Symbol, ULong
from pairbus.auth.sas import LISTEN, SEND, resource_path
from pairbus.broker.description.common import path_key
from pairbus.broker.entities.queue import Queue
from pairbus.broker.entities.subscription import Subscription
from pairbus.broker.entities.topic import Topic
from pairbus.broker.management import OPERATIONS, ManagementNode, RequestTarget
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal, entity_not_found
from pairbus.broker.wire.address import LinkAddress, parse_address
from pairbus.broker.wire.cbs import CbsNode
from pairbus.broker.wire.coordinator import COMMAND_SIZE_MAX, CoordinatorLink
from pairbus.broker.wire.inlet import BATCH_ENVELOPE_SIZE, Inlet
from pairbus.broker.wire.messages import SESSION_ID_LENGTH_MAX
from pairbus.broker.wire.outlet import Outlet
from pairbus.broker.wire.requests import CREDIT as REQUEST_CREDIT
from pairbus.broker.wire.requests import Node, RequestLink, ResponseLink
from pairbus.broker.wire.session_links import SESSION_FILTER, Applicant, session_asked_for
from pairbus.broker.wire.targets import destination_of, find_target, source_of

if TYPE_CHECKING:
    from pairbus.broker.wire.peer import Peer

BATCH_SIZE_PROPERTY = Symbol("com.microsoft:max-message-batch-size")
DESTINATION_PROPERTY = Symbol("com.microsoft:transfer-destination-address")
UNLIMITED_SIZE = (1 << 64) - 1
TOKEN_REQUEST_SIZE_MAX = 1 << 16  # a token has a few KB, and its sender is not yet known
REQUEST_ENVELOPE_SIZE = 1 << 20  # around the largest message that a schedule-message request may carry


def right_of(link: Link) -> str:
    return SEND if isinstance(link, ReceiverLink) else LISTEN


def attach_link(peer: Peer, link: Link, attach: Attach, cbs: CbsNode) -> None:
    """Attach the link to the target of its address, or raise the Refusal to answer with."""
    if isinstance(attach.target, Coordinator):
        _attach_coordinator(peer, link, attach)
        return
    raw = address_of(attach.target if isinstance(link, ReceiverLink) else attach.source)
    if raw is None:
        raise Refusal(INVALID_FIELD, f"Link {attach.name!r} names no address.")
    address = parse_address(raw)
    if address.is_cbs:
        if peer.strictness.token_max is not None and any(
            peer.is_token_link(other) and other.role is link.role for other in peer.links()
        ):
            raise Refusal(NOT_ALLOWED, "The connection has a pair of $cbs links already; use that one.")
        shown_max = TOKEN_REQUEST_SIZE_MAX if peer.strictness.credit is None else UNLIMITED_SIZE
        _attach_node(peer, link, attach, cbs, shown_max, TOKEN_REQUEST_SIZE_MAX)
    elif address.is_management:
        node = _management(peer, address)
        size_max = node.message_size_max + REQUEST_ENVELOPE_SIZE
        _attach_node(peer, link, attach, node, size_max, size_max)
    else:
        _attach_entity(peer, link, attach, address)


def _attach_coordinator(peer: Peer, link: Link, attach: Attach) -> None:
    """Attach a link to the coordinator. No token is needed: .NET declares a transaction before it puts one."""
    if not isinstance(link, ReceiverLink):
        raise Refusal(INVALID_FIELD, "A link to the coordinator is one on which the client sends.")
    coordinator = link.context = CoordinatorLink(peer, link)
    _answer(link, attach, COMMAND_SIZE_MAX)
    coordinator.grant()


def _attach_node(peer: Peer, link: Link, attach: Attach, node: Node, shown_size_max: int, size_max: int) -> None:
    _answer(link, attach, shown_size_max)
    if isinstance(link, ReceiverLink):
        link.max_message_size = size_max
        link.context = RequestLink(peer, link, node)
        link.keep_credit(REQUEST_CREDIT)
    elif isinstance(link, SenderLink):
        link.context = ResponseLink(peer, link, node)


def check_audience(peer: Peer, audience: str) -> None:
    """Raise the Refusal of a token for an entity that does not exist; a token for the whole namespace names none."""
    path = resource_path(audience)  # decoded, as it is compared with the token
    key, spelled = parse_address(path).entity, parse_address(audience).text
    if not key or key.startswith("$") or isinstance(peer.namespace.catalog.find(key), Queue | Topic | Subscription):
        return
    raise entity_not_found(f"sb://{peer.dialled_host}/{spelled if path_key(spelled) == path else path}")


def find(peer: Peer, address: LinkAddress) -> RequestTarget:
    """Look up the entity and the box that the address names, or raise the Refusal."""
    return find_target(peer.namespace.catalog, address, peer.dialled_host)


def _management(peer: Peer, address: LinkAddress) -> ManagementNode:
    if not peer.allows(address.text, None):
        raise _unauthorised(address, "A valid")
    return ManagementNode(
        address.text.lower(),
        peer.namespace,
        OPERATIONS,
        find=lambda: find(peer, address),
        allows=lambda right: peer.allows(address.text, right),
        is_mine=lambda holder: isinstance(holder, Outlet) and holder.peer is peer,
        locked=peer.locked,
    )


def _attach_entity(peer: Peer, link: Link, attach: Attach, address: LinkAddress) -> None:
    if not peer.allows(address.text, right_of(link)):
        raise _unauthorised(address, f"The {right_of(link)}")
    target = find(peer, address)
    if peer.namespace.faults.acts:
        peer.namespace.faults.operations.attach(right_of(link), target.entity.path)
    if isinstance(link, ReceiverLink):
        destination = (attach.properties or {}).get(DESTINATION_PROPERTY)
        if destination is None:
            _attach_sender(peer, link, attach, address, target)
        else:
            _attach_transfer(peer, link, attach, target, address, destination)
    elif isinstance(link, SenderLink):
        _attach_receiver(peer, link, attach, address, target)


def _lead(peer: Peer, link: Link, context: Inlet | Outlet | Applicant) -> None:
    """Give the link its context, before anything can end the link and take it out of the namespace's links again."""
    link.context = context
    peer.namespace.links.add(link)


def _attach_transfer(
    peer: Peer, link: ReceiverLink, attach: Attach, via: RequestTarget, via_address: LinkAddress, destination: Any
) -> None:
    """Attach a sender to the destination of its transfers, which it names beside the entity that it sends via."""
    if isinstance(via.entity, Subscription) or not isinstance(destination, str):
        raise Refusal(NOT_ALLOWED, f"Messages cannot be sent via '{via.entity.path}' to {destination!r:.80}.")
    address = parse_address(destination)
    if address.is_cbs or address.is_management or not peer.allows(address.text, SEND):
        raise _unauthorised(address, f"The {SEND}")
    _attach_sender(peer, link, attach, address, find(peer, address), via_address.text)


def _attach_sender(
    peer: Peer,
    link: ReceiverLink,
    attach: Attach,
    address: LinkAddress,
    target: RequestTarget,
    via_path: str | None = None,
) -> None:
    entity = destination_of(target)
    limit = entity.message_size_max
    inlet = Inlet(peer, link, entity, address.text)
    properties: dict[Symbol, Any] = {}
    if peer.strictness.batch_size_max is not None:
        properties[BATCH_SIZE_PROPERTY] = ULong(inlet.batch_size_max)
    if via_path is not None:
        inlet.paths = (address.text, via_path)
        properties[DESTINATION_PROPERTY] = (attach.properties or {})[DESTINATION_PROPERTY]
    _answer(link, attach, limit, properties or None)
    link.max_message_size = limit + BATCH_ENVELOPE_SIZE
    _lead(peer, link, inlet)
    inlet.grant()
    entity.touch(peer.namespace.now_ms())


def _attach_receiver(peer: Peer, link: SenderLink, attach: Attach, address: LinkAddress, target: RequestTarget) -> None:
    wants_session = attach.source is not None and SESSION_FILTER in (attach.source.filter or {})
    entity, box = source_of(target, wants_session=wants_session)
    entity.touch(peer.namespace.now_ms())
    if wants_session:
        _check_session_id(attach)
        applicant = Applicant(peer, link, attach, entity, box, address.text)
        _lead(peer, link, applicant)
        peer.namespace.apply(applicant)
        return
    _answer(link, attach, None)
    outlet = Outlet(peer, link, entity, box, address.text)
    _lead(peer, link, outlet)
    peer.namespace.listen(outlet)


def _check_session_id(attach: Attach) -> None:
    session_id = session_asked_for(attach.source)
    if session_id is not None and not (isinstance(session_id, str) and len(session_id) <= SESSION_ID_LENGTH_MAX):
        text = f"A session id is a text of at most {SESSION_ID_LENGTH_MAX} characters, not {session_id!r:.80}."
        raise Refusal(ARGUMENT_ERROR, text)


def _answer(
    link: Link, attach: Attach, max_message_size: int | None, properties: dict[Symbol, Any] | None = None
) -> None:
    link.attach(
        source=attach.source,
        target=attach.target,
        snd_settle_mode=attach.snd_settle_mode,
        rcv_settle_mode=attach.rcv_settle_mode,
        max_message_size=max_message_size,
        properties=properties,
    )


def _unauthorised(address: LinkAddress, what: str) -> Refusal:
    return Refusal(UNAUTHORIZED_ACCESS, f"Unauthorized access. {what} claim is needed for '{address.text}'.")
