"""Control sockets: a running process tells what it does, and obeys an operator, over a Unix socket of its user.

A socket speaks JSON over HTTP. `serving` is the one server, for brokers, proxies, clients and syphons; their routes are
in `broker/kit/control.py`, `client/control.py` and `syphon/control.py`. `sockets` opens a socket, `places` has the
folder of sockets that were given no path, `followers` are peers to whom events are told, `asking` is the other end.
"""
