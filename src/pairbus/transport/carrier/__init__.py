"""The way to one namespace: a carrier, its pool of connections and its sending links.

| question about a send         | answer                                                                               |
| ----------------------------- | ----------------------------------------------------------------------------------- |
| which object finds its link   | `Carrier.send` asks `Senders.known`, or `Senders.key_for` beside a large message     |
| which one opens a link        | `Senders.opened`: one opening for all callers (`connection/shared_work.py`)          |
| which one opens a connection  | `Pool.place`, when no connection has room                                            |
| where it waits for its link   | in `Senders.send`; sends that wait begin in their order when the link is open        |
| where it waits for credit     | in the line of its link, `links/sender.py`                                           |
| which object measures silence | of an opening a `Hearing` (`connection/steps.py`); of a link `links/patience.py`     |
"""
