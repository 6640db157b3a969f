"""Compatibility with the reference: its store log, statistics and control port."""
