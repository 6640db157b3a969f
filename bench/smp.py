"""The messaging router over its durable store: SEND to NMSG, NSUB, NSUBS, memory."""

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.forwarding import run_forwarding
from bench.harness import DATABASES, ServerProcess, measure, server_process
from bench.ping import _ALIVE, _identity
from heliograph.crypto.certificates import create_authority
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.dialects import open_dialect
from heliograph.smp.router import SmpRouter
from heliograph.smp.settings import SmpSettings
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.handshake import ServiceCredentials
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Limits, Listener
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.handshakes import ServiceRole
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import (
    MsgFlags,
    NewNtfCreds,
    QueueMode,
    QueueReqData,
    SubscriptionMode,
)
from heliograph.wire.versions import VersionRange

QUEUES = 200
SENDS = 4_000
NSUBS = int(os.environ.get("BENCH_NSUBS", "10000"))
SERVICE_QUEUES = int(os.environ.get("BENCH_SERVICE_QUEUES", "100000"))
CONNECTIONS = 500


async def serve(url: str, interval: float) -> tuple[int, bytes]:
    router = await SmpRouter.start(url, SmpSettings(ntf_delivery_interval=interval))
    identity = _identity()
    listener = Listener(
        SMP,
        identity,
        router,
        limits=Limits(check_interval=0.2),
        request_client_certificate=True,
    )
    _ALIVE.append((router, listener))
    return await listener.start("127.0.0.1", 0), identity.fingerprint


def _address(server: ServerProcess) -> ServerAddress:
    port, fingerprint = server.facts
    return ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), str(port), fingerprint)


class Queue:
    def __init__(self, ids: smp.IDS, notifier_key: bytes) -> None:
        self.ids = ids
        self.notifier_key = notifier_key
        assert ids.ntf_creds is not None
        self.notifier_id = ids.ntf_creds.notifier_id


async def create(client: Client, count: int) -> list[Queue]:
    """Queues with X25519 keys, as the reference's clients make them."""
    dh = generate_key_pair(Algorithm.X25519).public
    notifiers = [generate_key_pair(Algorithm.X25519) for _ in range(count)]
    owner = generate_key_pair(Algorithm.X25519)
    answers = await client.request_many(
        ClientRequest(
            smp.NEW(
                owner.public,
                dh,
                mode=SubscriptionMode.CREATE_ONLY,
                queue_data=QueueReqData(QueueMode.MESSAGING),
                ntf_creds=NewNtfCreds(keys.public, dh),
            ),
            b"",
            owner.private,
        )
        for keys in notifiers
    )
    return [
        Queue(ids, keys.private)
        for ids, keys in zip(answers, notifiers, strict=True)
        if isinstance(ids, smp.IDS)
    ]


async def _send(server: ServerProcess, queues: list[Queue], per_block: int) -> None:
    """Senders on several connections; the time ends when the last NMSG was received."""
    address = _address(server)
    done = asyncio.Event()
    received = 0

    def on_push(entity_id: bytes, message: Any) -> None:
        nonlocal received
        received += 1
        if received == SENDS:
            done.set()

    subscriber = await Client.connect(address, on_push=on_push)
    answers = await subscriber.request_many(
        ClientRequest(smp.NSUB(), queue.notifier_id, queue.notifier_key) for queue in queues
    )
    assert all(isinstance(answer, smp.SOK) for answer in answers)
    senders = [await Client.connect(address) for _ in range(20)]
    body = bytes(200 if per_block > 1 else 2000)
    share = SENDS // len(senders)

    async def run(index: int, client: Client) -> None:
        sent = 0
        while sent < share:
            batch = [
                ClientRequest(
                    smp.SEND(MsgFlags(True), body),
                    queues[(index * share + sent + i) % len(queues)].ids.snd_id,
                )
                for i in range(per_block)
            ]
            for answer in await client.request_many(batch):
                assert isinstance(answer, smp.OK), answer
            sent += per_block

    async def work() -> None:
        await asyncio.gather(*(run(i, client) for i, client in enumerate(senders)))
        await done.wait()

    rate = await measure(server, SENDS, work)
    print(f"  SEND to NMSG, {per_block:3} per block   {rate.cpu:7.1f} us  {rate.per_second:8.0f}/s")
    for client in (subscriber, *senders):
        await client.close()


