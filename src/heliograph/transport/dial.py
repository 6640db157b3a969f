"""Connect to the first host of an address that can be reached, directly or through a proxy."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from ssl import SSLContext
from typing import TypeVar

from heliograph.crypto.certificates import TlsCredentials
from heliograph.crypto.keys import generate_key_pair
from heliograph.net.public import is_public_name
from heliograph.transport import loop as net
from heliograph.transport.connection import BlockConnection
from heliograph.transport.errors import AddressRefused, ClientError, ConnectFailed, SocksError
from heliograph.transport.handshake import (
    Handshake,
    ServiceCredentials,
    TlsFacts,
    connect_ntf,
    connect_smp,
)
from heliograph.transport.protocols import NTF, AnyProtocol
from heliograph.transport.socks import SocksProxy, connect_through
from heliograph.transport.tls import client_context
from heliograph.wire.addresses import Host, HostKind, ServerAddress
from heliograph.wire.errors import WireError
from heliograph.wire.keys import Algorithm
from heliograph.wire.versions import VersionRange

__all__ = ["ClientConfig", "begin_handshake", "dial", "open_connection", "tls_context"]

_Connection = TypeVar("_Connection", bound=BlockConnection)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How a client connects and what it may cost. Times are in seconds.

    `versions` narrows what is offered; without `use_alpn` the client is a legacy one. `allow`
    judges the addresses of a host. `receive_buffer` bounds the bytes that the kernel keeps for a
    client that does not read.
    """

    connect_timeout: float = 25.0
    handshake_timeout: float = 20.0
    request_timeout: float = 30.0
    ping_interval: float = 300.0
    ping_failures: int = 3
    max_in_flight: int = 16_384
    receive_buffer: int | None = None
    socks: SocksProxy | None = None
    allow: net.Allow | None = None
    versions: VersionRange | None = None
    use_alpn: bool = True
    encrypt_blocks: bool = True
    is_proxy: bool = False
    """Connect as a proxy, which forwards the commands of others."""


async def dial(
    address: ServerAddress, config: ClientConfig, connect: Callable[[Host], Awaitable[_Result]]
) -> _Result:
    """Return what `connect` returns for the first host that can be reached.

    Raises `ClientError` for the last host if there is none.
    """
    failure: ClientError | None = None
    for host in _reachable(address, config.socks):
        try:
            async with asyncio.timeout(config.connect_timeout):
                return await connect(host)
        except TimeoutError:
            failure = ConnectFailed(f"{host} did not answer in time")
        except (OSError, SocksError, WireError, UnicodeError) as exc:
            failure = ConnectFailed(f"{host}: {exc}")  # also an impossible port or name
        except AddressRefused as exc:
            failure = failure or exc  # the failure of another host says more
        except ClientError as exc:
            failure = exc
    raise failure or ConnectFailed("the address has only onion hosts, and no SOCKS proxy is set")


async def open_connection(
    factory: Callable[[], _Connection],
    host: Host,
    port: int,
    config: ClientConfig,
    context: SSLContext,
) -> _Connection:
    """Connect to one host with TLS; `factory` makes the protocol of the connection."""
    sock = await _open(host, port, config)
    if config.receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer)
    _, connection = await net.create_connection(
        factory, sock, ssl=context, handshake_timeout=config.handshake_timeout
    )
    return connection


@lru_cache(maxsize=64)
def tls_context(alpn: str | None, credentials: TlsCredentials | None) -> SSLContext:
    """Return the TLS context of clients with this ALPN and certificate; it is shared."""
    return client_context([alpn] if alpn else [], credentials)


def _reachable(address: ServerAddress, socks: SocksProxy | None) -> list[Host]:
    """Return the hosts to try: onion hosts first with a proxy, and left out without one."""
    if socks is None:
        return [host for host in address.hosts if host.kind is not HostKind.ONION]
    return sorted(address.hosts, key=lambda host: host.kind is not HostKind.ONION)


async def _open(host: Host, port: int, config: ClientConfig) -> socket.socket:
    socks, allow = config.socks, config.allow
    if socks is None or not socks.serves(host):
        return await net.connect_tcp(host.text, port, allow)
    if allow is not None and not _may_be_proxied(host, allow):
        raise AddressRefused(f"{host} may not be connected to")
    return await connect_through(socks, host, port)


def _may_be_proxied(host: Host, allow: net.Allow) -> bool:
    """Judge a host before it is given to a proxy, which resolves names by itself."""
    match host.kind:
        case HostKind.ONION:
            return True
        case HostKind.DOMAIN:
            return is_public_name(host.text)
        case _:
            return allow(ip_address(host.text))


def begin_handshake(
    protocol: AnyProtocol,
    facts: TlsFacts,
    server: bytes,
    now: float,
    config: ClientConfig,
    service: ServiceCredentials | None,
) -> Handshake:
    """Return the client's side of the protocol's handshake with the router of a fingerprint."""
    versions = config.versions or protocol.versions
    if protocol is NTF:
        return connect_ntf(facts, server, versions, now)
    keys = generate_key_pair(Algorithm.X25519) if config.encrypt_blocks else None
    return connect_smp(
        facts, server, versions, now, keys=keys, service=service, is_proxy=config.is_proxy
    )
