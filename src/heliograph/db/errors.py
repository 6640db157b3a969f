"""What may go wrong with a database.

Exception
└── DatabaseError          the operation did not happen; nothing of it was kept
    ├── DatabaseBusy       another process uses this database
    │   └── DatabaseOwned  another process is its only user
    ├── DatabaseNewer      the schema belongs to a later version of Heliograph
    ├── DatabaseMisnamed   its URL, or what that names, is a mistake
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


class DatabaseMisnamed(DatabaseError):
    """Its URL, or what that names, is a mistake."""


class DatabaseLost(DatabaseError):
    """The database cannot be reached."""
