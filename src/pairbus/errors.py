"""Every exception of the product; each says what the caller may do now.

PairbusError
├── ConfigError                 an option, configuration file or connection string is wrong
├── EntityError                 a request about an entity cannot be carried out
│   ├── EntityNotFound
│   ├── EntityExists
│   └── InvalidDescription      also a ValueError: a setting is out of its range
└── StoreError                  the durable store cannot do what was asked; nothing was acknowledged
    ├── StoreFull               the disk is full: free space, then send again
    ├── StoreInUse              another broker owns the data folder
    ├── StoreForeign            the file is not a Pairbus store
    ├── StoreNewer              the file was written by a newer version
    └── StoreDamaged            the file is damaged; `pairbus store salvage` copies what is intact
"""


class PairbusError(Exception):
    """The root of every error that Pairbus raises on purpose."""


class ConfigError(PairbusError):
    """An option, configuration file or connection string is wrong. Nothing was started or changed."""


class EntityError(PairbusError):
    """A request about an entity cannot be carried out. Nothing was changed."""


class EntityNotFound(EntityError):
    """No entity has this path."""


class EntityExists(EntityError):
    """An entity with this path exists already; it was left as it is."""


class InvalidDescription(EntityError, ValueError):
    """A setting of an entity is out of its range; the text names the setting, the value and the range."""


class StoreError(PairbusError):
    """The store could not write or read. What was not yet acknowledged is not stored."""


class StoreFull(StoreError):
    """The disk is full. Everything acknowledged so far is safe; free some space and send again."""


class StoreInUse(StoreError):
    """Another broker has this data folder open."""


class StoreForeign(StoreError):
    """The file is not a Pairbus store. It was not touched."""


class StoreNewer(StoreError):
    """The store was written by a newer version of Pairbus. It was not touched."""


class StoreDamaged(StoreError):
    """The store's structure is damaged. It was not changed; what is intact can be copied with a salvage."""
