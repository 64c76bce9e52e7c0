"""Ends of AMQP links: senders, receivers, and the request links of `$management` and `$cbs`."""
