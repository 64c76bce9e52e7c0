"""The edge to azure-servicebus, the SDK: the one package that knows its exceptions and its private attributes.

`PRIVATE` lists the attributes, and a test fails when a new version of the SDK drops one of them. Besides, names of
`_pyamqp.error` and `_common.tracing` are imported. Attributes that only help (the socket of a call that hangs,
`_handler._connection._transport.sock` or `.writer`) are optional: a version of the SDK without them works too.
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
    ("ServiceBusReceiver", "_handler _running", "a new connection after a fork"),
    ("ServiceBusReceiver", "_open _backoff", "calls that end in time"),
    ("ServiceBusReceiver", "_inner_next _receive_mode _max_wait_time", "pings that are skipped"),
    (
        "ServiceBusReceiver",
        "_settle_message_with_retry _mgmt_request_response_with_retry",
        "operations that are counted",
    ),
    ("ServiceBusReceiver (aio)", "_handler _running _close_handler", "a new connection after a fork, or silence"),
    ("ServiceBusReceiver (aio)", "_inner_anext _receive_mode _max_wait_time", "pings that are skipped"),
    (
        "ServiceBusReceiver (aio)",
        "_settle_message_with_retry _mgmt_request_response_with_retry",
        "operations that are counted",
    ),
)
"(class of the SDK, its attributes, their use)"
