"""Formats of the reference that both routers have: control port, statistics, store logs."""
