"""Helpers of the tests of notifications: routers, a provider, and an agent's share of them."""

import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heliograph.agent.clients import ClientPool, ClientSettings
from heliograph.agent.connections import queues
from heliograph.agent.connections.queues import NewRcvQueue
from heliograph.agent.connections.servers import server_for
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.context import NotificationSettings
from heliograph.agent.notifications.records import NtfSubscription, NtfToken, SubAction
from heliograph.agent.notifications.service import Notifications
from heliograph.agent.records import RcvQueue, TokenInfo
from heliograph.agent.store import AgentStore
from heliograph.crypto.boxes import open_box_padded
from heliograph.crypto.keys import dh, generate_key_pair
from heliograph.db.dialects import Transaction
from heliograph.transport.client import Client, ClientConfig, ClientRequest
from heliograph.wire import smp
from heliograph.wire.keys import Algorithm
from heliograph.wire.ntf.push import MessagePush, Push, VerificationPush, decode_pn_messages
from heliograph.wire.ntf.tokens import (
    APNSDeviceToken,
    NotificationsMode,
    SubscriptionState,
    TokenStatus,
)
from heliograph.wire.smp.fields import MsgFlags, QueueMode, QueueReqData, SubscriptionMode
from tests.agent.notifications.settings import FAST, SETTINGS as SETTINGS
from tests.agent.places import place_of
from tests.agent.support import Router
from tests.ntf.support import NtfWorld, a_device
from tests.waiting import eventually

INSTANT, PERIODIC, OFF = NotificationsMode
DAY = 86_400.0
CLIENTS = ClientSettings(
    config=ClientConfig(connect_timeout=5.0, request_timeout=5.0), backoff=FAST
)
TIMEOUT = 30.0


