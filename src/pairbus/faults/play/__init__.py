"""Faults at work on an event loop, for the broker and for the proxy. Faults of connections are played here alone.

`switches.py` switches faults on and off, and ends them in time. `connections.py` decides what happens to a connection:
`listening_port.py` refuses connections and keeps the port, `swallowed.py` keeps those of a black hole, and a `cable.py`
stands before each open connection, to freeze it and to slow it.
"""
