"""The database under each part: SQLite by default, PostgreSQL by URL.

The only place that knows one from the other. Parts write SQL that both understand, in functions of
a `Transaction`.
"""
