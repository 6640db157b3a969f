"""`kill -9` of the router at random moments under load.

Whatever SEND was answered OK is delivered, before or after, in order; and so is its notification.
Queues that were made are there, and those that were deleted are not.

HELIOGRAPH_KILL_ROUNDS says how often (8, nightly 200), HELIOGRAPH_KILL_SEED repeats a run.
"""

import asyncio
import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ClientError
from heliograph.transport.handshake import ServiceCredentials
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress, decode_host
from tests.faults.smp_process import save_credentials
from tests.smp.support import (
    AUTH,
    OK,
    Peer,
    Queue,
    create,
    identity,
    new_store,
    service,
)

ROUNDS = int(os.environ.get("HELIOGRAPH_KILL_ROUNDS", "8"))
SEED = int(os.environ.get("HELIOGRAPH_KILL_SEED", time.time_ns() % 1_000_000))
SENDERS = 3
QUEUES = 8
LONGEST_START = 0.3
LONGEST_LOAD = 0.4
TIMEOUT = 30.0


@dataclass(eq=False)
class Tally:
    """What is known of one queue, over all rounds."""

    queue: Queue
    of_service: bool
    accepted: list[bytes] = field(default_factory=list)
    """Answered OK."""
    received: dict[bytes, bytes] = field(default_factory=dict)
    """Bodies by their message's ID, in the order they first came."""
    notified: dict[bytes, None] = field(default_factory=dict)
    """IDs of messages, in the order they first came."""


class Process:
    """The router, which dies often."""

    def __init__(self, url: str, directory: Path, interval: float) -> None:
        self._arguments = [url, str(directory / "credentials.json"), str(interval)]
        save_credentials(directory / "credentials.json", identity().credentials)
        self._process: asyncio.subprocess.Process
        self.address: ServerAddress

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.faults.smp_process",
            *self._arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=Path(__file__).parents[2],
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            port = (await self._process.stdout.readline()).decode().strip()
        host = decode_host("127.0.0.1")
        self.address = ServerAddress(Scheme.SMP, (host,), port, identity().fingerprint)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def connect(self, service: ServiceCredentials | None = None) -> Peer:
        peer = Peer()
        config = ClientConfig(request_timeout=TIMEOUT)
        peer.client = await Client.connect(
            self.address, config, on_push=peer.received, service=service
        )
        return peer


