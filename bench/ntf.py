"""The notification router: commands, NMSG to accepted push, resubscription, memory.

Four processes: this one is the clients, the others are the router under measurement, a messaging
router, and an APNs simulator.
"""

import asyncio
import contextlib
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import smp as bench_smp
from bench.harness import DATABASES, QUESTIONS, Rate, ServerProcess, measure, record, server_process
from bench.ping import _ALIVE, _identity
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import open_dialect
from heliograph.journal.opening import open_journal
from heliograph.journal.schema import Part
from heliograph.ntf.cluster.roster import LEASE
from heliograph.ntf.cluster.tables import Process
from heliograph.ntf.router import NtfRouter, NtfSettings
from heliograph.push.apns import ApnsConfig, ApnsProvider
from heliograph.push.http import HttpSettings
from heliograph.push.null import NullProvider
from heliograph.push.provider import Provider
from heliograph.runtime.config.sections import JournalOptions
from heliograph.sim.providers.apns import ApnsService, provider_key
from heliograph.sim.providers.simulator import Simulator
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Limits, Listener
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import VerificationPush, decode_push
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider
from heliograph.wire.smp.fields import MsgFlags

CONNECTIONS = 40
COMMANDS = 8_000
REGISTRATIONS = 1_000
TOKENS = 200
SUBSCRIPTIONS_EACH = 5
FLOOD = 6_000
RESUBSCRIPTIONS = int(os.environ.get("BENCH_RESUBSCRIPTIONS", "10000"))
CHUNK = 5_000
LATENCY_SECONDS = 10
JOURNAL = bool(os.environ.get("BENCH_JOURNAL"))
"""Whether the router keeps one."""


async def serve_apns(directory: str) -> str:
    simulator = Simulator(ApnsService(provider_key(Path(directory))), Path(directory))
    await simulator.start()
    _ALIVE.append(simulator)
    return simulator.url


async def serve_ntf(
    url: str, apns: str, directory: str, member: str = "", lease: float = LEASE
) -> tuple[int, bytes]:
    """Serve a router, or one process of a router if it has a name as a `member`."""
    path = Path(directory)
    config = ApnsConfig(
        (path / "apns.p8").read_bytes(),
        "BENCHKEY01",
        "BENCHTEAM1",
        "chat.simplex.app",
        test_url=apns,
        http=HttpSettings(ca=(path / "ca.crt").read_bytes()),
    )
    providers: dict[PushProvider, Provider] = {
        PushProvider.APNS_NULL: NullProvider(),
        PushProvider.APNS_TEST: ApnsProvider(config),
    }
    journal = None
    if JOURNAL:
        journal = open_journal(JournalOptions(path="journal"), path, Part.NTF)
    if member:
        process = Process(member, bytes(32), "bench")
        settings = NtfSettings(lease=lease)
        router = await NtfRouter.join(url, process, providers, settings, journal)
    else:
        router = await NtfRouter.start(url, providers, NtfSettings(), journal)
    identity = _identity()
    listener = Listener(NTF, identity, router, limits=Limits(check_interval=0.2))
    _ALIVE.append((router, listener))
    samples: list[float] = []
    observe = router.stats.push_latency.observe

    def observed(seconds: float) -> None:
        samples.append(seconds)
        observe(seconds)

    router.stats.push_latency.observe = observed  # type: ignore[method-assign]
    QUESTIONS["received"] = lambda: router.stats.counters.ntf_received
    QUESTIONS["delivered"] = lambda: router.stats.counters.ntf_delivered
    QUESTIONS["subscribed"] = lambda: sum(s.subscribed for s in router.subscribers.values())
    QUESTIONS["latencies"] = lambda: [samples.pop() for _ in range(len(samples))]
    return await listener.start("127.0.0.1", 0), identity.fingerprint


def address_of(scheme: Scheme, server: ServerProcess) -> ServerAddress:
    port, fingerprint = server.facts
    return ServerAddress(scheme, (decode_host("127.0.0.1"),), str(port), fingerprint)


class Phone:
    """A token and its keys."""

    def __init__(self, device: APNSDeviceToken, algorithm: Algorithm) -> None:
        self.device = device
        self.keys = generate_key_pair(algorithm)
        self.dh_keys = generate_key_pair(Algorithm.X25519)
        self.token_id = b""
        self.secret = b""

    async def register(self, client: Client) -> None:
        command = ntf.TNEW(self.device, self.keys.public, self.dh_keys.public)
        answer = await client.request(command, b"", self.keys.private)
        self.token_id = answer.token_id
        self.secret = dh(answer.dh_key, self.dh_keys.private)


_numbers = itertools.count(1)


def null_device() -> APNSDeviceToken:
    return APNSDeviceToken(PushProvider.APNS_NULL, f"{next(_numbers):08x}".encode())


