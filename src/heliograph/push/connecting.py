"""Choose the HTTP client of the providers: two implementations of one interface."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from heliograph.push.http import Connections, HttpAnswer, HttpSettings

__all__ = ["HttpConnections", "connections_to"]


class HttpConnections(Protocol):
    """Connections to one host."""

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, read: bool = False
    ) -> HttpAnswer:
        """Send a request. Raises `NoAnswer`, and nothing else but `asyncio.CancelledError`."""

    def refresh(self) -> None:
        """Replace connections that failed."""

    def close(self) -> None: ...


def connections_to(
    settings: HttpSettings, pin: tuple[str, Sequence[IPv4Address | IPv6Address]] | None = None
) -> HttpConnections:
    """Return connections by the client of the settings; see `Connections` for ``pin``."""
    if settings.client == "h2":
        from heliograph.push.h2_client import H2Connections

        return H2Connections(settings, pin)
    return Connections(settings, pin)
