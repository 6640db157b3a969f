"""Ports that a test chooses before something listens there."""

from heliograph.system import ports


def steady_port() -> int:
    """Return a free port that no outgoing connection takes before, or between, its uses."""
    return ports.choose("127.0.0.1", [0])[0]
