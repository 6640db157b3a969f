"""The notification router: tokens, subscriptions to messaging routers, and pushes that are owed.

The database is the truth, also of what is owed: memory holds only what is being worked on. It knows
no other part of Heliograph: they meet on the wire and in the journal.
"""