class Load:
    """Everything that goes on while the router lives."""

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process = process
        self._chance = chance
        self.tallies: list[Tally] = []
        self.deleted: list[Queue] = []
        self._sent = 0
        self._by_id: dict[bytes, Tally] = {}
        self._senders = itertools.count()
        self.is_running = asyncio.Event()

    async def prepare(self) -> None:
        peer = await self._process.connect()
        for number in range(QUEUES):
            queue = await create(peer, subscribe=False, with_notifier=True)
            self._add(queue, of_service=number % 2 == 0)
        ntf = await self._process.connect(service())
        for tally in self.tallies:
            if tally.of_service:
                assert await tally.queue.nsub(ntf) == smp.SOK(ntf.service_id)
        await peer.close()
        await ntf.close()

    def _add(self, queue: Queue, *, of_service: bool) -> None:
        tally = Tally(queue, of_service)
        self.tallies.append(tally)
        self._by_id[queue.rcv_id] = self._by_id[queue.notifier_id] = tally

    def tasks(self) -> list[Awaitable[None]]:
        return [
            *(self._send() for _ in range(SENDERS)),
            self._receive(),
            self._be_notified(),
            self._be_notified_as_service(),
            self._make_and_delete(),
        ]

    @contextlib.asynccontextmanager
    async def _peer(self, service: ServiceCredentials | None = None) -> AsyncIterator[Peer]:
        """Until the router dies."""
        peer = await self._process.connect(service)
        try:
            yield peer
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await peer.close()
            self._take_pushes(peer)

    async def _send(self) -> None:
        sender = next(self._senders)
        async with self._peer() as peer:
            while peer.client.is_connected:
                tallies = self._chance.choices(self.tallies, k=self._chance.randint(1, 8))
                bodies = []
                for _ in tallies:
                    self._sent += 1
                    padding = bytes(self._chance.randint(0, 2000))
                    bodies.append(b"%d %d %s" % (sender, self._sent, padding))
                requests = [
                    tally.queue.sending(body) for tally, body in zip(tallies, bodies, strict=True)
                ]
                answers = await peer.client.request_many(requests)
                for tally, body, answer in zip(tallies, bodies, answers, strict=True):
                    if answer == OK:
                        tally.accepted.append(body)
                        self.is_running.set()

    async def _receive(self) -> None:
        async with self._peer() as peer:
            for tally in tuple(self.tallies):
                await tally.queue.sub(peer)
            async with asyncio.TaskGroup() as group:
                while peer.client.is_connected:
                    for tally, message in self._take_pushes(peer):
                        group.create_task(self._drain(peer, tally, message))
                    await asyncio.sleep(0.005)

    async def _drain(self, peer: Peer, tally: Tally, message: Any) -> None:
        with contextlib.suppress(ClientError):
            while isinstance(message, smp.MSG):
                self._received(tally, message)
                if self._chance.random() < 0.02:
                    await tally.queue.sub(peer)  # to have it again
                    return
                message = await tally.queue.ack(peer, message)

    async def _be_notified(self) -> None:
        async with self._peer() as peer:
            for tally in tuple(self.tallies):
                if not tally.of_service:
                    await tally.queue.nsub(peer)
            while peer.client.is_connected:
                self._take_pushes(peer)
                await asyncio.sleep(0.005)

    async def _be_notified_as_service(self) -> None:
        async with self._peer(service()) as peer:
            await peer.nsubs()
            while peer.client.is_connected:
                self._take_pushes(peer)
                await asyncio.sleep(0.005)

    async def _make_and_delete(self) -> None:
        async with self._peer() as peer:
            while peer.client.is_connected:
                queue = await create(peer, subscribe=False, with_notifier=True)
                if self._chance.random() < 0.9:
                    if await queue.delete(peer) == OK:
                        self.deleted.append(queue)
                elif len(self.tallies) < 3 * QUEUES:
                    self._add(queue, of_service=False)
                await asyncio.sleep(0.01)

    def _take_pushes(self, peer: Peer) -> list[tuple[Tally, Any]]:
        """Note the notifications; the result are the messages."""
        messages = []
        while peer.pushes:
            entity_id, message = peer.pushes.popleft()
            tally = self._by_id.get(entity_id)
            if tally is None:
                continue
            if isinstance(message, smp.NMSG):
                assert tally.queue.notifier is not None
                tally.notified[tally.queue.notifier.decrypt(message).msg_id] = None
            elif isinstance(message, smp.MSG):
                messages.append((tally, message))
        return messages

    def _received(self, tally: Tally, message: smp.MSG) -> None:
        body = tally.queue.body(message)
        if body is not None:
            assert tally.received.setdefault(message.msg_id, body) == body

    async def finish(self) -> None:
        """Receive all that is left."""
        receiver, plain = await self._process.connect(), await self._process.connect()
        as_service = await self._process.connect(service())
        await as_service.nsubs()
        for tally in self.tallies:
            if not tally.of_service:
                assert await tally.queue.nsub(plain) == smp.SOK()
            assert await tally.queue.sub(receiver) == smp.SOK()
            message: Any = OK
            if await tally.queue.size(receiver):
                message = await receiver.push(tally.queue.rcv_id)
            while isinstance(message, smp.MSG):
                self._received(tally, message)
                message = await tally.queue.ack(receiver, message)
            assert message == OK
        deadline = time.monotonic() + TIMEOUT
        while any(self._missing(tally) for tally in self.tallies):
            assert time.monotonic() < deadline, "notifications are missing"
            self._take_pushes(plain)
            self._take_pushes(as_service)
            await asyncio.sleep(0.01)
        for queue in self.deleted:
            assert await queue.sub(receiver) == AUTH

    def _missing(self, tally: Tally) -> set[bytes]:
        """Messages that were accepted, and not notified of."""
        bodies = set(tally.accepted)
        return {
            msg_id
            for msg_id, body in tally.received.items()
            if body in bodies and msg_id not in tally.notified
        }

    def check(self) -> None:
        for tally in self.tallies:
            bodies = list(tally.received.values())
            assert len(set(bodies)) == len(bodies), "a message was stored twice"
            lost = set(tally.accepted) - set(bodies)
            assert not lost, f"{len(lost)} accepted messages are lost"
            by_sender: dict[bytes, list[int]] = {}
            for body in bodies:
                sender, number, _ = body.split(b" ", 2)
                by_sender.setdefault(sender, []).append(int(number))
            for numbers in by_sender.values():
                assert numbers == sorted(numbers), "messages changed their order"
            places = {msg_id: place for place, msg_id in enumerate(tally.received)}
            notified = [places[msg_id] for msg_id in tally.notified]
            assert notified == sorted(notified), "notifications changed their order"

    @property
    def totals(self) -> str:
        accepted = sum(len(tally.accepted) for tally in self.tallies)
        notified = sum(len(tally.notified) for tally in self.tallies)
        return (
            f"{accepted} messages accepted, {notified} notifications received,"
            f" {len(self.tallies)} queues kept, {len(self.deleted)} deleted"
        )


def is_death(error: BaseException | None) -> bool:
    """What happens to a client when the router dies."""
    return error is None or isinstance(error, ClientError | asyncio.CancelledError)


@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * ROUNDS)
@pytest.mark.parametrize(
    ("store", "interval", "rounds"),
    [
        ("sqlite", 0.02, ROUNDS),
        ("sqlite", 0.0, ROUNDS // 4),
        ("postgresql", 0.02, ROUNDS // 4),
    ],
)
async def test_killed_under_load(
    store: str, interval: float, rounds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    process = Process(new_store(store, tmp_path), tmp_path, interval)
    load = Load(process, chance)
    await process.start()
    try:
        await load.prepare()
        for _ in range(rounds):
            await live_and_die(process, load, chance)
            await process.start()
        await load.finish()
    finally:
        await process.kill()
        with capsys.disabled():
            sys.stdout.write(f"\nkilled {rounds} times ({store}), seed {SEED}: {load.totals}\n")
    load.check()


async def live_and_die(process: Process, load: Load, chance: random.Random) -> None:
    tasks = [asyncio.ensure_future(work) for work in load.tasks()]
    if chance.random() < 0.2:
        await asyncio.sleep(chance.uniform(0, LONGEST_START))
    else:
        load.is_running.clear()
        await asyncio.wait_for(load.is_running.wait(), TIMEOUT)
        await asyncio.sleep(chance.uniform(0, LONGEST_LOAD))
    await process.kill()
    _, pending = await asyncio.wait(tasks, timeout=TIMEOUT)
    assert not pending
    for task in tasks:
        if not is_death(task.exception()):
            await task
