"""SOCKS 5 for outgoing connections (RFC 1928, RFC 1929): onion hosts, or all of them.

Names are given to the proxy unresolved, so that it, and nobody else, learns them.
"""

import asyncio
import socket
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from heliograph.transport.errors import SocksError
from heliograph.transport.loop import connect_tcp
from heliograph.wire.addresses import Host, HostKind

_VERSION = 5
_NO_AUTH = 0
_PASSWORD = 2
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_SIZES = {_IPV4: 4, _IPV6: 16}

_REPLIES = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}


class SocksMode(Enum):
    """Which hosts are reached through the proxy."""

    ONION = "onion"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class SocksProxy:
    host: str
    port: int
    mode: SocksMode = SocksMode.ONION
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def serves(self, host: Host) -> bool:
        return self.mode is SocksMode.ALWAYS or host.kind is HostKind.ONION


def parse_socks(text: str, mode: SocksMode) -> SocksProxy | None:
    """Parse ``[USER:PASSWORD@]HOST:PORT``; no text is no proxy. Raises `ValueError`."""
    if not text:
        return None
    parts = urlsplit(f"//{text}")
    if not parts.hostname or not parts.port or parts.path:
        raise ValueError("must be HOST:PORT or USER:PASSWORD@HOST:PORT")
    return SocksProxy(parts.hostname, parts.port, mode, parts.username, parts.password)


def encode_greeting(proxy: SocksProxy) -> bytes:
    methods = bytes([_NO_AUTH] if proxy.username is None else [_NO_AUTH, _PASSWORD])
    return bytes((_VERSION, len(methods))) + methods


def encode_login(proxy: SocksProxy) -> bytes:
    username, password = (proxy.username or "").encode(), (proxy.password or "").encode()
    if len(username) > 255 or len(password) > 255:
        raise SocksError("the proxy's user name and password have at most 255 bytes")
    return b"\x01" + bytes((len(username),)) + username + bytes((len(password),)) + password


def encode_connect(host: Host, port: int) -> bytes:
    match host.kind:
        case HostKind.IPV4:
            address = bytes((_IPV4,)) + socket.inet_pton(socket.AF_INET, host.text)
        case HostKind.IPV6:
            address = bytes((_IPV6,)) + socket.inet_pton(socket.AF_INET6, host.text)
        case _:
            name = host.text.encode()
            if len(name) > 255:
                raise SocksError("a host name has at most 255 bytes")
            address = bytes((_NAME, len(name))) + name
    return bytes((_VERSION, _CONNECT, 0)) + address + port.to_bytes(2)


async def connect_through(proxy: SocksProxy, host: Host, port: int) -> socket.socket:
    """Return a socket that the proxy connected to `host`."""
    sock = await connect_tcp(proxy.host, proxy.port)
    try:
        await _negotiate(sock, proxy, encode_connect(host, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _negotiate(sock: socket.socket, proxy: SocksProxy, request: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, encode_greeting(proxy))
    version, method = await _receive(sock, 2)
    if version != _VERSION:
        raise SocksError("the proxy does not speak SOCKS 5")
    if method == _PASSWORD and proxy.username is not None:
        await loop.sock_sendall(sock, encode_login(proxy))
        _, status = await _receive(sock, 2)
        if status != 0:
            raise SocksError("the proxy refused the user name and password")
    elif method != _NO_AUTH:
        raise SocksError("the proxy wants an authentication that is not configured")
    await loop.sock_sendall(sock, request)
    version, reply, _, kind = await _receive(sock, 4)
    if version != _VERSION:
        raise SocksError("the proxy does not speak SOCKS 5")
    if reply != 0:
        raise SocksError(f"the proxy answered: {_REPLIES.get(reply, 'unknown failure')}")
    if kind == _NAME:
        size = (await _receive(sock, 1))[0]
    elif kind in _ADDRESS_SIZES:
        size = _ADDRESS_SIZES[kind]
    else:
        raise SocksError("the proxy does not speak SOCKS 5")
    await _receive(sock, size + 2)


async def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
        if not chunk:
            raise SocksError("the proxy closed the connection")
        data += chunk
    return data
