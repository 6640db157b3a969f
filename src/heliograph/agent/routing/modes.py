"""When to send through a proxy, through which one, and when a direct connection may replace it.

A destination learns the address of the proxy only, and the proxy learns neither queue nor content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from heliograph.net.public import is_public
from heliograph.transport.socks import SocksMode, SocksProxy
from heliograph.wire.addresses import HostKind, ServerAddress
from heliograph.wire.errors import PROXY, BrokerError, ErrorType, TransportError


class ProxyMode(Enum):
    """Which destinations are reached through a proxy."""

    ALWAYS = "always"
    UNKNOWN = "unknown"
    """Destinations that are neither the user's own routers nor in the user's own network."""
    UNPROTECTED = "unprotected"
    """Like UNKNOWN, unless SOCKS hides our address from the destination."""
    NEVER = "never"


class ProxyFallback(Enum):
    """Whether to connect directly if proxy and destination cannot talk to each other."""

    ALLOW = "allow"
    ALLOW_PROTECTED = "allow-protected"
    """Only if SOCKS hides our address from the destination."""
    PROHIBIT = "prohibit"


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """`servers` are the user's own messaging routers, with passwords; proxies are among them.

    Without any there is no proxy, and every connection is direct.
    """

    mode: ProxyMode = ProxyMode.NEVER
    fallback: ProxyFallback = ProxyFallback.ALLOW_PROTECTED
    servers: tuple[ServerAddress, ...] = ()


def is_protected(destination: ServerAddress, socks: SocksProxy | None) -> bool:
    """Return whether a direct connection would hide our IP address from the destination."""
    if socks is None:
        return False
    onion = any(host.kind is HostKind.ONION for host in destination.hosts)
    return socks.mode is SocksMode.ALWAYS or onion


def needs_proxy(settings: RoutingSettings, destination: ServerAddress, *, protected: bool) -> bool:
    if not settings.servers:
        return False
    match settings.mode:
        case ProxyMode.ALWAYS:
            return True
        case ProxyMode.UNPROTECTED if protected:
            return False
        case ProxyMode.UNKNOWN | ProxyMode.UNPROTECTED:
            return not (_is_known(settings.servers, destination) or _is_local(destination))
        case ProxyMode.NEVER:
            return False


def choose_proxy(
    settings: RoutingSettings, destination: ServerAddress, random: float
) -> ServerAddress:
    """Choose a proxy, by a number from 0 to 1; the destination itself only as the last choice."""
    others = [item for item in settings.servers if not _is_known([item], destination)]
    candidates = others or settings.servers
    return candidates[int(random * len(candidates)) % len(candidates)]


def may_fall_back(settings: RoutingSettings, error: ErrorType, *, protected: bool) -> bool:
    """Return whether to connect directly after this answer of a proxy.

    Only if the two have no version or host in common: any other failure may be temporary.
    """
    match error:
        case PROXY(BrokerError("HOST") | BrokerError("TRANSPORT", TransportError.VERSION)):
            pass
        case _:
            return False
    match settings.fallback:
        case ProxyFallback.ALLOW:
            return True
        case ProxyFallback.ALLOW_PROTECTED:
            return protected
        case ProxyFallback.PROHIBIT:
            return False


def _is_local(destination: ServerAddress) -> bool:
    """Return whether all hosts are private addresses, which proxies refuse to connect to."""
    return all(
        host.text == "localhost"
        or (
            host.kind in (HostKind.IPV4, HostKind.IPV6)
            and not is_public(ip_address(host.text.strip("[]")))
        )
        for host in destination.hosts
    )


def _is_known(servers: Sequence[ServerAddress], destination: ServerAddress) -> bool:
    hosts = {host for server in servers for host in server.hosts}
    return any(
        server.fingerprint == destination.fingerprint for server in servers
    ) or not hosts.isdisjoint(destination.hosts)
