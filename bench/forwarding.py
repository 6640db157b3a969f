"""SEND through our proxy to our router, against the same SEND without a proxy, in the same run."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from bench.harness import ServerProcess, measure, server_process
from heliograph.crypto.certificates import identity_of
from heliograph.crypto.forwarding import seal_command
from heliograph.crypto.keys import box_key, generate_key_pair
from heliograph.crypto.session_keys import verify_session_key
from heliograph.transport.client import Client
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags, QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.transmissions import Session, encode_transmission, pack

SENDS = int(os.environ.get("BENCH_FORWARDS", "1000"))
ROUNDS = 3
SESSIONS = int(os.environ.get("BENCH_PROXIED_SENDERS", "2000"))
BODY = bytes(2000)

Serve = Callable[[str, float], Coroutine[Any, Any, tuple[int, bytes]]]


def _address(server: ServerProcess) -> ServerAddress:
    port, fingerprint = server.facts
    return ServerAddress(Scheme.SMP, (decode_host("127.0.0.1"),), str(port), fingerprint)


async def _create(client: Client, count: int) -> list[bytes]:
    """Return the sender IDs of new queues."""
    owner = generate_key_pair(Algorithm.X25519)
    command = smp.NEW(
        owner.public,
        owner.public,
        mode=SubscriptionMode.CREATE_ONLY,
        queue_data=QueueReqData(QueueMode.MESSAGING),
    )
    return [(await client.request(command, b"", owner.private)).snd_id for _ in range(count)]


class Forwarder:
    """Makes the PFWD of a SEND."""

    def __init__(self, pkey: smp.PKEY) -> None:
        self.session_id = pkey.session_id
        leaf = identity_of(pkey.auth.chain, time.time()).leaf_public_key
        self._key = verify_session_key(leaf, pkey.auth.signed_key)
        self._session = Session.smp(pkey.session_id, pkey.versions.max)

    def make(self, corr_id: bytes, sender_id: bytes) -> smp.PFWD:
        version = self._session.version
        keys = generate_key_pair(Algorithm.X25519)
        command = smp.SMP_COMMANDS.encode(smp.SEND(MsgFlags(False), BODY), version)
        sent = encode_transmission(self._session, corr_id, sender_id, command)
        [content] = pack(self._session, [sent])
        sealed = seal_command(box_key(self._key, keys.private), corr_id, content)
        return smp.PFWD(version, keys.public, sealed)


async def _run(send: Callable[[int], Awaitable[None]], in_flight: int) -> None:
    numbers = iter(range(SENDS))

    async def one() -> None:
        for number in numbers:
            await send(number)

    await asyncio.gather(*(one() for _ in range(in_flight)))


async def _measure_both(
    proxy: ServerProcess, destination: ServerProcess, work: Callable[[], Awaitable[None]]
) -> tuple[float, float]:
    """Return CPU of both routers, in microseconds a message, and messages a second."""
    before = proxy.usage().cpu
    rate = await measure(destination, SENDS, work)
    return rate.cpu + (proxy.usage().cpu - before) / SENDS * 1e6, rate.per_second


async def _compare(proxy: ServerProcess, destination: ServerProcess) -> None:
    client = await Client.connect(_address(destination))
    sender = await Client.connect(_address(proxy))
    forwarder = Forwarder(await sender.request(smp.PRXY(_address(destination))))
    for in_flight in (1, 100):
        ratios = []
        for _ in range(ROUNDS):
            ids = await _create(client, SENDS // 100)

            async def direct(number: int, ids: list[bytes] = ids) -> None:
                command = smp.SEND(MsgFlags(False), BODY)
                await client.request(command, ids[number % len(ids)])

            prepared = [
                (corr_id, forwarder.make(corr_id, ids[number % len(ids)]))
                for number in range(SENDS)
                if (corr_id := os.urandom(24))
            ]

            async def forwarded(number: int, made: list[tuple[bytes, smp.PFWD]] = prepared) -> None:
                corr_id, pfwd = made[number]
                await sender.request(pfwd, forwarder.session_id, corr_id=corr_id)

            cpu, rate = await _measure_both(proxy, destination, partial(_run, direct, in_flight))
            ids[:] = await _create(client, SENDS // 100)
            prepared[:] = [
                (corr_id, forwarder.make(corr_id, ids[number % len(ids)]))
                for number, (corr_id, _) in enumerate(prepared)
            ]
            through = await _measure_both(proxy, destination, partial(_run, forwarded, in_flight))
            ratios.append((through[0] / cpu, cpu, rate, *through))
        ratio, cpu, rate, forwarded_cpu, forwarded_rate = sorted(ratios)[ROUNDS // 2]
        spread = max(ratios)[0] - min(ratios)[0]
        print(
            f"  SEND, {in_flight:3} in flight  direct {cpu:6.0f} us {rate:6.0f}/s"
            f"  through the proxy {forwarded_cpu:6.0f} us {forwarded_rate:6.0f}/s"
            f"  {ratio:.2f}x (spread {spread:.2f})"
        )
    await client.close()
    await sender.close()


async def _memory(proxy: ServerProcess, destination: ServerProcess) -> None:
    """Senders that asked for a session and are idle."""
    address = _address(proxy)
    before = proxy.usage().memory, destination.usage().memory
    clients = []
    for _ in range(SESSIONS):
        client = await Client.connect(address)
        await client.request(smp.PRXY(_address(destination)))
        clients.append(client)
    after = proxy.usage().memory, destination.usage().memory
    print(
        f"  {SESSIONS} idle proxied senders  proxy"
        f" {(after[0] - before[0]) / SESSIONS / 1024:.0f} KB each,"
        f" destination {(after[1] - before[1]) / 1024:.0f} KB in all"
    )
    for client in clients:
        await client.close()


async def run_forwarding(serve: Serve, new_url: Callable[[], str]) -> None:
    print("\nPrivate routing: CPU of proxy and destination, rate")
    async with (
        server_process(serve, new_url(), 1.5) as destination,
        server_process(serve, new_url(), 1.5) as proxy,
    ):
        await _compare(proxy, destination)
        await _memory(proxy, destination)
