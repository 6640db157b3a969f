"""Hosts that strangers name: their addresses are judged after the name was resolved."""

import socket
from ipaddress import IPv4Address, IPv6Address

import pytest

from heliograph.net.public import is_public
from heliograph.transport import loop
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import AddressRefused, ConnectFailed
from heliograph.transport.socks import SocksMode, SocksProxy
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host

Address = IPv4Address | IPv6Address


def nobody(_: Address) -> bool:
    return False


def address(*hosts: str, port: int = 1) -> ServerAddress:
    return ServerAddress(Scheme.SMP, tuple(map(decode_host, hosts)), str(port), bytes(32))


async def test_nothing_is_sent_to_a_refused_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        for host, error in (("127.0.0.1", AddressRefused), ("localhost", OSError)):
            with pytest.raises(error):
                await loop.connect_tcp(host, server.getsockname()[1], nobody)
        with pytest.raises(TimeoutError):
            server.accept()


async def test_addresses_are_judged_one_by_one() -> None:
    judged: list[str] = []

    def loopback(item: Address) -> bool:
        judged.append(str(item))
        return item.is_loopback

    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = await loop.connect_tcp("127.0.0.1", server.getsockname()[1], loopback)
        sock.close()
    assert judged == ["127.0.0.1"]


async def test_a_name_with_refused_addresses_is_as_one_that_does_not_exist() -> None:
    errors = []
    for host in ("localhost", "nothing.invalid"):
        with pytest.raises(ConnectFailed) as error:
            await Client.connect(address(host), ClientConfig(allow=nobody))
        errors.append(type(error.value))
    assert errors == [ConnectFailed, ConnectFailed]


@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("::1",)])
async def test_clients(hosts: tuple[str, ...]) -> None:
    with pytest.raises(AddressRefused):
        await Client.connect(address(*hosts), ClientConfig(allow=nobody))


async def test_what_happened_at_another_host_says_more() -> None:
    config = ClientConfig(allow=lambda item: str(item) == "127.0.0.2")
    for hosts in (("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")):
        with pytest.raises(ConnectFailed) as error:
            await Client.connect(address(*hosts), config)
        assert not isinstance(error.value, AddressRefused)


async def test_addresses_that_a_proxy_would_connect_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        proxy = SocksProxy("127.0.0.1", server.getsockname()[1], SocksMode.ALWAYS)
        config = ClientConfig(socks=proxy, allow=nobody, connect_timeout=0.3)
        with pytest.raises(AddressRefused):
            await Client.connect(address("10.0.0.1"), config)
        with pytest.raises(TimeoutError):
            server.accept()
        with pytest.raises(ConnectFailed, match="in time"):
            await Client.connect(address("example.com"), config)  # the proxy itself is ours
        server.accept()[0].close()


@pytest.mark.parametrize("host", ["localhost", "127.1", "0x7f000001", "metadata.google.internal"])
async def test_a_proxy_is_given_no_private_name(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0.1)
        socks = SocksProxy("127.0.0.1", proxy.getsockname()[1], SocksMode.ALWAYS)
        with pytest.raises(AddressRefused):
            await Client.connect(address(host), ClientConfig(allow=is_public, socks=socks))
        with pytest.raises(TimeoutError):
            proxy.accept()


@pytest.mark.parametrize("host", ["smp.example.com", "8.8.8.8", "abcdefgh.onion"])
async def test_a_proxy_is_given_public_hosts(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        socks = SocksProxy("127.0.0.1", proxy.getsockname()[1], SocksMode.ALWAYS)
        config = ClientConfig(allow=is_public, socks=socks, connect_timeout=0.2)
        with pytest.raises(ConnectFailed, match="in time"):
            await Client.connect(address(host), config)
        proxy.settimeout(30)
        proxy.accept()[0].close()
