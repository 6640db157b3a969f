"""Ports for routers that a test stops and starts again."""

from heliograph.system import ports


def steady_port() -> int:
    """Return a free port that nobody takes while its router is down."""
    return ports.choose("127.0.0.1", [0])[0]
