"""Everything between a socket and the entities of a namespace: ports, protocols, connections, links and requests."""
