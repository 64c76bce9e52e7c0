"""The edge to the genuine azure-servicebus: the one place that knows its exceptions and its private attributes.

What is used of its inside. `PRIVATE` says it for the test that fails when a new version of the SDK drops one; what is
only an aid (breaking a hung socket, for example) is asked for with care and does without.

| of                       | attribute                                              | because                         |
| ------------------------ | ------------------------------------------------------ | ------------------------------- |
| ServiceBusMessage        | constructor's `message`, `raw_amqp_message`            | a copy that shares the body     |
|                          | `_raw_amqp_message`                                    | an id without counting fields   |
| ServiceBusMessageBatch   | `_messages`                                            | its members                     |
|                          | `_message`                                             | their bytes                     |
| AmqpAnnotatedMessage     | `_data_body`, `_value_body`                            | a size without encoding         |
|                          | `_properties`, `_application_properties`, `_header`,   | a look that costs no call       |
|                          | `_annotations`, `_delivery_annotations`, `_footer`,    |                                 |
|                          | `_sequence_body`                                       |                                 |
| PyamqpTransport          | `to_outgoing_amqp_message`                             | the bytes that it would send    |
| ServiceBusError          | `_retryable`, `_condition`                             | whose fault is it?              |
| PyamqpTransport          | `create_servicebus_exception`,                         | its errors for conditions that  |
|                          | `_handle_amqp_exception_with_condition`                | our own transport was told      |
| `_pyamqp.error`          | `AMQPException`, `AMQPLinkError`                       | the same                        |
| `_common.tracing`        | names, attributes and functions of spans               | the same spans                  |
| ServiceBusClient         | `_credential`, `_config`, `_entity_name`, `_handlers`, | another client like it; to see  |
|                          | `_custom_endpoint_address`                             | it closed                       |
|                          | `_amqp_transport`                                      | uamqp is refused                |
| ServiceBusReceiver       | `_handler`, `_running`                                 | a new connection after a fork   |
|                          | `_handler._connection._transport.sock` / `.writer`     | the socket of a call that hangs |
|                          | `_open`, `_backoff` / `_close_handler`                 | calls end in time               |
|                          | `_inner_next` / `_inner_anext`, `_receive_mode`,       | pings skipped, operations       |
|                          | `_max_wait_time`, `_settle_message_with_retry`,        | counted                         |
|                          | `_mgmt_request_response_with_retry`                    |                                 |
"""

from pairbus.sdk.clients import (
    AnyClient,
    ClientConfig,
    abandon_connections,
    check_flavour,
    config_of,
    keep,
    when_closed,
)
from pairbus.sdk.encoding import batch_transport, encode, encoded, plainly_encoded, size
from pairbus.sdk.failures import encoding_errors, failure_of, failure_of_transport
from pairbus.sdk.messages import (
    as_messages,
    body_size,
    ensure_message_id,
    members,
    message_id_of,
    reserved_property,
    scheduled,
)
from pairbus.sdk.receivers import PING_CONTENT_TYPE, Meter, end_async_receiver, end_receiver, skip_pings
from pairbus.sdk.sockets import CAN_BREAK, break_socket
from pairbus.sdk.tracing import SCHEDULE, SEND, Traced, attributes, batch_links, is_traced, links, span, traced
from pairbus.sdk.watchdog import guarded

__all__ = [
    "CAN_BREAK",
    "PING_CONTENT_TYPE",
    "PRIVATE",
    "SCHEDULE",
    "SEND",
    "AnyClient",
    "ClientConfig",
    "Meter",
    "Traced",
    "abandon_connections",
    "as_messages",
    "attributes",
    "batch_links",
    "batch_transport",
    "body_size",
    "break_socket",
    "check_flavour",
    "config_of",
    "encode",
    "encoded",
    "encoding_errors",
    "end_async_receiver",
    "end_receiver",
    "ensure_message_id",
    "failure_of",
    "failure_of_transport",
    "guarded",
    "is_traced",
    "keep",
    "links",
    "members",
    "message_id_of",
    "plainly_encoded",
    "reserved_property",
    "scheduled",
    "size",
    "skip_pings",
    "span",
    "traced",
    "when_closed",
]

PRIVATE: dict[str, tuple[str, ...]] = {
    "ServiceBusMessage": ("_raw_amqp_message",),
    "ServiceBusMessageBatch": ("_messages", "_message"),
    "AmqpAnnotatedMessage": (
        *("_application_properties", "_data_body", "_properties", "_value_body"),
        *("_header", "_annotations", "_delivery_annotations", "_footer", "_sequence_body"),
    ),
    "PyamqpTransport": (
        *("to_outgoing_amqp_message", "create_servicebus_exception", "_handle_amqp_exception_with_condition"),
    ),
    "ServiceBusError": ("_retryable", "_condition"),
    "ServiceBusClient": (
        *("_credential", "_config", "_entity_name", "_handlers", "_custom_endpoint_address", "_amqp_transport"),
    ),
    "Configuration": ("transport_type", "http_proxy", "ssl_context", "connection_verify", "use_tls"),
    "ServiceBusReceiver": (
        *("_open", "_backoff", "_handler", "_running", "_inner_next", "_receive_mode", "_max_wait_time"),
        *("_settle_message_with_retry", "_mgmt_request_response_with_retry"),
    ),
    "ServiceBusReceiver (aio)": (
        *("_close_handler", "_handler", "_running", "_inner_anext", "_receive_mode", "_max_wait_time"),
        *("_settle_message_with_retry", "_mgmt_request_response_with_retry"),
    ),
}
