"""How a connection proves its rights: credentials, and the tokens that `$cbs` takes."""
