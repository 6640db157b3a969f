"""The agent's notification pipeline: many connections over several routers, subscribed.

Each router is a process of its own, as it would be; the agent is this one. Measured is the time
from the verification of the token until the notification router has every subscription active.
"""

import asyncio
import os
import sqlite3
import tempfile
import time
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.harness import QUESTIONS, ServerProcess, server_process
from bench.ping import _ALIVE, _identity
from bench.smp import serve as serve_smp
from heliograph.agent.agent import Agent
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.records import SubAction
from heliograph.crypto.boxes import box_padded, random_nonce
from heliograph.ntf.router import NtfRouter
from heliograph.push.null import NullProvider
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Listener
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.ntf.push import PUSH_SIZE
from heliograph.wire.ntf.tokens import APNSDeviceToken, NotificationsMode, PushProvider, TokenStatus

CONNECTIONS = int(os.environ.get("BENCH_CONNECTIONS", "1000"))
ROUTERS = 3
RUNS = 3
LIMIT = 20.0
"""Seconds that the subscriptions of 1,000 connections may take."""

DEVICE = APNSDeviceToken(PushProvider.APNS_NULL, b"test_ntf_token")


async def serve_ntf(url: str) -> tuple[int, bytes]:
    router = await NtfRouter.start(url, {PushProvider.APNS_NULL: NullProvider()})
    identity = _identity()
    listener = Listener(NTF, identity, router)
    _ALIVE.append((router, listener))
    QUESTIONS["subscribed"] = lambda: sum(s.subscribed for s in router.subscribers.values())
    return await listener.start("127.0.0.1", 0), identity.fingerprint


def _address(scheme: Scheme, server: ServerProcess) -> ServerAddress:
    port, fingerprint = server.facts
    return ServerAddress(scheme, (decode_host("127.0.0.1"),), str(port), fingerprint)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: until the agent is done, until all is active, and of CPU."""

    asked: float
    active: float
    agent_cpu: float
    routers_cpu: float


async def _verify(agent: Agent, ntf_db: Path) -> None:
    """As the device would, with the code that the push would have carried."""
    vault = agent.store.vault
    token = await agent.store.read(lambda tx: ntf_store.load_token(tx, vault))
    assert token is not None
    assert token.dh_secret is not None
    with closing(sqlite3.connect(ntf_db)) as database:
        [[code]] = database.execute(
            "SELECT code FROM tokens WHERE token_id = ?", (token.token_id,)
        ).fetchall()
    nonce = random_nonce()
    status = await agent.verify_token(nonce, box_padded(token.dh_secret, nonce, code, PUSH_SIZE))
    assert status is TokenStatus.ACTIVE


async def _subscribe(directory: Path) -> Times:
    async with AsyncExitStack() as stack:
        routers = [
            await stack.enter_async_context(
                server_process(serve_smp, f"sqlite:///{directory}/smp{number}.db", 0.1)
            )
            for number in range(ROUTERS)
        ]
        ntf_db = directory / "ntf.db"
        ntf = await stack.enter_async_context(server_process(serve_ntf, f"sqlite:///{ntf_db}"))
        agent = await stack.enter_async_context(Agent.open(directory / "agent"))
        addresses = [_address(Scheme.SMP, router) for router in routers]
        created = [agent.create_connection(addresses[n % ROUTERS]) for n in range(CONNECTIONS)]
        await asyncio.gather(*created)
        await agent.register_token(DEVICE, NotificationsMode.INSTANT, _address(Scheme.NTF, ntf))

        servers = (*routers, ntf)
        cpu, routers_cpu = time.process_time(), _cpu(servers)
        started = time.perf_counter()
        await _verify(agent, ntf_db)
        while await _unsubscribed(agent):
            await asyncio.sleep(0.01)
        asked = time.perf_counter() - started
        agent_cpu = time.process_time() - cpu
        while ntf.ask("subscribed") < CONNECTIONS:
            await asyncio.sleep(0.01)
        active = time.perf_counter() - started
        return Times(asked, active, agent_cpu, _cpu(servers) - routers_cpu)


async def _unsubscribed(agent: Agent) -> int:
    [[done]] = await agent.store.read(
        lambda tx: tx.query(
            "SELECT COUNT(*) FROM ntf_subscriptions WHERE action = ?", (SubAction.NTF_CHECK.value,)
        )
    )
    return CONNECTIONS - int(done)


def _cpu(servers: tuple[ServerProcess, ...]) -> float:
    return sum(server.usage().cpu for server in servers)


async def run() -> None:
    print(f"agent: {CONNECTIONS} connections over {ROUTERS} messaging routers, {RUNS} runs")
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as directory:
            runs.append(await _subscribe(Path(directory)))
    each = 1e6 / CONNECTIONS
    _print("SNEW answered for all", [times.asked for times in runs], "s")
    _print(f"all active at the router (limit {LIMIT:.0f} s)", [times.active for times in runs], "s")
    _print("agent CPU per connection", [times.agent_cpu * each for times in runs], "us")
    _print("routers CPU per connection", [times.routers_cpu * each for times in runs], "us")


def _print(name: str, values: list[float], unit: str) -> None:
    print(f"  {name:38} {median(values):8.2f} {unit} ({min(values):.2f} to {max(values):.2f})")
