"""Ports for routers that a test stops and starts again."""

import random
import socket

_PORTS = range(10_000, 32_000)
"""Systems hand out ports above these: a port of theirs may be another's when its router is down."""


def steady_port() -> int:
    """Return a free port that nobody takes while its router is down."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
