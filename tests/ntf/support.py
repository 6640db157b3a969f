"""Helpers of the notification router's tests: a router on real sockets, and those around it."""

import asyncio
import itertools
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair
from heliograph.db.database import migrate
from heliograph.db.dialects import Transaction, open_dialect
from heliograph.ntf.push.outbox import OutboxSettings
from heliograph.ntf.router import NtfRouter, NtfSettings
from heliograph.ntf.store.records import PushKind
from heliograph.ntf.store.schema import MIGRATIONS
from heliograph.ntf.store.tokens import NewToken
from heliograph.ntf.subscriber.settings import SubscriberSettings
from heliograph.push.apns import ApnsConfig, ApnsProvider
from heliograph.push.http import HttpSettings
from heliograph.push.null import NullProvider
from heliograph.push.provider import Accepted, Delivery, Provider, PushOutcome
from heliograph.runtime.backoff import Backoff
from heliograph.sim.providers.apns import ApnsRules, ApnsService
from heliograph.sim.providers.script import Script, ScriptRule
from heliograph.sim.providers.simulator import Simulator
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.transport.errors import RequestRefused
from heliograph.transport.protocols import NTF
from heliograph.transport.server import Limits, Listener
from heliograph.wire import ntf, smp
from heliograph.wire.addresses import Scheme, ServerAddress, SMPQueueNtf, decode_host
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import (
    CheckMessagesPush,
    MessagePush,
    PNMessageData,
    Push,
    VerificationPush,
    decode_pn_messages,
    decode_push,
)
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    DeviceToken,
    PushProvider,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.versions import VersionRange
from tests.db.postgres import shared_postgres
from tests.journal.recorder import Noted, Notes
from tests.keys import fixed_p256_key
from tests.ports import steady_port
from tests.smp.support import AT_ONCE, Peer, Queue, World, create_notified, identity
from tests.waiting import eventually

STORES = ("sqlite", "postgresql")
TIMEOUT = 10.0
PAYLOAD_LIMIT = 5120
"""Large enough for the padding of the reference, so that each push is one request."""
QUIET = 0.15
KEY = fixed_p256_key("apns")
KEY_ID, TEAM_ID, TOPIC = "TESTKEYID1", "5NN7GUYB6T", "chat.simplex.app"
OK = ntf.OK()
AUTH = ntf.ERR(ErrorCode.AUTH)
QUOTA = ntf.ERR(ErrorCode.QUOTA)
AT = PushProvider.APNS_TEST

FAST = Backoff(first=0.05, last=0.4, jitter=0.3)
SETTINGS = NtfSettings(
    outbox=OutboxSettings(backoff=FAST, refused_delay=0.3),
    subscriber=SubscriberSettings(backoff=FAST, stable_after=0.5, retry_errors=0.2),
)

_numbers = itertools.count(1)


def new_store(kind: str, directory: Path) -> str:
    """The URL of an empty store."""
    if kind == "postgresql":
        return shared_postgres().new_url()
    return f"sqlite:///{directory}/ntf.db"


@contextmanager
def a_transaction(url: str) -> Iterator[Transaction]:
    """One that is never committed, over an empty store."""
    migrate(url, MIGRATIONS)
    dialect = open_dialect(url)
    dialect.begin()
    try:
        yield Transaction(dialect)
    finally:
        dialect.rollback()
        dialect.close()


def a_device(provider: PushProvider = AT) -> APNSDeviceToken:
    """One that no other test has."""
    return APNSDeviceToken(provider, f"{next(_numbers):08x}{os.urandom(4).hex()}".encode())


def a_new_token(device: DeviceToken | None = None, **changes: Any) -> NewToken:
    client, keys = generate_key_pair(Algorithm.X25519), generate_key_pair(Algorithm.X25519)
    values: dict[str, Any] = {
        "token_id": os.urandom(24),
        "device": device or a_device(),
        "auth_key": generate_key_pair(Algorithm.ED25519).public,
        "dh_key": client.public,
        "keys": keys,
        "dh_secret": dh(client.public, keys.private),
        "code": os.urandom(32),
    }
    return NewToken(**{**values, **changes})


