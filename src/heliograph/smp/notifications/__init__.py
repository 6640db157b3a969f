"""Notifications: notifier credentials, subscriptions to them, and delivery."""
