"""Subscriptions in the store, and the messaging routers that have their queues."""
