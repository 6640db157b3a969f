"""Free ports for a new system. They are written to its configuration, so that addresses stay."""

import socket
from collections.abc import Iterable

MAX_PORTS_TRIED = 50


def choose(host: str, wanted: Iterable[int]) -> list[int]:
    """Return each wanted port or the next free one, all different; 0 is any port."""
    chosen: list[int] = []
    for first in wanted:
        candidates = (
            range(first, min(first + MAX_PORTS_TRIED, 65536)) if first else (0,) * MAX_PORTS_TRIED
        )
        for candidate in candidates:
            port = _free(host, candidate)
            if port is not None and port not in chosen:
                chosen.append(port)
                break
        else:
            raise OSError(f"no port from {first} to {first + MAX_PORTS_TRIED} of {host} is free")
    return chosen


def _free(host: str, port: int) -> int | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return None
        bound: int = probe.getsockname()[1]
        return bound