class Clock:
    """The time of day, which tests set."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass
class Rig:
    """One agent's notifications, over a store that outlives them."""

    directory: Path
    world: NtfWorld
    settings: NotificationSettings = SETTINGS
    passphrase: str | None = None
    clock: Clock = field(default_factory=Clock)
    heard: list[TokenInfo | None] = field(default_factory=list)
    device: APNSDeviceToken = field(default_factory=a_device)
    store: AgentStore = field(init=False)
    clients: ClientPool = field(init=False)
    ntf: Notifications = field(init=False)
    is_open: bool = False

    async def open(self, *, start: bool = True) -> "Rig":
        self.store = await AgentStore.open(place_of(self.directory), self.passphrase)
        self.clients = ClientPool(CLIENTS)
        self.ntf = Notifications(
            self.store,
            self.clients,
            self.settings,
            clock=self.clock,
            on_token=self.heard.append,
        )
        self.is_open = True
        if start:
            await self.ntf.start()
        return self

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            await self.ntf.stop()
            await self.clients.close()
            await self.store.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    # The token.

    async def ask(self, mode: NotificationsMode = INSTANT) -> TokenStatus:
        return await self.ntf.register_token(self.device, mode, self.world.address)

    async def pushed(self, kind: type = VerificationPush) -> Any:
        """The next push of a kind; others are passed over."""
        while True:
            push = await self.world.apns.push(self.device)
            if isinstance(push, kind):
                return push

    async def verify(self) -> TokenStatus:
        push = await self.pushed()
        return await self.ntf.verify_token(push.nonce, push.box)

    async def register(self, mode: NotificationsMode = INSTANT) -> None:
        """Until the token is active."""
        assert await self.ask(mode) is TokenStatus.REGISTERED
        assert await self.verify() is TokenStatus.ACTIVE

    async def token(self) -> NtfToken:
        token = await self.find_token()
        assert token is not None
        return token

    async def find_token(self) -> NtfToken | None:
        return await self.store.read(lambda tx: ntf_store.load_token(tx, self.store.vault))

    async def until_status(self, status: TokenStatus) -> None:
        async def is_so() -> bool:
            token = await self.find_token()
            return token is not None and token.status is status

        await eventually(is_so, TIMEOUT)

    # Connections.

    async def connect(self, router: Router, count: int = 1, *, create: bool = True) -> list[str]:
        """Connections with a queue each; for what they are to be notified of, if `create`."""
        client = await self.clients.smp(router.address, at_once=True)
        keys = [tuple(generate_key_pair(Algorithm.X25519) for _ in range(3)) for _ in range(count)]
        answers = await client.request_many(
            [
                ClientRequest(
                    smp.NEW(
                        auth.public,
                        secret.public,
                        None,
                        SubscriptionMode.CREATE_ONLY,
                        QueueReqData(QueueMode.MESSAGING),
                        None,
                    ),
                    b"",
                    auth.private,
                )
                for auth, secret, _ in keys
            ]
        )
        conn_ids = [os.urandom(8).hex() for _ in range(count)]

        def add(tx: Transaction) -> None:
            for conn_id, (auth, secret, e2e), ids in zip(conn_ids, keys, answers, strict=True):
                assert isinstance(ids, smp.IDS), ids
                queues.add_connection(tx, conn_id, 0)
                self._add_queue(tx, router, conn_id, ids, auth.private, secret.private, e2e.private)

        await self.store.write(add)
        if create:
            await self.ntf.create(conn_ids)
        return conn_ids

    def _add_queue(
        self,
        tx: Transaction,
        router: Router,
        conn_id: str,
        ids: smp.IDS,
        auth: bytes,
        secret: bytes,
        e2e: bytes,
        replaces: int | None = None,
    ) -> None:
        queues.add_rcv_queue(
            tx,
            self.store.vault,
            conn_id,
            NewRcvQueue(
                router.address,
                ids.rcv_id,
                ids.snd_id,
                auth,
                dh(ids.dh_key, secret),
                e2e,
                sender_can_secure=True,
            ),
            replaces,
        )

    async def rotate(self, conn_id: str, router: Router) -> RcvQueue:
        """Give a connection a queue at another router. The result is the one it had."""
        old = await self.queue(conn_id)
        client = await self.clients.smp(router.address, at_once=True)
        auth, secret, e2e = (generate_key_pair(Algorithm.X25519) for _ in range(3))
        command = smp.NEW(
            auth.public,
            secret.public,
            None,
            SubscriptionMode.CREATE_ONLY,
            QueueReqData(QueueMode.MESSAGING),
            None,
        )
        ids = await client.request(command, b"", auth.private)
        assert isinstance(ids, smp.IDS), ids
        await self.store.write(
            lambda tx: self._add_queue(
                tx, router, conn_id, ids, auth.private, secret.private, e2e.private, old.queue_id
            )
        )
        return old

    async def queue(self, conn_id: str) -> RcvQueue:
        found = await self.store.read(
            lambda tx: queues.rcv_queues_of(tx, self.store.vault, [conn_id])
        )
        return found[-1]

    async def moved(self, router: Router) -> None:
        """Give the agent the new address of a router."""
        await self.store.write(lambda tx: server_for(tx, router.address, trusted=True))
        self.clients.moved(router.address)

    async def enable(self, conn_id: str, enable: bool) -> None:
        await self.store.write(lambda tx: queues.set_enable_ntfs(tx, conn_id, enable))
        await (self.ntf.create if enable else self.ntf.delete)([conn_id])

    async def send(self, conn_id: str) -> None:
        """Send a message to a connection's queue."""
        queue = await self.queue(conn_id)
        client = await Client.connect(queue.address)
        try:
            command = smp.SEND(MsgFlags(True), b"hello")
            assert await client.request(command, queue.snd_id) == smp.OK()
        finally:
            await client.close()

    async def notified(self, conn_id: str) -> None:
        """Send a message, and wait for the push that tells of it."""
        self.world.apns.skip(self.device)
        await self.send(conn_id)
        queue, token = await self.queue(conn_id), await self.token()
        assert queue.notifier is not None
        assert token.dh_secret is not None
        wanted = queue.notifier.notifier_id
        while True:
            push: Push = await self.pushed(MessagePush)
            assert isinstance(push, MessagePush)
            items = decode_pn_messages(open_box_padded(token.dh_secret, push.nonce, push.box))
            if any(item.queue.notifier_id == wanted for item in items):
                return

    async def sub(self, conn_id: str) -> NtfSubscription | None:
        return {sub.conn_id: sub for sub in await self.ntf.subscriptions()}.get(conn_id)

    async def until_action(self, conn_ids: Sequence[str], action: SubAction | None) -> None:
        async def is_so() -> bool:
            subs = {sub.conn_id: sub.action for sub in await self.ntf.subscriptions()}
            return all(conn_id in subs and subs[conn_id] is action for conn_id in conn_ids)

        await eventually(is_so, TIMEOUT)

    async def until_subscribed(self, conn_ids: Sequence[str]) -> None:
        """Until both routers know of them."""
        await self.until_action(conn_ids, SubAction.NTF_CHECK)
        await self.until_active(len(conn_ids))

    async def until_active(self, count: int) -> None:
        """Until the notification router has so many subscriptions that are active."""

        async def is_so() -> bool:
            return await self.count_active() == count

        await eventually(is_so, TIMEOUT)

    async def count_active(self) -> int:
        return await self.count_at_router("status = 'ACTIVE'")

    async def count_at_router(self, which: str = "1 = 1") -> int:
        [[count]] = await self.world.read(
            lambda tx: tx.query(f"SELECT COUNT(*) FROM subscriptions WHERE {which}")
        )
        return int(count)

    async def until_none(self, conn_ids: Sequence[str]) -> None:
        async def is_so() -> bool:
            subs = {sub.conn_id for sub in await self.ntf.subscriptions()}
            return not subs & set(conn_ids)

        await eventually(is_so, TIMEOUT)

    async def states(self) -> list[SubscriptionState | None]:
        return [sub.state for sub in await self.ntf.subscriptions()]


