"""The database under each part: SQLite by default, PostgreSQL by URL.

Only this package distinguishes them. Parts write SQL that both understand, in functions that take a
`Transaction`.
"""
