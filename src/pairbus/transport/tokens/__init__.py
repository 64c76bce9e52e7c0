"""Credentials of a connection, and the tokens that `$cbs` takes."""
