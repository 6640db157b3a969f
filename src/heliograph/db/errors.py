"""Errors of a database.

Exception
└── DatabaseError          the operation did not happen; nothing of it was kept
    ├── DatabaseBusy       another process uses this database
    │   └── DatabaseOwned  another process is its only user
    ├── DatabaseNewer      the schema belongs to a later version of Heliograph
    ├── DatabaseFenced     this process may not write any more
    ├── DatabaseConflict   a write of another process was in the way: the same again may succeed
    ├── DatabaseUrlError   the URL is malformed, or names something that cannot be used
    └── DatabaseLost       the database cannot be reached
"""


class DatabaseError(Exception):
    """The operation did not happen; nothing of it was kept."""


class DatabaseBusy(DatabaseError):
    """Another process uses this database."""


class DatabaseOwned(DatabaseBusy):
    """Another process is its only user."""


class DatabaseNewer(DatabaseError):
    """The schema belongs to a later version of Heliograph."""


class DatabaseFenced(DatabaseError):
    """This process may not write any more: others have taken its work over."""


class DatabaseConflict(DatabaseError):
    """A write of another process was in the way; the same again may succeed."""


class DatabaseUrlError(DatabaseError):
    """The URL is malformed, or names something that cannot be used."""


class DatabaseLost(DatabaseError):
    """The database cannot be reached."""