class Recorder:
    """A provider that records pushes, and gives configured answers."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.answers: deque[PushOutcome] = deque()
        self.always: PushOutcome = Accepted()
        self.gate = asyncio.Event()
        self.gate.set()
        self.in_flight = 0
        self.most_in_flight = 0
        self.refreshed: list[int] = []
        """How many had been given when a new connection was asked for."""
        self.closed = False

    async def send(self, delivery: Delivery) -> PushOutcome:
        self.deliveries.append(delivery)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self.gate.wait()
        finally:
            self.in_flight -= 1
        return self.answers.popleft() if self.answers else self.always

    async def refresh(self) -> None:
        self.refreshed.append(len(self.deliveries))

    async def close(self) -> None:
        self.closed = True

    def to(self, device: DeviceToken) -> list[Push]:
        return [item.push for item in self.deliveries if item.device == device]


class Apns:
    """A simulated APNs, and the provider that reaches it."""

    def __init__(self, directory: Path, payload_limit: int = PAYLOAD_LIMIT) -> None:
        rules = ApnsRules(TOPIC, KEY_ID, TEAM_ID, payload_limit)
        self.simulator = Simulator(ApnsService(KEY, rules), directory)
        self._after: dict[str, int] = {}

    async def start(self) -> None:
        await self.simulator.start()

    def new_provider(self) -> ApnsProvider:
        settings = HttpSettings(ca=self.simulator.authority.file.read_bytes(), timeout=5.0)
        url = self.simulator.url
        return ApnsProvider(
            ApnsConfig(KEY.to_pem(), KEY_ID, TEAM_ID, TOPIC, url, url, url, settings)
        )

    def play(self, *rules: ScriptRule) -> None:
        self.simulator.set_script(Script(list(rules)))

    async def push(self, device: APNSDeviceToken) -> Push:
        """The next that was accepted for a device."""
        token = device.token.decode()
        after = self._after.get(token, 0)
        entries = await self.simulator.record.wait_for(token, after, TIMEOUT)
        assert entries, "no push came"
        self._after[token] = entries[0].seq
        return decode_push(entries[0].body.encode())

    def accepted(self, device: APNSDeviceToken) -> list[Push]:
        entries = self.simulator.record.select(token=device.token.decode(), accepted=True)
        return [decode_push(entry.body.encode()) for entry in entries]

    def attempts(self, device: APNSDeviceToken) -> int:
        return len(self.simulator.record.select(token=device.token.decode()))

    def skip(self, device: APNSDeviceToken) -> None:
        """What was accepted so far is of no interest."""
        entries = self.simulator.record.select(token=device.token.decode(), accepted=True)
        if entries:
            self._after[device.token.decode()] = entries[-1].seq

    async def is_quiet(self, device: APNSDeviceToken, seconds: float = QUIET) -> bool:
        token = device.token.decode()
        found = await self.simulator.record.wait_for(token, self._after.get(token, 0), seconds)
        return not found

    async def close(self) -> None:
        await self.simulator.close()


class SmpSide(World):
    """A messaging router that keeps its port."""

    async def start(self) -> None:
        port = int(self.address.port) if hasattr(self, "address") else 0
        await super().start()
        if port:
            await self.listener.close()
            self.listener = self.new_listener()
            await self.listener.start("127.0.0.1", port)
            host = decode_host("127.0.0.1")
            self.address = ServerAddress(Scheme.SMP, (host,), str(port), identity().fingerprint)


@dataclass
class Phone:
    """A client of the notification router with one device token."""

    world: "NtfWorld"
    client: Client
    device: APNSDeviceToken
    keys: KeyPair
    dh_keys: KeyPair
    token_id: bytes = b""
    secret: bytes = b""
    subscriptions: list[bytes] = field(default_factory=list)

    async def ask(self, command: Any, entity_id: bytes = b"", key: bytes | None = None) -> Any:
        """The answer, also if it is ERR."""
        return await ask(self.client, command, entity_id, self.keys.private if key is None else key)

    async def tnew(self) -> Any:
        answer = await self.ask(ntf.TNEW(self.device, self.keys.public, self.dh_keys.public))
        if isinstance(answer, ntf.IDTKN):
            self.token_id = answer.token_id
            self.secret = dh(answer.dh_key, self.dh_keys.private)
        return answer

    async def tvfy(self, code: bytes) -> Any:
        return await self.ask(ntf.TVFY(code), self.token_id)

    async def tchk(self) -> TokenStatus:
        answer = await self.ask(ntf.TCHK(), self.token_id)
        assert isinstance(answer, ntf.TKN), answer
        return answer.status

    async def trpl(self, device: APNSDeviceToken) -> Any:
        answer = await self.ask(ntf.TRPL(device), self.token_id)
        if answer == OK:
            self.device = device
        return answer

    async def code(self, apns: Apns | None = None) -> bytes:
        push = await (apns or self.world.apns).push(self.device)
        assert isinstance(push, VerificationPush), push
        return open_box_padded(self.secret, push.nonce, push.box)

    async def register(self) -> "Phone":
        """Until the token is active."""
        assert isinstance(await self.tnew(), ntf.IDTKN)
        assert await self.tvfy(await self.code()) == OK
        return self

    async def snew(
        self,
        queue: Queue,
        *,
        router: "SmpSide | None" = None,
        address: ServerAddress | None = None,
    ) -> Any:
        assert queue.notifier is not None
        address = address or (router or self.world.smp).address
        command = ntf.SNEW(
            self.token_id,
            SMPQueueNtf(address, queue.notifier_id),
            queue.notifier.auth.private,
        )
        return await self.ask(command)

    async def subscribe(
        self,
        queue: Queue,
        *,
        router: "SmpSide | None" = None,
        address: ServerAddress | None = None,
    ) -> bytes:
        """Until the messaging router has confirmed it."""
        answer = await self.snew(queue, router=router, address=address)
        assert isinstance(answer, ntf.IDSUB), answer
        subscription_id: bytes = answer.subscription_id
        self.subscriptions.append(subscription_id)
        await self.until_state(subscription_id, SubscriptionState.ACTIVE)
        return subscription_id

    async def schk(self, subscription_id: bytes) -> Any:
        answer = await self.ask(ntf.SCHK(), subscription_id)
        return answer.status if isinstance(answer, ntf.SUB) else answer

    async def until_state(self, subscription_id: bytes, state: SubscriptionState) -> None:
        async def is_so() -> bool:
            return (await self.schk(subscription_id)).state is state

        await eventually(is_so)

    async def until_status(self, status: TokenStatus) -> None:
        async def is_so() -> bool:
            return await self.tchk() is status

        await eventually(is_so)

    def open(self, push: Push) -> list[PNMessageData]:
        assert isinstance(push, MessagePush), push
        return decode_pn_messages(open_box_padded(self.secret, push.nonce, push.box))

    async def notified(self) -> list[PNMessageData]:
        """What the next push tells; it must be about messages."""
        return self.open(await self.world.apns.push(self.device))

    async def notified_of(self, *queues: Queue) -> None:
        """Wait until each of these queues was the subject of a push."""
        missing = {queue.notifier_id for queue in queues}
        while missing:
            missing -= {item.queue.notifier_id for item in await self.notified()}

    def was_notified(self, queue: Queue, msg_id: bytes) -> bool:
        """Whether an accepted push was about this message."""
        assert queue.notifier is not None
        return any(
            queue.notifier.decrypt(smp.NMSG(item.nonce, item.meta)).msg_id == msg_id
            for push in self.world.apns.accepted(self.device)
            if isinstance(push, MessagePush)
            for item in self.open(push)
            if item.queue.notifier_id == queue.notifier_id
        )

    async def is_quiet(self, seconds: float = QUIET) -> bool:
        return await self.world.apns.is_quiet(self.device, seconds)


async def ask(client: Client, command: Any, entity_id: bytes, key: bytes | None) -> Any:
    try:
        return await client.request(command, entity_id, key or None)
    except RequestRefused as exc:
        return ntf.ERR(exc.error)


async def ask_many(client: Client, requests: list[ClientRequest[Any]]) -> list[Any]:
    answers = await client.request_many(requests)
    return [ntf.ERR(item.error) if isinstance(item, RequestRefused) else item for item in answers]


class NtfWorld:
    """A notification router, a messaging router, a provider and phones."""

    def __init__(
        self,
        url: str,
        directory: Path,
        settings: NtfSettings = SETTINGS,
        *,
        beside: "NtfWorld | None" = None,
        payload_limit: int = PAYLOAD_LIMIT,
    ) -> None:
        """`beside` another, with which it shares everything but the router."""
        self.url = url
        self.directory = directory
        self.settings = settings
        self.journal = Notes("ntf")
        self.limits = Limits()
        self.apns: Apns = beside.apns if beside else Apns(directory / "apns", payload_limit)
        own = SmpSide(f"sqlite:///{directory}/smp.db", AT_ONCE)
        self.smp: SmpSide = beside.smp if beside else own
        self.providers: dict[PushProvider, Provider] = {}
        self.router: NtfRouter
        self.listener: Listener
        self.address: ServerAddress
        self.sender: Peer
        self.port = 0
        self._others: list[SmpSide] = []
        self.clients: list[Client] = []

    @property
    def events(self) -> list[Noted]:
        self.journal.check()
        return self.journal.events

    @property
    def routers(self) -> list[NtfRouter]:
        """The processes that are the router."""
        return [self.router]

    @property
    def journals(self) -> list[Notes]:
        """Of each of these processes."""
        return [self.journal]

    @property
    def in_flight(self) -> int:
        """Pushes whose outcome is not stored yet."""
        return sum(router.outbox.in_flight for router in self.routers)

    def counted(self, counter: str) -> int:
        """One of the statistics."""
        return sum(getattr(router.stats.counters, counter) for router in self.routers)

    async def start(self) -> None:
        await self.apns.start()
        await self.smp.start()
        await self.start_ntf()
        self.sender = await self.smp.connect()

    async def start_ntf(self) -> None:
        kinds = (PushProvider.APNS_TEST, PushProvider.APNS_PROD, PushProvider.APNS_DEV)
        apns = self.apns.new_provider()
        providers: dict[PushProvider, Provider] = dict.fromkeys(kinds, apns)
        providers |= {PushProvider.APNS_NULL: NullProvider()} | self.providers
        self.router = await NtfRouter.start(self.url, providers, self.settings, self.journal)
        self.listener = Listener(NTF, identity("NTF server CA"), self.router, limits=self.limits)
        self.port = await self.listener.start("127.0.0.1", self.port or steady_port())
        host = decode_host("127.0.0.1")
        fingerprint = identity("NTF server CA").fingerprint
        self.address = ServerAddress(Scheme.NTF, (host,), str(self.port), fingerprint)

    async def stop_ntf(self) -> None:
        for client in self.clients:
            await client.close()
        self.clients.clear()
        await self.listener.close()
        await self.router.close()
        self.journal.check()

    async def restart_ntf(self, *phones: Phone) -> None:
        await self.stop_ntf()
        await self.start_ntf()
        for phone in phones:
            phone.client = await self.connect()

    async def restart_smp(self) -> None:
        await self.smp.restart()
        self.sender = await self.smp.connect()

    async def another_smp(self) -> SmpSide:
        directory = self.directory / f"smp{len(self._others)}"
        directory.mkdir()
        smp = SmpSide(f"sqlite:///{directory}/smp.db", AT_ONCE)
        await smp.start()
        self._others.append(smp)
        return smp

    async def stop(self) -> None:
        await self.stop_ntf()
        for router in (self.smp, *self._others):
            await router.stop()
        await self.apns.close()

    async def connect(self, version: int = 3, *, use_alpn: bool = True) -> Client:
        config = ClientConfig(versions=VersionRange(1, version), use_alpn=use_alpn)
        client = await Client.connect(self.address, config)
        self.clients.append(client)
        return client

    async def phone(
        self,
        device: APNSDeviceToken | None = None,
        *,
        algorithm: Algorithm = Algorithm.X25519,
        version: int = 3,
        client: Client | None = None,
    ) -> Phone:
        """One that has not registered yet."""
        return Phone(
            self,
            client or await self.connect(version),
            device or a_device(),
            generate_key_pair(algorithm),
            generate_key_pair(Algorithm.X25519),
        )

    async def registered(self, device: APNSDeviceToken | None = None, **options: Any) -> Phone:
        return await (await self.phone(device, **options)).register()

    async def queue(self) -> Queue:
        return await create_notified(self.sender)

    async def queues(self, count: int) -> list[Queue]:
        return [await self.queue() for _ in range(count)]

    async def send(self, *queues: Queue) -> None:
        for queue in queues:
            assert await queue.send(self.sender, b"hello") == ntf.OK()

    async def send_and_receive(self, queue: Queue) -> bytes:
        """Send a message, and be its recipient; the result is its ID."""
        await self.send(queue)
        message = await queue.get(self.sender)
        assert isinstance(message, smp.MSG), message
        assert await queue.ack(self.sender, message) == ntf.OK()
        return bytes(message.msg_id)

    async def read(self, function: Callable[[Transaction], Any]) -> Any:
        return await self.router.store.read(function)

    async def make_wake_ups_due(self) -> None:
        """Make all periodic wake-ups due, as if their time had come."""
        sql = "UPDATE tokens SET cron_due_at = 1 WHERE cron_due_at IS NOT NULL"
        await self.router.store.database.write(lambda tx: tx.execute(sql))

    async def pending_pushes(self) -> int:
        [[count]] = await self.read(lambda tx: tx.query("SELECT COUNT(*) FROM pending_pushes"))
        return int(count)

    async def until_none_pending(self) -> None:
        async def is_so() -> bool:
            return await self.pending_pushes() == 0

        await eventually(is_so)


@asynccontextmanager
async def a_world(
    url: str, directory: Path, settings: NtfSettings = SETTINGS
) -> AsyncIterator[NtfWorld]:
    world = NtfWorld(url, directory, settings)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()


def now_ms() -> int:
    return int(time.time() * 1000)


__all__ = ["CheckMessagesPush", "PushKind"]
