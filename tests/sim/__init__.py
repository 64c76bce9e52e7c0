"""A deterministic simulation: the genuine asyncio code on a virtual clock, in a world that one number decides.

    python -m tests.sim --seeds 1000           # many worlds
    python -m tests.sim --seed 123 --trace     # one, told step by step

`loop` is time, `broker` the namespaces, `wire` and `links` the network between them and a process, `disk` the spool,
`faults` what goes wrong and when, `processes` the senders and syphons, `checker` what must hold in the end, `world` one
whole history, `broken` three ways to be wrong that must be noticed.
"""