async def _nsub(server: ServerProcess, count: int) -> None:
    client = await Client.connect(_address(server))
    queues = await create(client, count)
    subscriber = await Client.connect(_address(server))

    async def work() -> None:
        answers = await subscriber.request_many(
            ClientRequest(smp.NSUB(), queue.notifier_id, queue.notifier_key) for queue in queues
        )
        assert all(isinstance(answer, smp.SOK) for answer in answers)

    rate = await measure(server, count, work)
    seconds = rate.wall * count / 1e6
    print(
        f"  {count} NSUB in batches      {rate.cpu:7.1f} us"
        f"  {rate.per_second:8.0f}/s  {seconds:.1f} s"
    )
    await client.close()
    await subscriber.close()


def _seed(url: str, service_id: bytes, count: int) -> None:
    """Associate as many queues as a large notification router has, straight in the store."""
    key = generate_key_pair(Algorithm.X25519).public
    rows = [
        (
            os.urandom(24),
            os.urandom(24),
            b"\1" + bytes((len(key),)) + key,
            bytes(32),
            os.urandom(24),
            key,
            bytes(32),
            service_id,
        )
        for _ in range(count)
    ]
    database = open_dialect(url)
    database.begin()
    database.many(
        "INSERT INTO queues (recipient_id, sender_id, recipient_keys, secret, mode, status,"
        " notifier_id, notifier_key, notifier_secret, notifier_service_id)"
        " VALUES (?, ?, ?, ?, 'M', 'active', ?, ?, ?, ?)",
        rows,
    )
    database.execute("UPDATE services SET queue_count = ?", (count,))
    database.commit()
    database.close()


async def _nsubs(url: str) -> None:
    credentials = ServiceCredentials(
        ServiceRole.NOTIFIER, create_authority("bench service", time.time())
    )
    config = ClientConfig(versions=VersionRange(6, 18))
    async with server_process(serve, url, 1.5) as server:
        client = await Client.connect(_address(server), config, service=credentials)
        assert client.established.service is not None
        service_id = client.established.service.service_id
        await client.close()
    _seed(url, service_id, SERVICE_QUEUES)
    async with server_process(serve, url, 1.5) as server:
        client = await Client.connect(_address(server), config, service=credentials)
        service = client.established.service
        assert service is not None

        async def work() -> None:
            answer = await client.request(smp.NSUBS(), service.service_id, service.key)
            assert answer.count == SERVICE_QUEUES, answer

        rate = await measure(server, 1, work)
        print(f"  NSUBS for {SERVICE_QUEUES} queues      {rate.wall / 1000:.1f} ms")
        await client.close()


async def _memory(server: ServerProcess) -> None:
    address = _address(server)
    client = await Client.connect(address)
    await create(client, 100)
    before = server.usage().memory
    clients = [await Client.connect(address) for _ in range(CONNECTIONS)]
    held = server.usage().memory
    print(f"  memory per idle connection   {(held - before) / CONNECTIONS / 1024:.0f} KB")
    for other in clients:
        await other.close()
    await asyncio.sleep(0.5)
    released = server.usage().memory
    print(f"  given back after closing     {(held - released) / max(held - before, 1):.0%}")
    before = released
    await create(client, 5000)
    after = server.usage().memory
    print(f"  memory per queue in use      {(after - before) / 5000 / 1024:.1f} KB")
    await client.close()


async def run() -> None:
    print("\nMessaging router over SQLite, durable: CPU of router and database, rate")
    with tempfile.TemporaryDirectory() as directory:
        names = itertools.count()
        await _all(lambda: f"sqlite:///{Path(directory, f'smp{next(names)}.db')}")


async def run_postgresql() -> None:
    from tests.db.postgres import Postgres

    print("\nMessaging router over PostgreSQL: CPU of router and database, rate")
    postgres = Postgres()
    DATABASES.append(postgres.pid)
    try:
        await _all(postgres.new_url)
    finally:
        DATABASES.clear()
        postgres.remove()


async def _all(new_url: Callable[[], str]) -> None:
    url = new_url()
    async with server_process(serve, url, 0.1) as server:
        client = await Client.connect(_address(server))
        queues = await create(client, QUEUES)
        await client.close()
        for per_block in (1, 100):
            await _send(server, queues, per_block)
    async with server_process(serve, url, 1.5) as server:
        await _nsub(server, NSUBS)
    async with server_process(serve, url, 1.5) as server:
        await _memory(server)
    await _nsubs(new_url())
    await run_forwarding(serve, new_url)
