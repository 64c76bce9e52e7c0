"""The spans of the SDK: the same names, links and message properties as those of its own senders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

from azure.core.settings import settings
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._common import tracing
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

SEND, SCHEDULE = tracing.SPAN_NAME_SEND, tracing.SPAN_NAME_SCHEDULE
RECEIVE, RECEIVE_DEFERRED = tracing.SPAN_NAME_RECEIVE, tracing.SPAN_NAME_RECEIVE_DEFERRED
PEEK = tracing.SPAN_NAME_PEEK
NO_SPAN: AbstractContextManager[None] = nullcontext()
is_on: Callable[[], object] = settings.tracing_implementation
"Function that returns a true value when the application traces; every send asks it."


class Traced:
    """The spans of the messages of one call, and links to them."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._attributes = attributes
        self.links: list[Any] = []

    def trace(self, message: Any) -> Any:
        """Give an outgoing message of the SDK a span of its own, and the span's context as properties."""
        message = tracing.trace_message(message, cast(Any, PyamqpTransport), self._attributes)
        link = tracing.get_span_link_from_message(message)
        if link:
            self.links.append(link)
        return message


def attributes(namespace: str, entity: str) -> dict[str, Any]:
    """Return the attributes of a message's span that name its destination."""
    return {
        tracing.TraceAttributes.TRACE_NET_PEER_NAME_ATTRIBUTE: namespace,
        tracing.TraceAttributes.TRACE_MESSAGING_DESTINATION_ATTRIBUTE: entity,
    }


def batch_links(batch: ServiceBusMessageBatch) -> Sequence[Any]:
    return tracing.get_span_links_from_batch(batch)


def span(namespace: str, entity: str, name: str, links: Sequence[Any]) -> AbstractContextManager[None]:
    """Return the span around one call to an entity, with links to the spans of its messages."""
    return tracing.send_trace_context_manager(_owner(namespace, entity), span_name=name, links=list(links))


def tell_received(namespace: str, entity: str, name: str, messages: Any, began_ns: int) -> None:
    """Make the span of a receive that has ended, with links to the spans of its messages."""
    links = tracing.get_receive_links(messages)
    with tracing.receive_trace_context_manager(_owner(namespace, entity), name, links, began_ns):
        pass


def settling(namespace: str, entity: str, operation: str, message: Any) -> AbstractContextManager[None]:
    """Return the span around a settlement, with a link to the span of the message."""
    link = tracing.get_span_link_from_message(message)
    return cast(
        AbstractContextManager[None],
        tracing.settle_trace_context_manager(_owner(namespace, entity), operation, [link] if link else []),
    )


def _owner(namespace: str, entity: str) -> Any:
    return SimpleNamespace(fully_qualified_namespace=namespace, _entity_name=entity)
