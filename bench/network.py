"""What a notification router moves: bytes to and from its peers, and PostgreSQL's log of writes.

Relays between the router and its peers count the bytes of TCP, so TLS, HTTP/2 and the padding of
blocks are in the figures, and TCP's own headers are not.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from bench import ntf as bench_ntf, smp as bench_smp
from bench.harness import server_process
from heliograph.db.dialects import open_dialect
from heliograph.transport.client import Client, ClientRequest
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.smp.fields import MsgFlags
from tests.faults.relay import Relay

RUNS = 5
TOKENS = 500
QUEUES = 2_000
FLOOD = 6_000
SLOW, SLOW_RATE = 200, 20
"""Notifications that come one by one, and how many a second."""


@dataclass(slots=True)
class _Meters:
    phones: Relay
    messaging: Relay
    provider: Relay
    url: str

    def read(self) -> dict[str, int]:
        store = open_dialect(self.url, read_only=True)
        try:
            log = store.query("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", ())[0][0]
        finally:
            store.close()
        return {
            "phones": self.phones.passed,
            "messaging routers": self.messaging.passed,
            "provider": self.provider.passed,
            "log of writes": log,
        }


async def run() -> None:
    from tests.db.postgres import Postgres

    print("\nNotification router over PostgreSQL: bytes to and from its peers, and bytes logged")
    postgres = Postgres()
    try:
        with tempfile.TemporaryDirectory() as directory:
            await _all(postgres.new_url(), Path(directory))
    finally:
        postgres.remove()


@contextlib.asynccontextmanager
async def _relay(port: int) -> AsyncIterator[Relay]:
    relay = Relay(port)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.close()


def _address(scheme: Scheme, relay: Relay, fingerprint: bytes) -> ServerAddress:
    return ServerAddress(scheme, (decode_host("127.0.0.1"),), str(relay.port), fingerprint)


async def _all(url: str, path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        open_server, opened = stack.enter_async_context, str(path)
        apns = await open_server(server_process(bench_ntf.serve_apns, opened))
        messaging = await open_server(
            server_process(bench_smp.serve, f"sqlite:///{path / 'smp.db'}", 0.0)
        )
        sender = await Client.connect(bench_ntf.address_of(Scheme.SMP, messaging))
        provider = await open_server(_relay(urlsplit(apns.facts).port or 0))
        queues_relay = await open_server(_relay(messaging.facts[0]))
        apns_url = f"https://127.0.0.1:{provider.port}"
        server = await open_server(server_process(bench_ntf.serve_ntf, url, apns_url, opened))
        phones_relay = await open_server(_relay(server.facts[0]))
        meters = _Meters(phones_relay, queues_relay, provider, url)
        client = await Client.connect(_address(Scheme.NTF, phones_relay, server.facts[1]))

        phones: list[bench_ntf.Phone] = []
        queues = await bench_smp.create(sender, QUEUES)

        async def register() -> None:
            phones.extend(await bench_ntf.verified(client, path / "apns.jsonl", TOKENS))

        async def subscribe() -> None:
            address = _address(Scheme.SMP, queues_relay, messaging.facts[1])
            await bench_ntf.subscribe(client, address, phones, queues)
            await _until(lambda: server.ask("subscribed") >= QUEUES)

        async def push(count: int, rate: float) -> None:
            before, started = server.ask("received"), time.perf_counter()
            for number in range(0, count, SLOW if not rate else 1):
                if rate:
                    await asyncio.sleep(max(0, started + number / rate - time.perf_counter()))
                some = range(number, number + (1 if rate else SLOW))
                await sender.request_many(
                    ClientRequest(smp.SEND(MsgFlags(True), b"x"), queues[n % QUEUES].ids.snd_id)
                    for n in some
                )
            await _until(lambda: server.ask("received") >= before + count)
            await bench_ntf.nothing_pending(url)

        await _measure(meters, "token, registered and verified", TOKENS, register, 1)
        await _measure(meters, "subscription, until subscribed", QUEUES, subscribe, 1)
        await _measure(
            meters, f"notification, at {SLOW_RATE}/s", SLOW, lambda: push(SLOW, SLOW_RATE)
        )
        await _measure(meters, "notification, flood", FLOOD, lambda: push(FLOOD, 0))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def _measure(
    meters: _Meters, name: str, count: int, work: Callable[[], Awaitable[None]], runs: int = RUNS
) -> None:
    """Print bytes for each of `count`: the median of all runs, the lowest and the highest."""
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        before = meters.read()
        await work()
        for peer, value in meters.read().items():
            found.setdefault(peer, []).append((value - before[peer]) / count)
    print(f"  {name}")
    for peer, values in found.items():
        spread = f" ({min(values):,.0f} to {max(values):,.0f})" if runs > 1 else ""
        print(f"    {peer:20} {median(values):8,.0f} bytes{spread}")
