"""Both routers and an APNs simulator in one process, on free loopback ports."""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from heliograph.crypto.certificates import create_authority, issue_leaf
from heliograph.ntf.router import NtfRouter
from heliograph.push.apns import ApnsConfig, ApnsProvider
from heliograph.push.http import HttpSettings
from heliograph.push.provider import Provider
from heliograph.sim.providers.apns import KEY_FILE, ApnsService, provider_key
from heliograph.sim.providers.simulator import Simulator
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import Rules, SmpSettings
from heliograph.transport.handshake import ServerIdentity
from heliograph.transport.protocols import NTF, SMP, Protocol
from heliograph.transport.server import Listener, Router
from heliograph.wire.addresses import ServerAddress, decode_host
from heliograph.wire.ntf.tokens import PushProvider

HOST = "127.0.0.1"


@dataclass(slots=True)
class World:
    smp_address: ServerAddress
    ntf_address: ServerAddress
    smp: SmpRouter
    ntf: NtfRouter
    apns: Simulator


@contextlib.asynccontextmanager
async def world(directory: Path, *, quota: int = 128) -> AsyncIterator[World]:
    """Run both routers and the simulator inside the context; keep the directory afterwards."""
    async with contextlib.AsyncExitStack() as stack:
        apns = Simulator(ApnsService(provider_key(directory)), directory)
        await apns.start()
        stack.push_async_callback(apns.close)
        settings = SmpSettings(rules=Rules(quota=quota), ntf_delivery_interval=0.1)
        smp = await stack.enter_async_context(
            SmpRouter.start(f"sqlite:///{directory / 'smp.db'}", settings)
        )
        ntf = await stack.enter_async_context(
            NtfRouter.start(f"sqlite:///{directory / 'ntf.db'}", _providers(apns, directory))
        )
        smp_address = await _listen(stack, SMP, smp)
        ntf_address = await _listen(stack, NTF, ntf)
        yield World(smp_address, ntf_address, smp, ntf, apns)


def _providers(apns: Simulator, directory: Path) -> dict[PushProvider, Provider]:
    config = ApnsConfig(
        (directory / KEY_FILE).read_bytes(),
        "HELIOGRAPH",
        "SIMULATION",
        "chat.simplex.app",
        test_url=apns.url,
        http=HttpSettings(ca=apns.authority.file.read_bytes()),
    )
    return {PushProvider.APNS_TEST: ApnsProvider(config)}


_Command = TypeVar("_Command")
_Response = TypeVar("_Response")


async def _listen(
    stack: contextlib.AsyncExitStack,
    protocol: Protocol[_Command, _Response],
    router: Router[_Command],
) -> ServerAddress:
    now = time.time()
    authority = create_authority(f"{protocol.scheme.name} simulated CA", now)
    identity = ServerIdentity.of(issue_leaf(authority, HOST, now), now)
    listener = Listener(protocol, identity, router)
    port = await listener.start(HOST, 0)
    stack.push_async_callback(listener.close)
    return ServerAddress(protocol.scheme, (decode_host(HOST),), str(port), identity.fingerprint)
