"""Private routing from end to end: agents at two routers and a proxy, each a process."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from heliograph.agent.agent import Agent
from heliograph.agent.routing.modes import ProxyFallback, ProxyMode, RoutingSettings
from heliograph.device.chats.body import Text
from heliograph.phone.core import PROXY_FALLBACK, PROXY_MODE, SMP
from heliograph.wire.addresses import decode_address
from tests.agent.fast import settings
from tests.e2e.support import World, connect, register, watching
from tests.faults.processes import Process, init
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PROXY = {
    "HELIOGRAPH_SMP_PROXY_ALLOW_PRIVATE": "true",
    "HELIOGRAPH_SMP_PROXY_RETRY_AFTER": "0",
    "HELIOGRAPH_SMP_PROXY_CONNECT_TIMEOUT": "5",
    "HELIOGRAPH_SMP_PROXY_REQUEST_TIMEOUT": "5",
}
PER_ROUND = 10


async def new_router(directory: Path) -> Process:
    await init("smp", directory)
    router = Process(directory, "smp", "start", environment=PROXY)
    await router.start()
    return router


class Party:
    """An agent that sends through the proxy alone, and records what it receives."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.received: Counter[bytes] = Counter()
        self.conn_id = ""
        self._task = asyncio.create_task(self._receive())

    @classmethod
    async def open(cls, directory: Path, proxy: str) -> "Party":
        routing = RoutingSettings(
            ProxyMode.ALWAYS, ProxyFallback.PROHIBIT, (decode_address(proxy),)
        )
        return cls(await Agent.open(directory, settings=settings(proxy=routing)))

    async def _receive(self) -> None:
        async for message in self.agent.messages():
            self.received[message.body] += 1
            await self.agent.ack(message.conn_id, message.message_id)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.agent.close()


async def test_each_router_is_killed_in_turn(tmp_path: Path) -> None:
    """What an agent took over is received by the other agent once, whatever was killed."""
    routers = [await new_router(tmp_path / name) for name in ("proxy", "one", "two")]
    proxy, one, two = routers
    parties: list[Party] = []
    try:
        for name in ("alice", "bob"):
            (tmp_path / name).mkdir()
            parties.append(await Party.open(tmp_path / name, proxy.ready))
        alice, bob = parties
        alice.conn_id, invitation = await alice.agent.create_connection(one.ready)
        bob.conn_id = await bob.agent.join_connection(str(invitation), two.ready)
        expected: dict[Party, list[bytes]] = {alice: [], bob: []}

        async def send(sender: Party, receiver: Party, round_number: int, number: int) -> None:
            body = b"%d.%d" % (round_number, number)
            await sender.agent.send(sender.conn_id, body)
            expected[receiver].append(body)

        await send(bob, alice, 0, 0)
        await alice.agent.wait_ready(alice.conn_id)
        for round_number, victim in enumerate((*routers, proxy, two), 1):
            for number in range(PER_ROUND):
                await send(alice, bob, round_number, number)
                await send(bob, alice, round_number, number)
                if number == PER_ROUND // 2:
                    await victim.restart()
            await until(
                lambda: all(set(bodies) <= set(one.received) for one, bodies in expected.items()),
                60,
            )
        for party, bodies in expected.items():
            assert party.received == Counter(bodies)
    finally:
        for party in parties:
            await party.close()
        for router in routers:
            await router.kill()


async def test_a_message_through_a_proxy_wakes_the_phone(world: World, tmp_path: Path) -> None:
    """SEND with the notification flag, forwarded: NMSG, a push, and the message decrypted."""
    proxy = await new_router(tmp_path / "proxy")
    alice = bob = None
    try:
        alice, bob = await world.new_phone("alice"), await world.new_phone("bob")
        await bob.store.set(SMP, proxy.ready)
        await bob.store.set(PROXY_MODE, ProxyMode.ALWAYS.value)
        await bob.store.set(PROXY_FALLBACK, ProxyFallback.PROHIBIT.value)
        await register(world, alice)
        async with watching(world, alice) as watch:
            await connect(world, alice, bob)
            await watch.until("bob is connected!", "You can now send messages to bob")
            async with bob.app() as app:
                assert await app.send("alice", Text("through a proxy"))
            await watch.until("bob", "through a proxy")
        await proxy.kill()
        async with bob.app() as app:
            assert not await app.send("alice", Text("without it"))
    finally:
        for phone in (alice, bob):
            if phone is not None:
                await phone.close()
        await proxy.kill()
