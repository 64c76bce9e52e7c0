"""Ways to name a namespace and to prove who asks: connection strings, hosts, shared access signatures."""