def _show(name: str, rate: Rate) -> None:
    record(name, rate.cpu)
    record(f"{name}, per second", rate.per_second)
    print(f"  {name:34} {rate.cpu:8.1f} us  {rate.per_second:8.0f}/s")


async def _commands(server: ServerProcess) -> None:
    address = address_of(Scheme.NTF, server)
    clients = [await Client.connect(address) for _ in range(CONNECTIONS)]
    share = COMMANDS // CONNECTIONS

    async def each(name: str, count: int, work: Any) -> None:
        async def run() -> None:
            await asyncio.gather(*(work(client) for client in clients))

        _show(name, await measure(server, count * CONNECTIONS, run))

    async def pings(client: Client) -> None:
        for _ in range(share):
            await client.request(ntf.PING())

    await each("PING, 40 connections", share, pings)
    for algorithm in (Algorithm.ED25519, Algorithm.X25519):
        phones = {}
        for client in clients:
            phones[client] = phone = Phone(null_device(), algorithm)
            await phone.register(client)

        async def check(client: Client, phones: dict[Client, Phone] = phones) -> None:
            phone = phones[client]
            for _ in range(share):
                await client.request(ntf.TCHK(), phone.token_id, phone.keys.private)

        async def check_many(client: Client, phones: dict[Client, Phone] = phones) -> None:
            phone = phones[client]
            request = ClientRequest(ntf.TCHK(), phone.token_id, phone.keys.private)
            await client.request_many([request] * share)

        await each(f"TCHK {algorithm.value}, 40 connections", share, check)
        await each(f"TCHK {algorithm.value} in batches", share, check_many)

    async def register(client: Client) -> None:
        for _ in range(REGISTRATIONS // CONNECTIONS):
            await Phone(null_device(), Algorithm.ED25519).register(client)

    await each("TNEW", REGISTRATIONS // CONNECTIONS, register)
    for client in clients:
        await client.close()


async def verified(client: Client, record: Path, count: int) -> list[Phone]:
    """Phones that received their code from the simulator and are active."""
    phones = []
    for number in range(count):
        device = APNSDeviceToken(PushProvider.APNS_TEST, f"{number:08x}".encode())
        phone = Phone(device, Algorithm.X25519)
        await phone.register(client)
        phones.append(phone)
    codes: dict[str, VerificationPush] = {}
    for _ in range(200):
        for entry in _pushes(record):
            push = decode_push(entry["body"].encode())
            if isinstance(push, VerificationPush):
                codes[entry["token"]] = push
        if len(codes) >= count:
            break
        await asyncio.sleep(0.1)
    for phone in phones:
        push = codes[phone.device.token.decode()]
        code = open_box_padded(phone.secret, push.nonce, push.box)
        await client.request(ntf.TVFY(code), phone.token_id, phone.keys.private)
    return phones


def _pushes(record: Path) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    entries = map(json.loads, record.read_text().splitlines())
    return [entry for entry in entries if entry["accepted"]]


async def subscribe(
    client: Client, messaging: ServerAddress, phones: list[Phone], queues: list[bench_smp.Queue]
) -> None:
    answers = await client.request_many(
        ClientRequest(
            ntf.SNEW(phone.token_id, SMPQueueNtf(messaging, queue.notifier_id), queue.notifier_key),
            b"",
            phone.keys.private,
        )
        for phone, queue in zip(itertools.cycle(phones), queues, strict=False)
    )
    assert all(isinstance(answer, ntf.IDSUB) for answer in answers), answers


def chunks(queues: list[bench_smp.Queue]) -> list[list[bench_smp.Queue]]:
    """Few enough that no request waits too long for its answer."""
    return [queues[start : start + CHUNK] for start in range(0, len(queues), CHUNK)]


async def more_queues(sender: Client, count: int) -> list[bench_smp.Queue]:
    queues: list[bench_smp.Queue] = []
    while len(queues) < count:
        queues += await bench_smp.create(sender, min(CHUNK, count - len(queues)))
    return queues


async def _until(server: ServerProcess, question: str, value: int) -> None:
    while server.ask(question) < value:
        await asyncio.sleep(0.01)


async def nothing_pending(url: str) -> None:
    store = open_dialect(url, read_only=True)
    while store.query("SELECT COUNT(*) FROM pending_pushes", ())[0][0]:
        await asyncio.sleep(0.02)
    store.close()


async def _flood(
    server: ServerProcess, url: str, sender: Client, queues: list[bench_smp.Queue]
) -> None:
    before, delivered = server.ask("received"), server.ask("delivered")

    async def work() -> None:
        requests = (
            ClientRequest(smp.SEND(MsgFlags(True), b"x"), queue.ids.snd_id)
            for queue in itertools.islice(itertools.cycle(queues), FLOOD)
        )
        for answer in await sender.request_many(requests):
            assert isinstance(answer, smp.OK), answer
        await _until(server, "received", before + FLOOD)
        await nothing_pending(url)

    rate = await measure(server, FLOOD, work)
    pushes = server.ask("delivered") - delivered
    _show("NMSG to accepted push, flood", rate)
    print(f"    {FLOOD} notifications in {pushes} pushes")


async def _latency(
    server: ServerProcess, sender: Client, queues: list[bench_smp.Queue], rate: int
) -> None:
    server.ask("latencies")
    started = time.perf_counter()
    count = rate * LATENCY_SECONDS
    pending = set()
    for number in range(count):
        await asyncio.sleep(max(0, started + number / rate - time.perf_counter()))
        queue = queues[number % len(queues)]
        send = smp.SEND(MsgFlags(True), b"x")
        pending.add(asyncio.ensure_future(sender.request(send, queue.ids.snd_id)))
    await asyncio.gather(*pending)
    await asyncio.sleep(1)
    samples = sorted(server.ask("latencies"))
    p50, p99 = samples[len(samples) // 2], samples[int(len(samples) * 0.99)]
    record(f"latency at {rate}/s, p50", p50 * 1000)
    record(f"latency at {rate}/s, p99", p99 * 1000)
    print(
        f"  latency at {rate}/s, p50 / p99          {p50 * 1000:.1f} / {p99 * 1000:.1f} ms"
        f"  ({len(samples)} pushes)"
    )


async def _memory(server: ServerProcess) -> None:
    address = address_of(Scheme.NTF, server)
    before = server.usage().memory
    clients = [await Client.connect(address) for _ in range(500)]
    held = server.usage().memory
    for client in clients:
        await client.close()
    await asyncio.sleep(0.5)
    released = server.usage().memory
    print(
        f"  memory per idle connection         {(held - before) / 500 / 1024:.0f} KB,"
        f" {(held - released) / max(held - before, 1):.0%} given back"
    )


async def run() -> None:
    print("\nNotification router over SQLite: CPU of router and database, rate")
    with tempfile.TemporaryDirectory() as directory:
        await _all(f"sqlite:///{Path(directory, 'ntf.db')}", Path(directory))


async def run_postgresql() -> None:
    from tests.db.postgres import Postgres

    print("\nNotification router over PostgreSQL: CPU of router and database, rate")
    postgres = Postgres()
    DATABASES.append(postgres.pid)
    try:
        with tempfile.TemporaryDirectory() as directory:
            await _all(postgres.new_url(), Path(directory))
    finally:
        DATABASES.clear()
        postgres.remove()


async def _all(url: str, path: Path) -> None:
    directory = str(path)
    async with contextlib.AsyncExitStack() as stack:
        apns = await stack.enter_async_context(server_process(serve_apns, directory))
        messaging = await stack.enter_async_context(
            server_process(bench_smp.serve, f"sqlite:///{path / 'smp.db'}", 0.0)
        )
        sender = await Client.connect(address_of(Scheme.SMP, messaging))
        async with server_process(serve_ntf, url, apns.facts, directory) as server:
            await _commands(server)
            await _memory(server)
            client = await Client.connect(address_of(Scheme.NTF, server))
            phones = await verified(client, path / "apns.jsonl", TOKENS)
            queues = await bench_smp.create(sender, TOKENS * SUBSCRIPTIONS_EACH)
            address = address_of(Scheme.SMP, messaging)

            async def subscribe_all() -> None:
                await subscribe(client, address, phones, queues)

            _show("SNEW, one connection", await measure(server, len(queues), subscribe_all))
            await _until(server, "subscribed", len(queues))
            for rate in (50, 200):
                await _latency(server, sender, queues, rate)
            await _flood(server, url, sender, queues)
            more = await more_queues(sender, RESUBSCRIPTIONS)
            before = server.usage().memory
            for some in chunks(more):
                await subscribe(client, address, phones, some)
            await _until(server, "subscribed", len(queues) + len(more))
            grown = (server.usage().memory - before) / len(more) * 1000 / 1024
            print(f"  memory per 1,000 subscriptions     {grown:.0f} KB")
        started = time.perf_counter()
        async with server_process(serve_ntf, url, apns.facts, directory) as server:
            ready = time.perf_counter()
            total = len(queues) + len(more)
            start = server.usage().cpu
            resumed = await measure(server, total, lambda: _until(server, "subscribed", total))
            record("resubscription", resumed.wall * total / 1e6)
            print(
                f"  resubscription of {total:6}           {resumed.cpu:8.1f} us"
                f"  in {resumed.wall * total / 1e6:.1f} s"
                f" (to start: {start:.1f} s of CPU, {ready - started:.1f} s)"
            )
