"""A notification router of one process, and of 1, 2 and 4 workers, on one PostgreSQL.

CPU is that of all processes of the router together, and that of PostgreSQL. On a machine with two
cores the clients, the messaging routers and the simulator take their share of the same cores, and
commands that arrive slowly share fewer reads. So BENCH_BUDGET=0.05 measures with that part of a
core for each worker: everything else has room, and what the workers have used of their budget shows
whether they were the limit.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from bench import ntf as bench_ntf, smp as bench_smp
from bench.harness import ServerProcess, record, server_process, tree_cpu
from bench.throttle import cpu_of, send, throttled
from heliograph.ntf.cluster.roster import LEASE
from heliograph.transport.client import Client, ClientRequest
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags

COUNTS = tuple(map(int, os.environ.get("BENCH_WORKERS", "0,1,2,4").split(",")))
"""Processes; 0 is one that has the store to itself."""
MESSAGING = 4
QUEUES_EACH = 500
"""At each messaging router."""
FLOOD = 16_000
CHECKS = 4_000
CONNECTIONS = 40
"""Checks and connections are those of each worker."""
BUDGET = float(os.environ.get("BENCH_BUDGET", "0"))
BUDGETED_FLOOD = int(os.environ.get("BENCH_FLOOD", "2000"))
TOKENS = MESSAGING * QUEUES_EACH if BUDGET else int(os.environ.get("BENCH_TOKENS", "500"))
"""With a budget, one for each queue, as in a batch of a router with a million tokens: processes
then wait for no lock of a token, and send as many pushes however many processes there are."""
BUDGETED_RUNS = 5
RESUBSCRIPTIONS = int(os.environ.get("BENCH_RESUBSCRIPTIONS", "24000"))


async def run() -> None:
    from tests.db.postgres import Postgres

    print("\nNotification router of several processes: CPU of router + PostgreSQL, rate")
    for count in COUNTS:
        postgres = Postgres()
        try:
            with tempfile.TemporaryDirectory() as directory:
                await _Cluster(postgres.new_url(), postgres.pid, Path(directory), count).run()
        finally:
            postgres.remove()
    _print_table()


_TABLE: dict[str, list[str]] = {}
"""What was measured, a value for each count of processes: the table in docs/scale.md."""


def _print_table() -> None:
    names = [f"{count} workers" if count else "one process, alone" for count in COUNTS]
    print("\n| | " + " | ".join(names).replace("1 workers", "1 worker") + " |")
    print("| --- |" + " --- |" * len(names))
    for name, values in _TABLE.items():
        print(f"| {name} | {' | '.join(values)} |")


def _add(found: dict[str, list[float]], name: str, value: float) -> None:
    found.setdefault(name, []).append(value)


def _show(found: dict[str, list[float]]) -> None:
    """Print medians with the lowest and the highest, and add them to the table."""
    for name, values in found.items():
        text = f"{median(values):.0f} ({min(values):.0f}..{max(values):.0f})"
        _TABLE.setdefault(name, []).append(text)
        print(f"    {name:32} {text}")


async def _messages(senders: list[Client], queues: list[list[bench_smp.Queue]], count: int) -> None:
    """Send messages to queues in turn, from all senders at once."""

    async def send(sender: Client, some: list[bench_smp.Queue]) -> None:
        await sender.request_many(
            ClientRequest(smp.SEND(MsgFlags(True), b"x"), queue.ids.snd_id)
            for queue in itertools.islice(itertools.cycle(some), count // MESSAGING)
        )

    await asyncio.gather(*map(send, senders, queues))


class _Cluster:
    def __init__(self, url: str, database: int, path: Path, count: int) -> None:
        self._url = url
        self._database = database
        self._path = path
        self._count = count
        self._servers: list[ServerProcess] = []

    async def run(self) -> None:
        print(f"  {f'{self._count} workers' if self._count else 'one process, alone'}")
        async with contextlib.AsyncExitStack() as stack:
            directory = str(self._path)
            apns = await stack.enter_async_context(server_process(bench_ntf.serve_apns, directory))
            messaging = [
                await stack.enter_async_context(
                    server_process(bench_smp.serve, f"sqlite:///{self._path}/smp{number}.db", 0.0)
                )
                for number in range(MESSAGING)
            ]
            senders = [
                await Client.connect(bench_ntf.address_of(Scheme.SMP, server))
                for server in messaging
            ]
            async with contextlib.AsyncExitStack() as routers:
                await self._start(routers, apns.facts)
                await self._checks()
                client = await Client.connect(self._address(0))
                phones = await bench_ntf.verified(client, self._path / "apns.jsonl", TOKENS)
                queues = []
                for number, (server, sender) in enumerate(zip(messaging, senders, strict=True)):
                    some = await bench_smp.create(sender, QUEUES_EACH)
                    address = bench_ntf.address_of(Scheme.SMP, server)
                    whose = phones[number::MESSAGING] if BUDGET else phones
                    await bench_ntf.subscribe(client, address, whose, some)
                    queues.append(some)
                await self._until("subscribed", MESSAGING * QUEUES_EACH)
                await asyncio.sleep(8)  # until shards are where they stay
                if BUDGET:
                    await self._budgeted(senders, queues)
                    return
                await self._flood(senders, queues)
                more = await bench_ntf.more_queues(senders[0], RESUBSCRIPTIONS)
                address = bench_ntf.address_of(Scheme.SMP, messaging[0])
                for chunk in bench_ntf.chunks(more):
                    await bench_ntf.subscribe(client, address, phones, chunk)
                total = MESSAGING * QUEUES_EACH + len(more)
                await self._until("subscribed", total)
                await asyncio.sleep(8)
                memory = [server.usage().memory / 1e6 for server in self._servers]
                print(f"    memory of each process: {', '.join(f'{m:.0f} MB' for m in memory)}")
                _TABLE.setdefault("memory of each process", []).append(f"{max(memory):.0f} MB")
            await self._resubscribe(apns.facts, total)

    def _address(self, number: int) -> ServerAddress:
        return bench_ntf.address_of(Scheme.NTF, self._servers[number % len(self._servers)])

    async def _start(self, stack: contextlib.AsyncExitStack, apns: str) -> None:
        self._servers = [
            await stack.enter_async_context(
                server_process(
                    bench_ntf.serve_ntf,
                    self._url,
                    apns,
                    str(self._path),
                    f"bench {number}" if self._count else "",
                    LEASE / BUDGET if BUDGET else LEASE,
                )
            )
            for number in range(self._count or 1)
        ]

    async def _checks(self) -> None:
        workers = self._count or 1
        clients = [
            await Client.connect(self._address(number)) for number in range(CONNECTIONS * workers)
        ]
        phones = []
        for client in clients:
            phone = bench_ntf.Phone(bench_ntf.null_device(), Algorithm.X25519)
            await phone.register(client)
            phones.append(phone)

        async def check(client: Client, phone: bench_ntf.Phone) -> None:
            for _ in range(CHECKS // CONNECTIONS):
                await client.request(ntf.TCHK(), phone.token_id, phone.keys.private)

        async def work() -> None:
            await asyncio.gather(*map(check, clients, phones))

        if BUDGET:
            pids = [server.pid for server in self._servers]
            found: dict[str, list[float]] = {}
            for _ in range(BUDGETED_RUNS):
                cpu, started = sum(map(cpu_of, pids)), time.perf_counter()
                with throttled(pids, BUDGET):
                    await work()
                cpu, wall = sum(map(cpu_of, pids)) - cpu, time.perf_counter() - started
                _add(found, "us of CPU for TCHK", cpu / CHECKS / workers * 1e6)
                _add(found, "TCHK, used of the budget, %", 100 * cpu / wall / BUDGET / workers)
            _show(found)
        else:
            await self._measure("TCHK, 40 connections each", CHECKS * workers, work)
        for client in clients:
            await client.close()

    async def _flood(self, senders: list[Client], queues: list[list[bench_smp.Queue]]) -> None:
        await self._measure(
            "NMSG to accepted push, flood", FLOOD, lambda: self._send(senders, queues, FLOOD)
        )

    async def _send(
        self, senders: list[Client], queues: list[list[bench_smp.Queue]], count: int
    ) -> None:
        """Send messages until all pushes about them are accepted."""
        before = self._ask("received")
        await _messages(senders, queues, count)
        await self._settled(before + count)

    async def _settled(self, received: int) -> None:
        await self._until("received", received, 0.1 if BUDGET else 0.01)
        await bench_ntf.nothing_pending(self._url)

    async def _budgeted(self, senders: list[Client], queues: list[list[bench_smp.Queue]]) -> None:
        """Measure throughput while each process of the router has the same small budget.

        Messages are sent before, while all processes are stopped.
        """
        pids = [server.pid for server in self._servers]
        found: dict[str, list[float]] = {}
        for _ in range(BUDGETED_RUNS):
            received, pushes = self._ask("received"), self._ask("delivered")
            send(pids, signal.SIGSTOP)
            await _messages(senders, queues, BUDGETED_FLOOD)
            cpu = sum(map(cpu_of, pids))
            with throttled(pids, BUDGET):
                started = time.perf_counter()
                await self._settled(received + BUDGETED_FLOOD)
                wall = time.perf_counter() - started
            pushes, cpu = self._ask("delivered") - pushes, sum(map(cpu_of, pids)) - cpu
            _add(found, "us of CPU for a notification", cpu / BUDGETED_FLOOD * 1e6)
            _add(found, "notifications a second", BUDGETED_FLOOD / wall)
            _add(found, "accepted pushes a second", pushes / wall)
            _add(found, "used of the budget, %", 100 * cpu / (wall * BUDGET * len(pids)))
        _show(found)

    async def _resubscribe(self, apns: str, total: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            started, database = time.perf_counter(), tree_cpu(self._database)
            await self._start(stack, apns)
            while self._ask("subscribed") < total:
                await asyncio.sleep(0.02)
            wall = time.perf_counter() - started
            cpu = sum(server.usage().cpu for server in self._servers)
            database = tree_cpu(self._database) - database
            print(
                f"    start and subscription of {total}: {wall:.1f} s,"
                f" CPU {cpu:.1f} + {database:.1f} s"
            )
            name = f"start and subscription of {total:,}, after a kill of all"
            text = f"{wall:.1f} s, {cpu:.1f} + {database:.1f} s of CPU"
            _TABLE.setdefault(name, []).append(text)

    def _ask(self, question: str) -> int:
        return sum(server.ask(question) for server in self._servers)

    async def _until(self, question: str, value: int, interval: float = 0.01) -> None:
        while self._ask(question) < value:
            await asyncio.sleep(interval)

    async def _measure(self, name: str, count: int, work: Callable[[], Awaitable[None]]) -> None:
        def used() -> tuple[float, float]:
            return sum(server.usage().cpu for server in self._servers), tree_cpu(self._database)

        before, started = used(), time.perf_counter()
        await work()
        wall = time.perf_counter() - started
        router, database = (
            (after - start) / count * 1e6 for after, start in zip(used(), before, strict=True)
        )
        workers = self._count or 1
        record(f"{self._count} workers, {name}", router)
        _TABLE.setdefault(name, []).append(f"{router:.0f} + {database:.0f} us")
        print(
            f"    {name:32} {router:7.1f} + {database:6.1f} us  {count / wall:8.0f}/s here,"
            f" {workers * 1e6 / router:8.0f}/s with a core each"
        )
