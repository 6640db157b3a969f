"""PING round trips over TLS: server CPU and rate, beside a bare TLS echo of the same bytes."""

import asyncio
import ssl
import time
from typing import Any, cast

from bench.harness import Rate, ServerProcess, measure, server_process
from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.sim.pong import PongRouter
from heliograph.transport import accepting, loop
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import NTF, SMP, AnyProtocol
from heliograph.transport.server import Listener
from heliograph.transport.tls import client_context, server_context
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.table import PING

ROUNDS = 20_000
_ALIVE: list[object] = []


def _identity() -> ServerIdentity:
    now = time.time()
    return ServerIdentity.of(issue_leaf(create_authority("bench CA", now), "127.0.0.1", now), now)


async def serve_pong(scheme: str) -> tuple[str, int, bytes]:
    protocol: AnyProtocol = NTF if scheme == "ntf" else SMP
    identity = _identity()
    listener = Listener(protocol, identity, PongRouter())
    _ALIVE.append(listener)
    return scheme, await listener.start("127.0.0.1", 0), identity.fingerprint


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve_echo() -> int:
    context = server_context(_identity().credentials, ["echo"], request_client_certificate=False)
    server = await accepting.create_server(_Echo, "127.0.0.1", 0, ssl=context)
    _ALIVE.append(server)
    port: int = cast(Any, server).sockets[0].getsockname()[1]
    return port


class _EchoClient(asyncio.Protocol):
    def __init__(self, size: int, rounds: int) -> None:
        self.block = bytes(size)
        self.left = rounds
        self.missing = size
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.missing -= len(data)
        if self.missing > 0:
            return
        self.left -= 1
        if self.left:
            self.missing = len(self.block)
            self.transport.write(self.block)
        elif not self.done.done():
            self.done.set_result(None)


async def _echo(server: ServerProcess, size: int, connections: int) -> Rate:
    context: ssl.SSLContext = client_context(["echo"])
    rounds = ROUNDS // connections
    clients = []
    for _ in range(connections):
        sock = await loop.connect_tcp("127.0.0.1", server.facts)
        _, client = await loop.create_connection(
            lambda: _EchoClient(size, rounds), sock, ssl=context
        )
        clients.append(client)

    async def work() -> None:
        for client in clients:
            client.transport.write(client.block)
        await asyncio.gather(*(client.done for client in clients))

    rate = await measure(server, rounds * connections, work)
    for client in clients:
        client.transport.abort()
    return rate


async def _ping(server: ServerProcess, connections: int, encrypt: bool) -> Rate:
    scheme, port, fingerprint = server.facts
    address = ServerAddress(Scheme(scheme), (decode_host("127.0.0.1"),), str(port), fingerprint)
    config = ClientConfig(encrypt_blocks=encrypt)
    clients = [await Client.connect(address, config) for _ in range(connections)]
    rounds = ROUNDS // connections

    async def pings(client: Client) -> None:
        for _ in range(rounds):
            await client.request(PING())

    async def work() -> None:
        await asyncio.gather(*map(pings, clients))

    rate = await measure(server, rounds * connections, work)
    for client in clients:
        await client.close()
    return rate


async def run() -> None:
    print("\nPING round trips: server CPU us, rate, and the ratio to a bare TLS echo of the block")
    print("  targets: NTF 60 us; SMP 120 us with blocks encrypted once more, as clients have them")
    async with server_process(serve_echo) as echo:
        for scheme, size, encrypt in (
            ("ntf", 512, False),
            ("smp", 16384, False),
            ("smp", 16384, True),
        ):
            async with server_process(serve_pong, scheme) as server:
                for connections in (1, 50):
                    base = await _echo(echo, size, connections)
                    rate = await _ping(server, connections, encrypt)
                    name = f"{scheme.upper()} {size} B{', encrypted' if encrypt else ''}"
                    print(
                        f"  {name:24} {connections:3} conn  {rate.cpu:6.1f} us"
                        f"  {rate.per_second:8.0f}/s   echo {base.cpu:6.1f} us"
                        f"   ratio {rate.cpu / base.cpu:.2f}"
                    )
