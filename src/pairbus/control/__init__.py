"""Control sockets: a running process tells what it does, and takes an operator's word, over a Unix socket of its user.

A socket speaks JSON over HTTP. `sockets` opens one, `places` has the folder of those that nobody gave a path, `serving`
answers requests in a thread, `asking` is the other end. `clients` and `syphons` say what can be asked. The broker has
its own routes (`broker.control`), on a socket that is opened here too.
"""
