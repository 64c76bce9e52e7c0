"""The way home: one pump for each backlog queue of the secondary, from there to the entities of the primary.

    syphon = Syphon(primary, secondary, queues, settings=SyphonSettings(), publish=print)
    await syphon.run()                              # until `stop`
    await syphon.run_once()                         # or: what is there now

`pumps` starts and stops them, a `pump` makes passes over one queue, a `mover` brings one batch home.
"""

from pairbus.pairing.relay import SyphonSettings
from pairbus.syphon.mover import Meter
from pairbus.syphon.pumps import Progress, Syphon, redrive

__all__ = ["Meter", "Progress", "Syphon", "SyphonSettings", "redrive"]
