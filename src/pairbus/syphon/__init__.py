"""The syphon: pumps that move messages from the backlog queues of the secondary home to entities of the primary.

    syphon = Syphon(primary, secondary, queues, settings=SyphonSettings(), publish=print)
    await syphon.run()                              # until `stop`
    await syphon.run_once()                         # or: only the messages that are there now

`syphon.py` starts and stops pumps, and a pump (`pump.py`) makes passes over one queue. The way of a message has four
steps: `receive.py` → `decide/batch.py` → `send.py` → `settle.py`. Beside it, `failed_sends.py` answers failed sends
(`decide/dead_letter.py` says which messages are dead-lettered), `order.py` is for ordered=True only, and `presence.py`
knows whether the primary answers.
"""

from pairbus.syphon.decide.settings import SyphonSettings
from pairbus.syphon.shared import Meter
from pairbus.syphon.syphon import Syphon, SyphonProgress, redrive

__all__ = ["Meter", "Syphon", "SyphonProgress", "SyphonSettings", "redrive"]
