"""Receivers of one engine: each has its own link, and all share one connection to the primary.

`options` checks the options of a receiver; `entity_receiver` opens its link, opens it again after a loss, and skips
pings; `settling` is the table of the ways to settle a message; `shared` has the connection and the meters of all.
"""
