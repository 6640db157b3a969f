"""Attacks beside an honest neighbour, whose push must come in time."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from heliograph.net import resolver
from heliograph.net.public import Address
from heliograph.push.http import HttpSettings
from heliograph.push.webpush import WebPushConfig, WebPushProvider
from heliograph.runtime.authority import Authority
from heliograph.sim.pong import PongRouter
from heliograph.sim.providers.simulator import Simulator
from heliograph.sim.providers.webpush import WebPushService
from heliograph.transport.client import ClientConfig
from heliograph.transport.protocols import SMP
from heliograph.transport.server import Answer, Listener, ServerConnection
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.ntf.tokens import PushProvider, WPDeviceToken
from heliograph.wire.requests import Request
from tests.keys import fixed_p256_key
from tests.ntf.support import SETTINGS, NtfWorld, a_new_token, a_world
from tests.smp.support import identity, keys
from tests.waiting import until

IN_TIME = 10.0
"""Seconds for an honest push: much less than a time-out, and enough for a busy machine."""
NEVER = 60.0
"""The time-out of the attacked provider."""


@pytest.fixture
async def webpush(tmp_path: Path) -> AsyncIterator[Simulator]:
    service = Simulator(WebPushService(), tmp_path / "webpush")
    await service.start()
    yield service
    await service.close()


@pytest.fixture
async def world(sqlite_url: str, tmp_path: Path, webpush: Simulator) -> AsyncIterator[NtfWorld]:
    async def resolver(host: str) -> list[Address]:
        return [ip_address("127.0.0.1")]

    http = HttpSettings(
        connections=1,
        timeout=NEVER,
        http2_only=False,
        thread="webpush",
        ca=webpush.authority.file.read_bytes(),
    )
    key = fixed_p256_key("vapid").to_pem()
    config = WebPushConfig(key, "mailto:ops@example.com", allow_private=True, http=http)
    world = NtfWorld(sqlite_url, tmp_path)
    world.providers = {PushProvider.WEB_PUSH: WebPushProvider(config, resolver=resolver)}
    await world.start()
    yield world
    await world.stop()


def at(host: str, port: int | str, name: str) -> WPDeviceToken:
    public = fixed_p256_key("device").public
    return WPDeviceToken(host, str(port), f"/push/{name}", bytes(16), public)


async def register(world: NtfWorld, devices: list[WPDeviceToken]) -> None:
    client = await world.connect()
    for device in devices:
        key = keys()
        await client.request(ntf.TNEW(device, key.public, a_new_token().dh_key), b"", key.private)


async def honest_push(webpush: Simulator, world: NtfWorld) -> float:
    """Register at an honest host, and return the seconds until it has the verification."""
    name = os.urandom(8).hex()
    started = time.monotonic()
    port = webpush.url.rpartition(":")[2]
    await register(world, [at("localhost", port, name)])
    assert await webpush.record.wait_for(name, 0, NEVER)
    return time.monotonic() - started


async def test_registrations_at_a_silent_host(
    world: NtfWorld, webpush: Simulator, is_large: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        count = 2000 if is_large else 200
        await register(world, [at("silent.example", port, str(n)) for n in range(count)])
        assert await honest_push(webpush, world) < IN_TIME


async def test_registrations_at_a_closed_port_of_a_good_host(
    world: NtfWorld, webpush: Simulator, is_large: bool
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        count = 500 if is_large else 60
        await register(world, [at("localhost", port, str(n)) for n in range(count)])
        await asyncio.sleep(8)  # its back-off grows
        assert await honest_push(webpush, world) < IN_TIME


async def test_registrations_at_many_silent_hosts(
    world: NtfWorld, webpush: Simulator, is_large: bool
) -> None:
    """Unverified devices have a fifth of the window together, so this one waits for a time-out.

    Verified devices do not.
    """
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        port = silent.getsockname()[1]
        count = 2000 if is_large else 200
        await register(world, [at(f"host{n}.example", port, "x") for n in range(count)])
        lane = world.router.outbox.lanes[PushProvider.WEB_PUSH]
        await until(lambda: lane.active >= 50)
        assert lane.active <= world.settings.outbox.window // 5
        started = time.monotonic()
        await world.send(queue)
        await phone.notified_of(queue)
        assert time.monotonic() - started < IN_TIME


async def test_endpoints_that_continue_without_end(world: NtfWorld, tmp_path: Path) -> None:
    """100 Continue after 100 Continue: the thread of APNs has no part in it."""
    context = Authority(tmp_path / "webpush").server_context("localhost", "127.0.0.1")
    sent = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            while True:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                sent += 100
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    phone = await world.registered()
    queue = await world.queue()
    await phone.subscribe(queue)
    try:
        await register(world, [at("localhost", port, str(n)) for n in range(40)])
        await until(lambda: sent > 10_000)
        for _ in range(5):
            world.apns.skip(phone.device)
            started = time.monotonic()
            await world.send(queue)
            await phone.notified_of(queue)
            assert time.monotonic() - started < IN_TIME
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize("first", ["{}.onion", "{}.invalid", "{}.localhost"])
async def test_a_victim_that_many_names_lead_to(
    small_world: NtfWorld, first: str, is_large: bool
) -> None:
    """The address has another host besides the victim's, or another name of it."""
    attacker = await small_world.registered()
    queue = await small_world.queue()
    dialed = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialed
        dialed += 1
        writers.append(writer)

    victim = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = str(victim.sockets[0].getsockname()[1])
    try:
        for _ in range(1000 if is_large else 60):
            names = [first.format(os.urandom(8).hex()), "127.0.0.1"]
            address = replace(
                small_world.smp.address,
                hosts=tuple(map(decode_host, names[:1] if "localhost" in first else names)),
                port=port,
                fingerprint=os.urandom(32),
            )
            assert isinstance(await attacker.snew(queue, address=address), ntf.IDSUB)
        await until(lambda: dialed)
        await asyncio.sleep(3)
        assert dialed < 25
    finally:
        victim.close()
        for writer in writers:
            writer.transport.abort()


