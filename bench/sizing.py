"""What a token, subscription, queue, message and connection take, in memory and on disk."""

import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from bench import ntf as bench_ntf, smp as bench_smp
from bench.harness import ServerProcess, server_process
from heliograph.crypto.keys import generate_key_pair
from heliograph.db.dialects import open_dialect
from heliograph.transport.client import Client, ClientRequest
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags

CONNECTIONS = 500
TOKENS = 5_000
SUBSCRIPTIONS = 20_000
QUEUES = 20_000
MESSAGES = 2_000
MESSAGE_SIZE = 16_000
"""What the apps send: they pad all messages to about one block."""
DATABASE_SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_database_size(current_database())",
}

Work = Callable[[], Awaitable[None]]


class _Meter:
    """Prints by how much a router's memory and its database grow."""

    def __init__(self, server: ServerProcess, url: str) -> None:
        self._server = server
        self._url = url

    async def grow(self, name: str, count: int, work: Work) -> None:
        memory, disk = self._server.usage().memory, self._disk()
        await work()
        memory_each = (self._server.usage().memory - memory) / count
        disk_each = (self._disk() - disk) / count
        print(f"  {name:34} {memory_each:8.0f} B of memory  {disk_each:8.0f} B on disk")

    def show_start(self) -> None:
        print(f"  the process itself                 {self._server.usage().memory / 2**20:8.0f} MB")

    def _disk(self) -> int:
        database = open_dialect(self._url, read_only=True)
        try:
            return int(database.query(DATABASE_SIZE[self._url.split(":")[0]], ())[0][0])
        finally:
            database.close()


async def run() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        await _all(f"sqlite:///{path / 'ntf.db'}", f"sqlite:///{path / 'smp.db'}", path)


async def run_postgresql() -> None:
    from tests.db.postgres import Postgres

    postgres = Postgres()
    try:
        with tempfile.TemporaryDirectory() as directory:
            await _all(postgres.new_url(), postgres.new_url(), Path(directory))
    finally:
        postgres.remove()


async def _all(ntf_url: str, smp_url: str, path: Path) -> None:
    async with AsyncExitStack() as stack:
        messaging = await stack.enter_async_context(server_process(bench_smp.serve, smp_url, 0.0))
        sender = await Client.connect(bench_ntf.address_of(Scheme.SMP, messaging))
        stack.push_async_callback(sender.close)
        print(f"\nMessaging router, {smp_url.split(':')[0]}")
        queues = await _messaging(_Meter(messaging, smp_url), messaging, sender)
        apns = await stack.enter_async_context(server_process(bench_ntf.serve_apns, str(path)))
        router = await stack.enter_async_context(
            server_process(bench_ntf.serve_ntf, ntf_url, apns.facts, str(path))
        )
        print(f"\nNotification router, {ntf_url.split(':')[0]}")
        await _notifications(_Meter(router, ntf_url), router, messaging, queues, path)


async def _messaging(meter: _Meter, server: ServerProcess, sender: Client) -> list[bench_smp.Queue]:
    queues: list[bench_smp.Queue] = []

    async def create() -> None:
        queues.extend(await bench_ntf.more_queues(sender, QUEUES))

    async def send() -> None:
        for start in range(0, MESSAGES, 100):
            await sender.request_many(
                ClientRequest(smp.SEND(MsgFlags(False), os.urandom(MESSAGE_SIZE)), queue.ids.snd_id)
                for queue in queues[start : start + 100]
            )

    meter.show_start()
    await meter.grow("a queue with notifications", QUEUES, create)
    await meter.grow("a stored message of 16,000 bytes", MESSAGES, send)
    await _connections(meter, server, Scheme.SMP)
    return queues


async def _notifications(
    meter: _Meter,
    server: ServerProcess,
    messaging: ServerProcess,
    queues: list[bench_smp.Queue],
    path: Path,
) -> None:
    meter.show_start()
    client = await Client.connect(bench_ntf.address_of(Scheme.NTF, server))
    address = bench_ntf.address_of(Scheme.SMP, messaging)

    async def register() -> None:
        keys = generate_key_pair(Algorithm.X25519)
        for _ in range(TOKENS):
            phone = bench_ntf.Phone(bench_ntf.null_device(), Algorithm.X25519)
            phone.dh_keys = keys
            await phone.register(client)

    await meter.grow("a token", TOKENS, register)
    phones = await bench_ntf.verified(client, path / "apns.jsonl", 200)

    async def subscribe() -> None:
        for some in bench_ntf.chunks(queues):
            await bench_ntf.subscribe(client, address, phones, some)
        await bench_ntf._until(server, "subscribed", SUBSCRIPTIONS)

    await meter.grow("a subscription", SUBSCRIPTIONS, subscribe)
    await _connections(meter, server, Scheme.NTF)
    await client.close()


async def _connections(meter: _Meter, server: ServerProcess, scheme: Scheme) -> None:
    clients: list[Client] = []

    async def connect() -> None:
        address = bench_ntf.address_of(scheme, server)
        clients.extend([await Client.connect(address) for _ in range(CONNECTIONS)])

    await meter.grow("an idle connection", CONNECTIONS, connect)
    for client in clients:
        await client.close()
