"""Notifications of an agent: its token, its subscriptions, and opening a push."""
