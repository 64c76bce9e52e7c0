"""A deterministic simulation of processors: the genuine processor for asyncio on one queue of a simulated namespace.

    python -m tests.sim --only processor --seeds 1000
    python -m tests.sim --only processor --seed 123 --trace

`entity` is the queue, with scheduled copies and dead letters, `links` its receivers and requests, on the network of
the client's simulation, `handlers` what handlers do, and the book of their runs, `process` one worker that can die,
`world` one whole history, `checker` what must hold in the end, `broken` ways to be wrong that must be noticed.
"""
