"""The syphon: pumps that move messages from the backlog queues of the secondary home to entities of the primary.

    syphon = Syphon(primary, secondary, queues, settings=SyphonSettings(), publish=print)
    await syphon.run()                              # until `stop`
    await syphon.run_once()                         # or: only the messages that are there now

From the outside in: `pumps` starts and stops pumps. A `pump` makes passes over one queue; a `poll` waits for its first
messages, and an `intake` keeps its links. A `mover` gives each batch its turn at its destinations, a `trip` brings it
there, and `settling` completes it. `order` is for ordered=True only; `presence` knows whether the primary answers.
"""

from pairbus.syphon.decide.relay import SyphonSettings
from pairbus.syphon.pumps import Syphon, SyphonProgress, redrive
from pairbus.syphon.shared import Meter

__all__ = ["Meter", "Syphon", "SyphonProgress", "SyphonSettings", "redrive"]
