"""The messaging router: queues, messages, notifier credentials and notifications.

Commands are decided in memory, on the event loop, and answered once their changes are durable. The
package imports no other part of Heliograph: they meet on the wire and in the journal.
"""
