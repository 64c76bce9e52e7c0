"""One connection to a namespace: address, socket, TLS, WebSocket, and the steps of its opening."""
