"""Messages through a proxy: two agents on two routers, and what fails in between."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.agent.agent import AgentSettings
from heliograph.agent.routing.modes import ProxyFallback, ProxyMode, RoutingSettings
from heliograph.smp.settings import ProxySettings
from heliograph.wire.addresses import ServerAddress
from tests.agent.support import TIMEOUT, Router, User, a_router, settings, users
from tests.smp.support import AT_ONCE
from tests.waiting import until


def routed(
    *servers: ServerAddress,
    mode: ProxyMode = ProxyMode.ALWAYS,
    fallback: ProxyFallback = ProxyFallback.PROHIBIT,
    version: int | None = None,
) -> AgentSettings:
    base = settings() if version is None else settings(version)
    return replace(base, proxy=RoutingSettings(mode, fallback, servers))


async def connected(alice: User, bob: User, router: Router, link: bool) -> tuple[str, str]:
    at_alice, invitation = await alice.agent.create_connection(router.address)
    text = invitation.link if link else str(invitation)
    assert text is not None
    at_bob = await bob.agent.join_connection(text, router.address)
    async with asyncio.timeout(TIMEOUT):
        await alice.agent.wait_ready(at_alice)
        await bob.agent.wait_ready(at_bob)
    return at_alice, at_bob


@pytest.mark.parametrize("link", [True, False])
async def test_a_message_through_a_proxy(
    tmp_path: Path, router: Router, other_router: Router, link: bool
) -> None:
    through = routed(other_router.address)
    async with users(tmp_path, "alice", "bob", settings=through) as [alice, bob]:
        at_alice, at_bob = await connected(alice, bob, router, link)
        await bob.agent.send(at_bob, b"hello", notification=True)
        [message] = await alice.receive_messages()
        assert (message.body, message.notification) == (b"hello", True)
        await alice.agent.send(at_alice, b"hi")
        assert await bob.receive() == [b"hi"]
        sessions = other_router.router
        assert sessions is not None
        assert other_router.connections == 2, "both agents send through it"
        assert router.connections == 3, "both receive here, and the proxy forwards"


async def test_what_was_accepted_arrives_once_though_proxy_and_destination_restart(
    tmp_path: Path, router: Router
) -> None:
    soon = replace(AT_ONCE, proxy=ProxySettings(retry_after=0.2))
    async with a_router(tmp_path, "proxy", soon) as proxy:
        through = routed(proxy.address)
        async with users(tmp_path, "alice", "bob", settings=through) as [alice, bob]:
            _, at_bob = await connected(alice, bob, router, link=True)
            for number, lost in enumerate((proxy, router, proxy)):
                await lost.stop()
                await bob.agent.send(at_bob, b"%d" % number)
                await asyncio.sleep(0.1)
                await lost.start()
                assert await alice.receive() == [b"%d" % number]
            await bob.agent.send(at_bob, b"last")
            assert await alice.receive() == [b"last"]


@pytest.mark.parametrize("mode", [ProxyMode.UNKNOWN, ProxyMode.NEVER])
async def test_a_known_destination_is_reached_directly(
    tmp_path: Path, router: Router, other_router: Router, mode: ProxyMode
) -> None:
    direct = routed(router.address, other_router.address, mode=mode)
    async with users(tmp_path, "alice", "bob", settings=direct) as [alice, bob]:
        _, at_bob = await connected(alice, bob, router, link=True)
        await bob.agent.send(at_bob, b"hello")
        assert await alice.receive() == [b"hello"]
        assert other_router.connections == 0


@pytest.mark.parametrize("fallback", [ProxyFallback.ALLOW, ProxyFallback.PROHIBIT])
async def test_a_proxy_that_may_not_reach_the_destination(
    tmp_path: Path, router: Router, fallback: ProxyFallback
) -> None:
    """It answers BROKER HOST: a direct connection follows only if the user allows it."""
    strict = replace(AT_ONCE, proxy=ProxySettings(allow=lambda address: False))
    async with a_router(tmp_path, "strict", strict) as proxy, users(tmp_path, "alice") as [alice]:
        through = routed(proxy.address, fallback=fallback)
        async with users(tmp_path, "bob", settings=through) as [bob]:
            at_alice, invitation = await alice.agent.create_connection(router.address)
            at_bob = await bob.agent.join_connection(str(invitation), proxy.address)
            await bob.agent.send(at_bob, b"hello")
            if fallback is ProxyFallback.ALLOW:
                assert await alice.receive() == [b"hello"]
                return
            await asyncio.sleep(0.5)
            info = await bob.agent.connection(at_bob)
            assert info.to_send == 2, "the confirmation and the message wait"
            assert info.failed == (), "the queue is not to blame"
            assert not (await alice.agent.connection(at_alice)).is_ready


async def test_until_the_proxy_is_up(tmp_path: Path, router: Router, other_router: Router) -> None:
    through = routed(other_router.address)
    async with users(tmp_path, "alice", "bob", settings=through) as [alice, bob]:
        at_alice, at_bob = await connected(alice, bob, router, link=False)
        await other_router.stop()
        await bob.agent.send(at_bob, b"later")
        await until(lambda: router.connections >= 2)
        await other_router.start()
        assert await alice.receive() == [b"later"]
        assert at_alice
