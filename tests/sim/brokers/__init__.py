"""A deterministic simulation of the broker: the genuine namespace with its queues, topics, subscriptions, sessions and
forwarders, on a virtual clock and a disk that one number decides.

    python -m tests.sim --only broker --seeds 1000
    python -m tests.sim --only broker --seed 123 --trace

`topology` is the entities and where a message must go, `disk` the store whose commits take time, `process` the broker
that is killed and started again, `clients` the operations, `ledger` the book of everything that clients were told,
`sessions` its pages about sessions, `checker` what must hold in the end, `world` one whole history, `broken` ways to be
wrong that must be noticed.
"""
