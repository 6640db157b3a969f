"""The notification router: tokens, subscriptions to messaging routers, and pending pushes.

The database is authoritative; memory holds only work in progress. The package imports no other part
of Heliograph: they meet on the wire and in the journal.
"""
