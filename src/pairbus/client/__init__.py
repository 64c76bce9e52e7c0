"""The paired client. One send, from the call to the primary's queue, passes these files in this order:

    client or sync   the call                          outgoing     its bytes
    engine           pairing first, if needed          sends        direct, diverted or planned
    pairing.sending  every decision of the plan        pairing.envelope   the copy for a backlog queue
    transport        the wire                          background   clocks, pings, the syphon that brings it home

`client` is for asyncio; `sync` is a face on the same engine, which `thread` runs in a thread. `life` begins and ends
all that a client holds.
"""