async def test_a_new_router_beside_many_silent_hosts(
    sqlite_url: str, tmp_path: Path, is_large: bool
) -> None:
    """It waits for one time-out of those that are dialed, not for one of each that was named."""
    client = ClientConfig(connect_timeout=3.0)
    settings = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, client=client))
    async with a_world(sqlite_url, tmp_path, settings) as world:
        phone, attacker = await world.registered(), await world.registered()
        queue, other = await world.queues(2)
        with socket.create_server(("0.0.0.0", 0), backlog=4096) as silent:
            port = str(silent.getsockname()[1])
            for number in range(4000 if is_large else 600):
                host = decode_host(f"127.1.{number // 250}.{number % 250 + 1}")
                address = replace(world.smp.address, hosts=(host,), port=port)
                assert isinstance(await attacker.snew(other, address=address), ntf.IDSUB)
            started = time.monotonic()
            await phone.subscribe(queue)
            assert time.monotonic() - started < IN_TIME


async def test_names_that_never_resolve(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """An honest router that is reached by name, and a new one, do not wait for their lookups."""

    async def lookup(name: str) -> list[Address]:
        if name.endswith("silent.example"):
            await asyncio.Event().wait()
        return [ip_address("127.0.0.1")]

    monkeypatch.setattr(resolver, "dns_lookup", lookup)
    async with a_world(sqlite_url, tmp_path) as world:
        phone, attacker = await world.registered(), await world.registered()
        queue, new, other = await world.queues(3)

        def named(host: str) -> ServerAddress:
            return replace(world.smp.address, hosts=(decode_host(host),))

        await phone.subscribe(queue, address=named("smp.example"))
        for number in range(2000 if is_large else 200):
            address = named(f"host{number}.silent.example")
            assert isinstance(await attacker.snew(other, address=address), ntf.IDSUB)
        started = time.monotonic()
        await world.restart_smp()
        await world.send(queue)
        await phone.notified_of(queue)
        assert time.monotonic() - started < 2 * IN_TIME
        started = time.monotonic()
        await phone.subscribe(new, address=named("new.example"))
        assert time.monotonic() - started < IN_TIME


async def test_routers_that_are_silent(small_world: NtfWorld, is_large: bool) -> None:
    """SNEW for addresses where nobody speaks, with any number of identities."""
    phone, attacker = await small_world.registered(), await small_world.registered()
    queue, *others = await small_world.queues(4)
    await phone.subscribe(queue)
    count = 3000 if is_large else 100
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as silent:
        port = str(silent.getsockname()[1])
        for _ in range(count):
            fingerprint = os.urandom(32)
            address = replace(small_world.smp.address, port=port, fingerprint=fingerprint)
            await attacker.snew(others[0], address=address)
        dials = small_world.router.subscribers.dials
        assert dials.in_flight <= small_world.settings.subscriber.dials.per_host
        started = time.monotonic()
        await small_world.restart_smp()
        await small_world.send(queue)
        await phone.notified_of(queue)
        assert time.monotonic() - started < 2 * IN_TIME


class AcceptingRouter(PongRouter):
    """Accepts every subscription."""

    def received(self, connection: ServerConnection, requests: list[Request[Any]]) -> None:
        for request in requests:
            answer = smp.SOK() if isinstance(request.command, smp.NSUB) else smp.PONG()
            connection.answer([Answer(request.corr_id, request.entity_id, answer)])


async def test_routers_that_take_all_connections(
    sqlite_url: str, tmp_path: Path, is_large: bool
) -> None:
    """One that worked before them finds its place when it was restarted."""
    count = 200 if is_large else 10
    dials = replace(SETTINGS.subscriber.dials, connections=count, host_interval=0.0)
    settings = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, dials=dials))
    listener = Listener(SMP, identity("accepting"), AcceptingRouter())
    port = str(await listener.start("0.0.0.0", 0))
    async with a_world(sqlite_url, tmp_path, settings) as world:
        phone, attacker = await world.registered(), await world.registered()
        queue, other = await world.queues(2)
        await phone.subscribe(queue)
        fingerprint = identity("accepting").fingerprint
        for number in range(2 * count):
            host = decode_host(f"127.2.{number // 250}.{number % 250 + 1}")
            address = ServerAddress(Scheme.SMP, (host,), port, fingerprint)
            assert isinstance(await attacker.snew(other, address=address), ntf.IDSUB)
        await until(lambda: len(listener.connections) == count - 1)
        started = time.monotonic()
        await world.restart_smp()
        await world.send(queue)
        await phone.notified_of(queue)
        assert time.monotonic() - started < 2 * IN_TIME
    await listener.close()


@pytest.mark.parametrize("event", ["NMSG", "DELD"])
async def test_subscriptions_deleted_here_only(
    sqlite_url: str, tmp_path: Path, event: str, is_large: bool
) -> None:
    """The messaging router does not learn of SDEL: what it goes on to send is no abuse."""
    settings = replace(SETTINGS, subscriber=replace(SETTINGS.subscriber, worthless_rate=1.0))
    async with a_world(sqlite_url, tmp_path, settings) as world:
        phone, attacker = await world.registered(), await world.registered()
        queue, *others = await world.queues(2001 if is_large else 101)
        await phone.subscribe(queue)
        for other in others:
            assert await attacker.ask(ntf.SDEL(), await attacker.subscribe(other)) == ntf.OK()
        if event == "NMSG":
            await world.sender.ask_many([other.sending(b"x") for other in others])
            stats = world.router.stats
            await until(lambda: stats.worthless_events.get("other") == len(others))
        else:
            for other in others:
                assert await other.delete(world.sender) == smp.OK()
        started = time.monotonic()
        await world.send(queue)
        await phone.notified_of(queue)
        assert time.monotonic() - started < IN_TIME
