"""What may go wrong with a database.

Exception
└── DatabaseError          the operation did not happen; nothing of it was kept
    ├── DatabaseBusy       another process uses this database
    │   └── DatabaseOwned  another process is its only user
    ├── DatabaseNewer      the schema belongs to a later version of Heliograph
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


class DatabaseLost(DatabaseError):
    """The database cannot be reached."""
