"""Every exception of the product; each says what the caller may do now.

PairbusError
├── ConfigError                 an option, configuration file or connection string is wrong
│   └── InvalidFault            also a ValueError: a fault that was asked for is described wrongly
├── EntityError                 a request about an entity cannot be carried out
│   ├── EntityNotFound
│   ├── EntityExists
│   └── InvalidDescription      also a ValueError: a setting is out of its range
├── FaultNotFound               no fault of this number is active
├── LedgerNewer                 a ledger was written by a newer version
├── PairingError                of a paired client; the kinds are in `client.errors`, each also an error of the SDK
├── SpoolError                  the local spool cannot do what was asked; the caller still owns the message
│   ├── SpoolFull               its limit is reached, or the disk is full
│   ├── SpoolInUse              another client owns the folder
│   ├── SpoolOfAnotherPair      it holds messages of another pair
│   ├── SpoolForeign            the folder or the file is not a Pairbus spool
│   ├── SpoolNewer              the file was written by a newer version
│   └── SpoolDamaged            the file is damaged
├── StorageError                also an OSError: a storage location did not answer, for longer than the patience
└── StoreError                  the durable store cannot do what was asked; nothing was acknowledged
    ├── StoreFull               the disk is full: free space, then send again
    ├── StoreInUse              another broker owns the data folder
    ├── StoreForeign            the file is not a Pairbus store
    ├── StoreNewer              the file was written by a newer version
    └── StoreDamaged            the file is damaged; `pairbus store salvage` copies the intact messages
"""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: `; did you mean 'NAME'?`, or an empty text."""
    import difflib  # only errors need it

    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class PairbusError(Exception):
    """The root of every error that Pairbus raises on purpose."""


class ConfigError(PairbusError):
    """An option, configuration file or connection string is wrong. No part was started or changed."""


class InvalidFault(ConfigError, ValueError):
    """A fault that was asked for is described wrongly; the text names the field, its value and what is accepted."""


class FaultNotFound(PairbusError):
    """No fault of this number is active: it was cleared, its time is over, or its count is used up."""


class EntityError(PairbusError):
    """A request about an entity cannot be carried out. No entity was changed."""


class EntityNotFound(EntityError):
    """No entity has this path."""


class EntityExists(EntityError):
    """An entity with this path exists already; it was left as it is."""


class InvalidDescription(EntityError, ValueError):
    """A setting of an entity is out of its range; the text names the setting, the value and the range."""


class LedgerNewer(PairbusError):
    """A row of the ledger was written by a newer version of Pairbus. The files are only read, never changed."""


class PairingError(PairbusError):
    """An error of a paired client. Each kind (see `pairbus.client.errors`) says where the message is now."""


class SpoolError(PairbusError):
    """The spool could not write or read. A message that was being added is not in it: the caller still owns it."""


class SpoolFull(SpoolError):
    """The spool's limit is reached or the disk is full. The message is not stored; messages stored before are safe."""


class SpoolInUse(SpoolError):
    """Another client has this spool open. Its messages are safe, and that client forwards them."""


class SpoolOfAnotherPair(SpoolError):
    """The spool holds messages of another pair. It was not touched, and no message was sent; its messages are safe."""


class SpoolForeign(SpoolError):
    """The folder or the file is not a Pairbus spool. It was not touched."""


class SpoolNewer(SpoolError):
    """The spool was written by a newer version of Pairbus. It was not touched; its messages are safe."""


class SpoolDamaged(SpoolError):
    """The spool's structure is damaged. It was not changed; intact messages are still in it."""


class SparkGone(PairbusError):
    """Spark's Java process, or its Connect server, has ended. No message is lost: a new session goes on from there."""


class StorageError(PairbusError, OSError):
    """A storage location (staging, journal) did not answer for longer than the patience allows. No data is lost."""


class StoreError(PairbusError):
    """The store could not write or read. Messages that were not yet acknowledged are not stored."""


class StoreFull(StoreError):
    """The disk is full. All acknowledged messages are safe; free some space and send again."""


class StoreInUse(StoreError):
    """Another broker has this data folder open."""


class StoreForeign(StoreError):
    """The file is not a Pairbus store. It was not touched."""


class StoreNewer(StoreError):
    """The store was written by a newer version of Pairbus. It was not touched."""


class StoreDamaged(StoreError):
    """The store's structure is damaged. It was not changed; a salvage can copy the intact messages."""
