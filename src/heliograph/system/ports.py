"""Free ports for a new system. They are written to its configuration, so that addresses stay."""

import random
import socket
from collections.abc import Iterable, Sequence

MAX_PORTS_TRIED = 50

ANY_PORT = range(10_000, 32_000)
"""Higher ports serve outgoing connections, and one of them could take it before its part starts."""


def choose(host: str, wanted: Iterable[int]) -> list[int]:
    """Return each wanted port or the next free one, all different; 0 is any port."""
    chosen: list[int] = []
    for first in wanted:
        candidates = _candidates(first)
        for port in candidates:
            if port not in chosen and _is_free(host, port):
                chosen.append(port)
                break
        else:
            tried = f"{min(candidates)} to {max(candidates)}"
            raise OSError(f"no port of {host} is free: tried {len(candidates)} from {tried}")
    return chosen


def _candidates(first: int) -> Sequence[int]:
    if not first:
        return random.SystemRandom().sample(ANY_PORT, MAX_PORTS_TRIED)
    return range(first, min(first + MAX_PORTS_TRIED, 65536))


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
