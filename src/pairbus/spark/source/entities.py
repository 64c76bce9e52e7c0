"""The entities of one stream: named, or found by a pattern; and offsets with a number for each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from pairbus.errors import ConfigError
from pairbus.spark.features import Offset
from pairbus.spark.options import Options
from pairbus.transport import TransportError

LIST_EVERY_S = 60.0
ONE_ENTITY = "batch"
"Key in offsets of a stream that receives from one entity: the number of its last micro-batch."
LOCATION = "location"
"Key in the same offsets: the id of the staging location. Offsets of releases up to 0.3 do not have it."

logger = logging.getLogger("pairbus.spark")


def entities_of(options: Options) -> tuple[str, ...]:
    """Return the entities to read: those of the option entity, or all that match entityPattern now, in order."""
    if options.entity_pattern is None:
        return options.entities
    from pairbus.spark.source.listing import (
        matching_entities,  # it imports the SDK, which is loaded only where it is needed
    )

    return matching_entities(options, options.entity_pattern)


class EntityListing:
    """Keeps the entities of the last listing, in order, for the driver's part of a stream."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._listed: tuple[str, ...] = ()
        self._list_at = float("-inf")
        self._turn = 0

    def now(self) -> tuple[str, ...]:
        """Return the entities; a pattern is listed at the first call."""
        return self._listed or self.listed_anew()

    def listed_anew(self) -> tuple[str, ...]:
        """Return the entities; those of a pattern are listed again once a minute."""
        at = time.monotonic()
        if not self._listed or (self._options.entity_pattern is not None and at >= self._list_at):
            try:
                self._listed = entities_of(self._options)
            except TransportError as error:
                if not self._listed:
                    raise
                logger.warning("%s; going on with those that are known", error)
            self._list_at = at + LIST_EVERY_S
        return self._listed

    def drop(self, entity: str) -> bool:
        """Forget an entity that was deleted; False when the user has named it, or none would be left."""
        if self._options.entity_pattern is None or len(self._listed) == 1:
            return False
        logger.warning("entity %r was deleted; going on without it", entity)
        self._listed = tuple(one for one in self._listed if one != entity)
        return True

    def in_turn(self, ready: Iterable[str], count_max: int) -> list[str]:
        """Return at most so many of the entities that have messages, beginning with another one each time."""
        names = list(ready)
        self._turn += 1
        first = self._turn % len(names) if len(names) > count_max else 0
        return (names[first:] + names[:first])[:count_max]

    @staticmethod
    def check_offset(offset: Offset, reader: str, key: str) -> None:
        """Raise ConfigError for an offset of another kind of stream: that of an entity is a number, or has this key."""
        if isinstance(offset.get(ONE_ENTITY), int) and offset.keys() <= {ONE_ENTITY, LOCATION}:
            owner = "a stream that receives from one entity"
        elif any(isinstance(one, dict) and key not in one for one in offset.values()):
            owner = "a stream of another mode"
        else:
            return
        raise ConfigError(
            f"the checkpoint belongs to {owner}, and {reader} counts otherwise: give this query a checkpointLocation of"
            " its own"
        )
