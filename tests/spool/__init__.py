"""The durable local spool and what brings its messages to a namespace."""