class AgentWorld:
    """A notification router, a provider, messaging routers, and agents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "ntf").mkdir()
        self.ntf = NtfWorld(f"sqlite:///{directory}/ntf/ntf.db", directory)
        self._smp: list[Router] = []
        self._rigs: list[Rig] = []

    async def start(self) -> None:
        await self.ntf.start()

    async def stop(self) -> None:
        for rig in self._rigs:
            await rig.close()
        for router in self._smp:
            await router.stop()
        await self.ntf.stop()

    async def smp(self) -> Router:
        router = Router(self.directory, f"smp-{len(self._smp)}")
        await router.start()
        self._smp.append(router)
        return router

    async def move(self, router: Router) -> None:
        """To another port, with its identity and its store."""
        await router.stop()
        await router.start(port=0)

    async def rig(self, **options: Any) -> Rig:
        """An agent that runs."""
        rig = self.new_rig(**options)
        return await rig.open()

    def new_rig(self, directory: Path | None = None, **options: Any) -> Rig:
        directory = directory or self.directory / f"agent{len(self._rigs)}"
        rig = Rig(directory, self.ntf, **options)
        self._rigs.append(rig)
        return rig

    async def stop_ntf(self) -> None:
        await self.ntf.stop_ntf()

    async def start_ntf(self) -> None:
        await self.ntf.start_ntf()

    async def lose_ntf_data(self) -> None:
        """The notification router comes back with nothing but its identity."""
        await self.stop_ntf()
        shutil.rmtree(self.directory / "ntf")
        (self.directory / "ntf").mkdir()
        await self.start_ntf()


@contextlib.asynccontextmanager
async def agent_world(directory: Path) -> AsyncIterator[AgentWorld]:
    world = AgentWorld(directory)
    await world.start()
    try:
        yield world
    finally:
        await world.stop()
