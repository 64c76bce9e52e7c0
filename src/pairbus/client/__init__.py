"""The client of a pair of namespaces, or of one. A send passes these files in this order:

    client, sync      the call, with asyncio or with threads
    outgoing          its bytes
    engine            pairing first, if needed
    sends             the commands of its plan (`pairing/plan.py`), which `transport` carries to a namespace
    results           counts and events

`background` has the timers, the pings and the client's own syphon; `receiving` receives; `life` begins and ends all
that a client holds. ARCHITECTURE.md has the whole walk.
"""
