"""A deterministic simulation: the genuine code on a virtual clock, in worlds that one number decides.

    python -m tests.sim --seeds 1000                         # many worlds of all parts
    python -m tests.sim --only client --seed 123 --trace     # one, told step by step

There are three parts. The client: the genuine asyncio code of senders and syphons, between two stand-ins for
namespaces.
`loop` is time, `broker` the namespaces, `wire` and `links` the network between them and a process, `disk` the spool,
`faults` what goes wrong and when, `processes` the senders and syphons, `checker` what must hold in the end, `world` one
whole history, `broken` ways to be wrong that must be noticed. Processors: `processors`. The broker: `brokers`. The
texts of these two say more.
"""
