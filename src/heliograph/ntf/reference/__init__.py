"""Compatibility with the reference: its configuration, store log, statistics and control port."""
