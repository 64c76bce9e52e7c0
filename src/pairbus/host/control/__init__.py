"""Control sockets: a running process tells what it does, and obeys an operator, over a Unix socket of its user.

A socket speaks JSON over HTTP. `sockets` opens one, `places` has the folder of sockets that were given no path,
`serving` answers requests in a thread, `asking` is the other end. `clients` and `syphons` have the routes. The broker
has routes of its own (`broker/kit/control.py`), on a socket that `sockets` opens too.
"""
