"""`heliograph demo`: a client and a router of each protocol, speaking over TLS on this machine."""

import argparse
import time
from typing import Any

from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.sim.pong import PongRouter
from heliograph.transport import loop
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import HandshakeFailed
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import NTF, SMP, Protocol
from heliograph.transport.server import Listener
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.table import PING

HOST = "127.0.0.1"
BATCH = 1000


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="watch a client and a router speak on this machine",
        description="Start a router of each protocol on a free loopback port, and speak to it.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    loop.run(_demo())
    return 0


async def _demo() -> None:
    now = time.time()
    authority = create_authority("Heliograph demo CA", now)
    identity = ServerIdentity.of(issue_leaf(authority, HOST, now), now)
    for number, protocol in enumerate((NTF, SMP), 1):
        print(f"\n{number}. {protocol.scheme.name}")
        await _speak(protocol, identity)
    print("\nThat is the foundation: every other part speaks through it.")


async def _speak(protocol: Protocol, identity: ServerIdentity) -> None:
    listener = Listener(protocol, identity, PongRouter())
    port = await listener.start(HOST, 0)
    address = ServerAddress(protocol.scheme, (decode_host(HOST),), str(port), identity.fingerprint)
    print(f"   the router listens at {address}")
    try:
        client = await Client.connect(address)
        established = client.established
        print(
            "   the client found the pinned certificate and agreed version"
            f" {established.session.version},"
            f" blocks of {protocol.block_size} bytes"
            f"{', encrypted once more inside TLS' if established.cipher else ''}"
        )
        started = time.perf_counter()
        await client.request(PING())
        print(f"   PING -> PONG in {(time.perf_counter() - started) * 1000:.1f} ms")
        started = time.perf_counter()
        answers = await client.request_many([ClientRequest(PING())] * BATCH)
        print(
            f"   {len(answers)} PINGs in batches -> {len(answers)} PONGs"
            f" in {(time.perf_counter() - started) * 1000:.0f} ms"
        )
        await client.close()
        await _refuse_stranger(address)
    finally:
        await listener.close()


async def _refuse_stranger(address: ServerAddress) -> None:
    stranger = ServerAddress(address.scheme, address.hosts, address.port, bytes(32))
    try:
        await Client.connect(stranger)
    except HandshakeFailed as exc:
        print(f"   an address with another fingerprint is refused: {exc}")
