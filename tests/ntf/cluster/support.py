"""Several processes of one router in one event loop: each has a lease, a port and a world."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.router import NtfRouter, NtfSettings
from heliograph.push.null import NullProvider
from heliograph.push.provider import Provider
from heliograph.transport.client import Client
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.ntf.tokens import PushProvider
from tests.db.postgres import shared_postgres
from tests.journal.recorder import Notes
from tests.ntf.support import SETTINGS, NtfWorld
from tests.smp.support import identity

LEASE = 2.0
CLUSTER = replace(SETTINGS, lease=LEASE)


class MemberWorld(NtfWorld):
    """One process of a router; others are `beside` it."""

    name = "process"
    fingerprint = b"f" * 32

    async def start_ntf(self) -> None:
        apns = self.apns.new_provider()
        kinds = (PushProvider.APNS_TEST, PushProvider.APNS_PROD, PushProvider.APNS_DEV)
        providers: dict[PushProvider, Provider] = dict.fromkeys(kinds, apns)
        providers |= {PushProvider.APNS_NULL: NullProvider()} | self.providers
        process = Process(self.name, self.fingerprint, "test")
        self.router = await NtfRouter.join(
            self.url, process, providers, self.settings, self.journal
        )
        self.listener = Listener(NTF, identity("NTF server CA"), self.router, limits=self.limits)
        port = await self.listener.start("127.0.0.1", 0)
        fingerprint = identity("NTF server CA").fingerprint
        self.address = ServerAddress(
            Scheme.NTF, (decode_host("127.0.0.1"),), str(port), fingerprint
        )


class WorkersWorld(MemberWorld):
    """A router of three processes: each client is connected to the next of them."""

    workers = 3

    def __init__(self, url: str, directory: Path, settings: NtfSettings = SETTINGS) -> None:
        super().__init__(url, directory, settings)
        self._journals = [Notes("ntf") for _ in range(self.workers)]

    @property
    def routers(self) -> list[NtfRouter]:
        return [router for router, _, _ in self._running]

    @property
    def journals(self) -> list[Notes]:
        return self._journals

    async def start_ntf(self) -> None:
        self._running: list[tuple[NtfRouter, Listener, ServerAddress]] = []
        for number in range(self.workers):
            self.name, self.journal = f"process-{number}", self._journals[number]
            await super().start_ntf()
            self._running.append((self.router, self.listener, self.address))
        self.router, self.listener, self.address = self._running[0]

    async def connect(self, version: int = 3, *, use_alpn: bool = True) -> Client:
        self._running.append(self._running.pop(0))
        _, _, self.address = self._running[0]
        return await super().connect(version, use_alpn=use_alpn)

    async def stop_ntf(self) -> None:
        for router, listener, _ in self._running:
            self.router, self.listener = router, listener
            await super().stop_ntf()


class Cluster:
    def __init__(self, directory: Path, settings: NtfSettings = CLUSTER) -> None:
        self.url = shared_postgres().new_url()
        self.directory = directory
        self.settings = settings
        self.members: list[MemberWorld] = []
        self.first: MemberWorld

    async def add(self) -> MemberWorld:
        beside = self.first if self.members else None
        world = MemberWorld(self.url, self.directory, self.settings, beside=beside)
        world.name = f"process-{len(self.members)}"
        if beside is None:
            self.first = world
            await world.start()
        else:
            await world.start_ntf()
            world.sender = beside.sender
        self.members.append(world)
        return world

    async def leave(self, world: MemberWorld) -> None:
        """Stop one process."""
        self.members.remove(world)
        await world.stop_ntf()

    async def close(self) -> None:
        for world in reversed(self.members):
            await world.stop_ntf()
        await self.first.smp.stop()
        await self.first.apns.close()


@asynccontextmanager
async def a_cluster(
    directory: Path, count: int, settings: NtfSettings = CLUSTER
) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, settings)
    try:
        for _ in range(count):
            await cluster.add()
        yield cluster
    finally:
        await cluster.close()
