"""The edge to the genuine azure-servicebus: the one place that knows its exceptions and its private attributes.

What is used of its inside. `PRIVATE` says it for the test that fails when a new version of the SDK drops one; what is
only an aid (breaking a hung socket, for example) is asked for with care and does without.

| of                       | attribute                                              | because                         |
| ------------------------ | ------------------------------------------------------ | ------------------------------- |
| ServiceBusMessage        | constructor's `message`, `raw_amqp_message`            | a copy that shares the body     |
| ServiceBusMessageBatch   | `_messages`                                            | its members                     |
|                          | `_message`, `_count`, `_size`, `_amqp_transport`       | a batch of bytes                |
| AmqpAnnotatedMessage     | `_data_body`, `_value_body`                            | a size without encoding         |
|                          | `_properties`, `_application_properties`, `_header`,   | a look that costs no call       |
|                          | `_annotations`, `_delivery_annotations`, `_footer`,    |                                 |
|                          | `_sequence_body`                                       |                                 |
| PyamqpTransport          | `to_outgoing_amqp_message`, `encode_message`,          | the bytes that it would send    |
|                          | `build_batch_message`                                  | a batch of bytes                |
| ServiceBusError          | `_retryable`, `_condition`                             | whose fault is it?              |
| `_pyamqp.error`          | `AuthenticationException`, `TokenAuthFailure`          | refused, or no answer?          |
|                          | `MessageSendFailed`, every error's `condition`         | what was said, what not         |
| any handler              | function names `_open`, module `_encode` in tracebacks | was anything sent?              |
|                          | function `_negotiate` and its `fields`                 | refused by SASL?                |
| sender                   | `_max_message_size_on_link`, `_max_batch_size_on_link` | limits without an exception     |
|                          | `_error_policy`                                        | no retries but ours             |
|                          | `_handle_exception`, `_close_handler`, `_running`      | a look before links are dropped |
|                          | `_open`                                                | a look before each send         |
| its handler              | `_link`, `_connection`, `_cbs_authenticator`,          | their `_error` is what the peer |
|                          | `_mgmt_links`, and in the last two                     | said when it ended them         |
|                          | `_mgmt_link._request_link`, `._response_link`          |                                 |
|                          | `_cbs_authenticator.state`, its `_expires_on` and      | no tokens, no send              |
|                          | `_refresh_window`;                                     |                                 |
|                          | `_connection._last_frame_received_time`                |                                 |
| sync sender, receiver    | `_handler._connection._transport.sock`                 | what a hung call hangs on       |
|                          | `_handler`, `_running`                                 | a new connection after a fork   |
| ServiceBusClient         | `_credential`, `_config`, `_entity_name`, `_handlers`, | another client like it; to see  |
|                          | `_custom_endpoint_address`                             | it closed                       |
|                          | `_amqp_transport`                                      | uamqp is refused                |
| ServiceBusReceiver       | `_inner_next` / `_inner_anext`, `_receive_mode`,       | pings skipped, operations       |
|                          | `_max_wait_time`, `_settle_message_with_retry`,        | counted                         |
|                          | `_mgmt_request_response_with_retry`                    |                                 |
"""

from pairbus.sdk.clients import (
    AnyClient,
    ClientConfig,
    Proxy,
    abandon_connections,
    check_flavour,
    config_of,
    keep,
    proxy_of_sync_sdk,
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
    spared,
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
    "Proxy",
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
    "proxy_of_sync_sdk",
    "reserved_property",
    "scheduled",
    "size",
    "skip_pings",
    "span",
    "spared",
    "traced",
    "when_closed",
]

PRIVATE: dict[str, tuple[str, ...]] = {
    "ServiceBusMessageBatch": ("_messages", "_message", "_count", "_size", "_amqp_transport"),
    "AmqpAnnotatedMessage": (
        *("_application_properties", "_data_body", "_properties", "_value_body"),
        *("_header", "_annotations", "_delivery_annotations", "_footer", "_sequence_body"),
    ),
    "PyamqpTransport": ("to_outgoing_amqp_message", "encode_message", "build_batch_message"),
    "ServiceBusError": ("_retryable", "_condition"),
    "ServiceBusSender": (
        *("_open", "_handler", "_running", "_max_message_size_on_link", "_max_batch_size_on_link"),
        *("_error_policy", "_handle_exception", "_close_handler"),
    ),
    "SendClient": ("_link", "_connection", "_cbs_authenticator", "_mgmt_links"),
    "CBSAuthenticator": ("_mgmt_link", "state", "_expires_on", "_refresh_window"),
    "ManagementOperation": ("_mgmt_link",),
    "ManagementLink": ("_request_link", "_response_link"),
    "SenderLink": ("_error", "delivery_count"),
    "Connection": ("_error", "_last_frame_received_time"),
    "ServiceBusClient": (
        "_credential",
        "_config",
        "_entity_name",
        "_handlers",
        "_custom_endpoint_address",
        "_amqp_transport",
    ),
    "Configuration": ("transport_type", "http_proxy", "ssl_context", "connection_verify", "use_tls"),
    "ServiceBusReceiver": (
        *("_open", "_handler", "_running", "_inner_next", "_receive_mode", "_max_wait_time"),
        *("_settle_message_with_retry", "_mgmt_request_response_with_retry"),
    ),
    "ServiceBusReceiver (aio)": (
        *("_open", "_handler", "_inner_anext", "_receive_mode", "_max_wait_time"),
        *("_settle_message_with_retry", "_mgmt_request_response_with_retry"),
    ),
}
