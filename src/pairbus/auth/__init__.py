"""Names of namespaces, and proofs of rights: connection strings, hosts, shared access signatures.

A connection string becomes a `ConnectionString`; its key signs tokens, and a `KeyRing` turns a token into a `Grant`.
No text of an error, log or `repr` shows a key or a signature. Only `emulator` and `secret_place` do I/O.
"""
