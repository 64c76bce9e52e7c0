"""The edge to azure-servicebus, the SDK: the one package that knows its exceptions and its private attributes.

`PRIVATE` lists the attributes, and a test fails when a new version of the SDK drops one of them. Besides, names of
`_pyamqp.error`, `_pyamqp._decode`, `_common.tracing`, `_common.constants` and `_common.utils` are imported. The SDK's
messages and sessions ask their receiver, which is ours, for `session`, `_running` and `_handler`.
"""

PRIVATE = (
    ("ServiceBusMessage", "_raw_amqp_message", "message ids without counting fields"),
    ("ServiceBusMessageBatch", "_messages _message", "members of a batch, and their bytes"),
    ("AmqpAnnotatedMessage", "_data_body _value_body", "sizes without encoding"),
    ("AmqpAnnotatedMessage", "_properties _application_properties _header _annotations", "the quick encoder"),
    ("AmqpAnnotatedMessage", "_delivery_annotations _footer _sequence_body", "the quick encoder"),
    ("PyamqpTransport", "to_outgoing_amqp_message", "bytes that the SDK would send"),
    ("PyamqpTransport", "create_servicebus_exception", "the SDK's errors for conditions told to our transport"),
    ("PyamqpTransport", "_handle_amqp_exception_with_condition", "the same for requests"),
    ("ServiceBusError", "_retryable _condition", "whose fault an error is"),
    ("ServiceBusClient", "_credential _config _entity_name _custom_endpoint_address", "another client like it"),
    ("ServiceBusClient", "_handlers", "to see it closed"),
    ("ServiceBusClient", "_amqp_transport", "uamqp is refused"),
    ("Configuration", "transport_type http_proxy ssl_context connection_verify use_tls", "another client like it"),
    ("ServiceBusReceivedMessage", "_settled _is_peeked_message _is_deferred_message", "what may be settled, and how"),
    ("ServiceBusReceivedMessage", "_delivery_id _lock_expired _expiry", "where it came from, and its lock"),
    ("ServiceBusSession", "_session_id _session_start _locked_until_utc _lock_expired", "what the service told of it"),
)
"(class of the SDK, its attributes, their use)"
