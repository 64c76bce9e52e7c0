"""The way home: one pump for each backlog queue of the secondary, from there to the entities of the primary.

    syphon = Syphon(primary, secondary, queues, settings=SyphonSettings(), publish=print)
    await syphon.run()                              # until `stop`
    await syphon.run_once()                         # or: the messages that are there now

From the outside in: `pumps` starts and stops pumps, a `pump` makes passes over one queue, whose first messages a `poll`
waits for and whose links an `intake` keeps; a `mover` gives each batch its turn at its destinations, a `trip` brings it
there, and `settling` completes it. `order` is for ordered=True only; `presence` knows whether the primary is there.
"""

from pairbus.pairing.relay import SyphonSettings
from pairbus.syphon.pumps import Progress, Syphon, redrive
from pairbus.syphon.shared import Meter

__all__ = ["Meter", "Progress", "Syphon", "SyphonSettings", "redrive"]
