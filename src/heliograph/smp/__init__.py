"""The messaging router: queues, notifier credentials, and notifications to their subscribers.

Decisions are made in memory, on the event loop; nothing is answered before it is durable. It knows
no other part of Heliograph: they meet on the wire and in the journal.
"""
