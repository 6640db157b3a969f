"""Pushes: the outbox, payloads, providers and periodic wake-ups."""
