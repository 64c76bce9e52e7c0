"""Messages over HTTP, as the REST API of the service has them: send, receive and settle without a link.

`paths`, `dates`, `json_text`, `broker_properties`, `header_values`, `incoming` and `outgoing` read and write texts
and have no I/O. `body_reading`, `waiting`, `answers` and `routes` are the way between a request, an entity and the
answer.
"""
