"""`kill -9` of every part at random moments under load, and a provider in all kinds of trouble.

Afterwards every SEND with a notification that was answered OK is covered: an accepted push is
about that message or a later one of its queue, or the token is INVALID, or the push is pending.

HELIOGRAPH_FAULT_ROUNDS says how often (5, nightly 300), HELIOGRAPH_FAULT_SEED repeats a run.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.transport.client import Client, ClientConfig
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf, decode_address
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import (
    MessagePush,
    VerificationPush,
    decode_pn_messages,
    decode_push,
)
from heliograph.wire.ntf.tokens import APNSDeviceToken, PushProvider, TokenStatus
from tests.db.postgres import Postgres
from tests.faults.processes import STORES, Process, SimulatorProcess, init, stopped
from tests.smp.support import Peer, Queue, create_notified

ROUNDS = int(os.environ.get("HELIOGRAPH_FAULT_ROUNDS", "5"))
SEED = int(os.environ.get("HELIOGRAPH_FAULT_SEED", time.time_ns() % 1_000_000))
LOAD = 1.2
TIMEOUT = 60.0
CONFIG = ClientConfig(request_timeout=3.0, connect_timeout=3.0)
PATIENT = ClientConfig(request_timeout=30.0, connect_timeout=30.0)
"""For what must succeed when nothing fails any more, however busy the machine is."""


@dataclass(eq=False)
class Line:
    """One queue, and what was sent to it."""

    queue: Queue
    bodies: list[bytes] = field(default_factory=list)
    """Answered OK, in this round."""
    ids: list[bytes] = field(default_factory=list)
    """Of all messages there ever were, in order."""
    by_body: dict[bytes, int] = field(default_factory=dict)
    reported: int = -1
    """The newest message that an accepted push was about."""


@dataclass(eq=False)
class Device:
    device: APNSDeviceToken
    keys: KeyPair
    dh_keys: KeyPair
    token_id: bytes = b""
    secret: bytes = b""
    lines: dict[bytes, Line] = field(default_factory=dict)
    codes: list[bytes] = field(default_factory=list)
    status: TokenStatus = TokenStatus.ACTIVE


class FaultWorld:
    tokens, queues = 4, 5
    """How many tokens there are, and queues of each."""

    def __init__(self, directory: Path, store: str) -> None:
        self.random = random.Random(SEED)
        self.directory = directory
        self.postgres: Postgres | None = None
        self.store = f"sqlite:///{directory}/ntf/ntf.db"
        if store == "postgresql":
            self.postgres, self.store = self._open_store()
        self.apns = SimulatorProcess(directory / "apns")
        self.smp: Process
        self.ntf: Process
        self.devices: list[Device] = []
        self.faults: Counter[str] = Counter()
        self.sent = 0
        self.pushes = 0
        self._offset = 0
        self._unplaced: list[tuple[Line, bytes]] = []
        """Messages that pushes were about and that were not received yet."""
        self._http: aiohttp.ClientSession

    # Setting up.

    def _open_store(self) -> tuple[Postgres, str]:
        """A PostgreSQL, and the URL of its store."""
        server = Postgres()
        return server, server.new_url()

    async def start(self) -> None:
        await self._start_processes()
        await self._create_devices()

    async def _start_processes(self) -> None:
        await self._start_others()
        await init("ntf", self.directory / "ntf")
        service = self.random.random() < 0.5
        self.ntf = Process(
            self.directory / "ntf",
            *("ntf", "start"),
            environment={
                **self.apns.options_of_ntf,
                "HELIOGRAPH_NTF_STORE_URL": self.store,
                "HELIOGRAPH_NTF_PUSHES_BACKOFF_FIRST_SECONDS": "0.1",
                "HELIOGRAPH_NTF_PUSHES_BACKOFF_LAST_SECONDS": "1",
                "HELIOGRAPH_NTF_SUBSCRIPTIONS_USE_SERVICE_CREDENTIALS": str(service).lower(),
            },
        )
        await self.ntf.start()

    async def _start_others(self) -> None:
        self._http = aiohttp.ClientSession()
        await init("smp", self.directory / "smp")
        self.smp = Process(
            self.directory / "smp",
            *("smp", "start"),
            environment={"HELIOGRAPH_SMP_NOTIFICATIONS_DELIVERY_INTERVAL": "0"},
        )
        await asyncio.gather(self.apns.start(), self.smp.start())

    async def _create_devices(self) -> None:
        for number in range(self.tokens):
            name = f"{number:04x}{self.random.getrandbits(32):08x}".encode()
            device = Device(
                APNSDeviceToken(PushProvider.APNS_TEST, name),
                generate_key_pair(Algorithm.X25519),
                generate_key_pair(Algorithm.X25519),
            )
            self.devices.append(device)
            await self.register(device)
            async with self.peer() as peer:
                for _ in range(self.queues):
                    line = Line(await create_notified(peer))
                    device.lines[line.queue.notifier_id] = line
                    await self.subscribe(device, line.queue)

    async def register(self, device: Device) -> None:
        command = ntf.TNEW(device.device, device.keys.public, device.dh_keys.public)
        answer = await self.ask_ntf(command, b"", device.keys.private)
        assert isinstance(answer, ntf.IDTKN), answer
        device.token_id = answer.token_id
        device.secret = dh(answer.dh_key, device.dh_keys.private)
        device.codes.clear()

        async def has_code() -> bool:
            self.read_pushes()
            return bool(device.codes)

        assert await self.eventually(has_code), self.all_pending()
        answer = await self.ask_ntf(
            ntf.TVFY(device.codes[-1]), device.token_id, device.keys.private
        )
        assert answer == ntf.OK(), answer

    async def subscribe(self, device: Device, queue: Queue) -> None:
        assert queue.notifier is not None
        named = SMPQueueNtf(self.subscribed_address, queue.notifier_id)
        command = ntf.SNEW(device.token_id, named, queue.notifier.auth.private)
        answer = await self.ask_ntf(command, b"", device.keys.private)
        assert isinstance(answer, ntf.IDSUB), answer

    async def close(self) -> None:
        for process in (self.ntf, self.smp, self.apns):
            await process.kill()
        await self.close_rest()

    async def close_rest(self) -> None:
        if self.postgres is not None:
            self.postgres.remove()
        await self._http.close()

    # Talking to the parts.

    @property
    def smp_address(self) -> ServerAddress:
        return decode_address(self.smp.ready)

    @property
    def subscribed_address(self) -> ServerAddress:
        """The messaging router's address that subscriptions name."""
        return self.smp_address

    @asynccontextmanager
    async def peer(self, config: ClientConfig = CONFIG) -> AsyncIterator[Peer]:
        peer = Peer()
        peer.client = await Client.connect(self.smp_address, config, on_push=peer.received)
        try:
            yield peer
        finally:
            await peer.close()

    async def ask_ntf(self, command: Any, entity_id: bytes, key: bytes) -> Any:
        async def ask() -> Any:
            client = await Client.connect(decode_address(self.ntf.ready), CONFIG)
            try:
                return await client.request(command, entity_id, key)
            except RequestRefused as exc:
                return ntf.ERR(exc.error)
            finally:
                await client.close()

        return await self.persistently(ask)

    async def script(self, *rules: dict[str, Any]) -> None:
        async def put() -> None:
            url = f"{self.apns.control}/script"
            async with self._http.put(url, json={"rules": list(rules)}) as response:
                response.raise_for_status()

        await self.persistently(put)

    async def post(self, what: str) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            async with self._http.post(f"{self.apns.control}/{what}") as response:
                await response.read()

    async def persistently(self, action: Callable[[], Awaitable[Any]]) -> Any:
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return await action()
            except (ClientError, aiohttp.ClientError, OSError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def eventually(self, condition: Callable[[], Awaitable[bool]]) -> bool:
        deadline = time.monotonic() + TIMEOUT
        while not await condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    # Load.

    async def send(self, line: Line, until: float) -> None:
        """One message after another, as long as the messaging router answers and beyond."""
        while time.monotonic() < until:
            try:
                async with self.peer() as peer:
                    while time.monotonic() < until:
                        await self._send_one(line, peer)
            except ClientError:
                await asyncio.sleep(0.02)

    async def send_some(self, line: Line, count: int) -> None:
        """So many that the messaging router takes."""
        while count:
            with contextlib.suppress(ClientError):
                async with self.peer() as peer:
                    while count:
                        count -= await self._send_one(line, peer)

    async def _send_one(self, line: Line, peer: Peer) -> bool:
        body = f"{self.sent}".encode()
        self.sent += 1
        answer = await line.queue.send(peer, body)
        taken: bool = answer == smp.OK()
        if taken:
            line.bodies.append(body)
        await asyncio.sleep(self.random.uniform(0.005, 0.05))
        return taken

    # Faults.

    async def trouble(self, until: float) -> None:
        for _ in range(self.random.randint(1, 3)):
            # Some just after the last message, which no later one could cover.
            end = until - time.monotonic() + self.random.uniform(0, 0.1)
            soon = self.random.uniform(0, LOAD / 2)
            await asyncio.sleep(max(end, 0) if self.random.random() < 0.3 else soon)
            kind = self.random.choice(self.kinds())
            self.faults[kind] += 1
            await self.cause(kind)

    def kinds(self) -> list[str]:
        kinds = ["ntf", "ntf", "smp", "apns", "reset", "goaway", "outage", "slow", "429", "410"]
        kinds += ["frozen", "frozen"]
        if self.postgres is not None:
            kinds += ["postgres", "postgres"]
        return kinds

    async def cause(self, kind: str) -> None:
        pause = self.random.uniform(0, 0.4)
        match kind:
            case "ntf" | "smp" | "apns":
                process: Process = getattr(self, kind)
                await process.kill()
                await asyncio.sleep(pause)
                await process.start()
            case "postgres":
                assert self.postgres is not None
                self.postgres.kill()
                # Also longer than a messaging router waits before it calls something delivered.
                await asyncio.sleep(self.random.choice((pause, pause + 1.5)))
                if self.random.random() < 0.4:
                    self.faults["ntf without postgres"] += 1
                    await self.ntf.kill()
                    await asyncio.to_thread(self.postgres.start)
                    await self.ntf.start()
                else:
                    await asyncio.to_thread(self.postgres.start)
            case "frozen":
                with self.frozen_store():
                    await asyncio.sleep(self.random.choice((pause, pause + 1.5)))
                    killed = self.random.random() < 0.5
                    if killed:
                        self.faults["ntf with a frozen store"] += 1
                        await self.ntf.kill()
                if killed:
                    await self.ntf.start()
            case "reset" | "goaway":
                await self.post(kind)
            case "outage":
                await self.script({"status": 503})
                await asyncio.sleep(pause)
                await self.script()
            case "slow":
                await self.script({"delay": pause})
            case "429":
                await self.script({"status": 429, "retry_after": 1, "times": 5})
            case "410":
                token = self.random.choice(self.devices).device.token.decode()
                rule = {"token": token, "status": 410, "reason": "Unregistered", "times": 1}
                await self.script(rule)

    @contextlib.contextmanager
    def frozen_store(self) -> Iterator[None]:
        """It answers nothing, and refuses nothing."""
        if self.postgres is not None:
            with stopped(self.postgres.pid):
                yield
            return
        store = open_dialect(self.store)
        store.begin()
        try:
            yield
        finally:
            store.rollback()
            store.close()

    # Looking.

    def read_pushes(self) -> None:
        """What the provider accepted since the last time."""
        with self.apns.record.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        by_token = {device.device.token.decode(): device for device in self.devices}
        for line in data[:whole].splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # a line that was cut by a kill, and the next one after it
            device = by_token.get(entry["token"])
            if entry["accepted"] and device is not None:
                self.pushes += 1
                self._read_entry(device, entry)

    def _read_entry(self, device: Device, entry: dict[str, Any]) -> None:
        push = decode_push(entry["body"].encode())
        if isinstance(push, VerificationPush):
            device.codes.append(open_box_padded(device.secret, push.nonce, push.box))
        if not isinstance(push, MessagePush):
            return
        for item in decode_pn_messages(open_box_padded(device.secret, push.nonce, push.box)):
            line = device.lines[item.queue.notifier_id]
            assert line.queue.notifier is not None
            meta = line.queue.notifier.decrypt(smp.NMSG(item.nonce, item.meta))
            self._unplaced.append((line, meta.msg_id))

    def place(self) -> None:
        """Find the messages that pushes were about among those that were received."""
        waiting = self._unplaced[:]
        self._unplaced.clear()
        for line, msg_id in waiting:
            if msg_id in line.ids:
                line.reported = max(line.reported, line.ids.index(msg_id))
            else:
                self._unplaced.append((line, msg_id))

    async def receive_all(self) -> None:
        """As the recipient: every message of every queue, in order."""
        async with self.peer(PATIENT) as peer:
            for device in self.devices:
                for line in device.lines.values():
                    message = await line.queue.get(peer)
                    while isinstance(message, smp.MSG):
                        body = line.queue.body(message)
                        assert body is not None
                        line.by_body[body] = len(line.ids)
                        line.ids.append(message.msg_id)
                        await line.queue.ack(peer, message)
                        message = await line.queue.get(peer)

    def uncovered(self) -> list[tuple[Device, Line]]:
        self.read_pushes()
        self.place()
        return [
            (device, line)
            for device in self.devices
            for line in device.lines.values()
            if line.bodies and line.reported < line.by_body[line.bodies[-1]]
        ]

    async def pending(self) -> set[bytes]:
        """Tokens with a pending message push in the store."""
        dialect = open_dialect(self.store, read_only=True)
        try:
            rows = Transaction(dialect).query(
                "SELECT token_id FROM pending_pushes WHERE kind = 'message'"
            )
            return {token_id for (token_id,) in rows}
        finally:
            dialect.close()

    def all_pending(self) -> list[tuple[Any, ...]]:
        """What is pending in the store, and for how many seconds not due yet, for messages."""
        dialect = open_dialect(self.store, read_only=True)
        try:
            rows = dialect.query(
                "SELECT kind, provider, attempts, owner, next_at FROM pending_pushes", ()
            )
            return [(*row, at / 1000 - time.time()) for *row, at in rows]
        finally:
            dialect.close()

    async def status(self, device: Device) -> TokenStatus:
        answer = await self.ask_ntf(ntf.TCHK(), device.token_id, device.keys.private)
        assert isinstance(answer, ntf.TKN), answer
        return answer.status

    # One round.

    async def play(self, number: int) -> None:
        until = time.monotonic() + LOAD
        lines = [line for device in self.devices for line in device.lines.values()]
        await asyncio.gather(*(self.send(line, until) for line in lines), self.trouble(until))
        await self.script()
        await self.settle(number)

    async def settle(self, number: int) -> None:
        """Receive what was sent, and check that pushes were about it."""
        lines = [line for device in self.devices for line in device.lines.values()]
        await self.receive_all()
        for line in lines:
            missing = [body for body in line.bodies if body not in line.by_body]
            assert not missing, f"round {number}: the messaging router lost {missing}"
        await self.check(number)
        for line in lines:
            line.bodies.clear()

    async def check(self, number: int) -> None:
        invalid: set[bytes] = set()

        async def is_covered() -> bool:
            missing = self.uncovered()
            for device in {device for device, _ in missing}:
                if (await self.status(device)).is_invalid:
                    invalid.add(device.token_id)
            return all(device.token_id in invalid for device, _ in missing)

        if not await self.eventually(is_covered):
            pending = await self.pending()
            lost = [
                (device.device.token, line.reported, line.by_body[line.bodies[-1]], len(line.ids))
                for device, line in self.uncovered()
                if device.token_id not in invalid | pending
            ]
            assert not lost, f"round {number}, seed {SEED}: not covered: {lost}"
        for device in self.devices:
            if (await self.status(device)).is_invalid:
                await self.register(device)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", STORES)
async def test_every_notification_is_covered(tmp_path: Path, store: str) -> None:
    print(f"\nHELIOGRAPH_FAULT_SEED={SEED}, {ROUNDS} rounds, {store}")  # noqa: T201
    world = FaultWorld(tmp_path, store)
    try:
        await world.start()
        for number in range(1, ROUNDS + 1):
            await world.play(number)
            if number % 25 == 0:
                print(f"{number} rounds, {world.pushes} pushes", flush=True)  # noqa: T201
        summary = dict(world.faults)
        print(f"{world.sent} sent, {world.pushes} pushes, faults: {summary}")  # noqa: T201
    finally:
        await world.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", STORES)
async def test_what_arrived_while_the_store_was_stalled_survives_a_kill(
    tmp_path: Path, store: str
) -> None:
    """The messaging router would call it delivered if the connection lasted."""
    world = FaultWorld(tmp_path, store)
    try:
        await world.start()
        lines = [line for device in world.devices for line in device.lines.values()]
        for number in range(1, 4):
            with world.frozen_store():
                await asyncio.gather(*(world.send_some(line, 5) for line in lines))
                await asyncio.sleep(2.0)
                await world.ntf.kill()
            await world.ntf.start()
            await world.settle(number)
        assert world.sent >= 3 * 5 * len(lines)
    finally:
        await world.close()
