"""Durable files: private modes, durable names, one owner of a folder, and the number of its last commit.

    locks         the owner of a folder, and writers that share a file
    commit_file   the number of the last commit, beside a database
    folders       modes, names that survive a power failure, disk space that is reserved in advance

The spool, the broker's store, the ledger and Spark's staging use this package.
"""
