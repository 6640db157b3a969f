"""What an agent does by itself: receive, send, delete, subscribe again, and watch the store."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from heliograph.agent import messages, pending, queues, servers
from heliograph.agent.clients import Clients, ClientSettings
from heliograph.agent.connections import Connections, Created
from heliograph.agent.deleting import Deleter
from heliograph.agent.errors import AgentError
from heliograph.agent.events import (
    AgentEvent,
    ConnectionReady,
    RouterConnected,
    RouterDisconnected,
    TokenChanged,
)
from heliograph.agent.inbox import Change, Receipt
from heliograph.agent.keys import Cost
from heliograph.agent.ntf_context import NtfSettings
from heliograph.agent.ntf_service import Notifications
from heliograph.agent.receiving import Receiver, delivered
from heliograph.agent.records import RcvQueue
from heliograph.agent.sending import Sender
from heliograph.agent.store import Store, now_ms
from heliograph.agent.subscribing import Subscriptions
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import Client
from heliograph.wire import smp

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000

OnEvent = Callable[[AgentEvent], None]


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Times in seconds. `workers` off is for a short-lived process beside another: it sends and
    receives, and leaves notification subscriptions to the other."""

    clients: ClientSettings = field(default_factory=ClientSettings)
    retry: Backoff = field(default_factory=lambda: Backoff(first=1.0, last=60.0))
    ntf: NtfSettings = field(default_factory=NtfSettings)
    cost: Cost = field(default_factory=Cost)
    workers: bool = True
    poll_interval: float = 1.0
    """How often it is looked whether the other process has written."""
    max_unhandled: int = 1000
    """With so many unacknowledged messages of a connection, others stay at the router."""
    remember_days: int = 30
    """How long a handled message is known again; longer than any router keeps one."""


class Pulse:
    """Wakes whoever waits. Take `next` before looking, so that no beat is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        return self._event

    def beat(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


class Engine:
    def __init__(self, store: Store, settings: AgentSettings, on_event: OnEvent | None) -> None:
        self._settings = settings
        self._on_event = on_event
        self._tasks: set[asyncio.Task[Any]] = set()
        self._held: dict[int, RcvQueue] = {}
        self.pulse = Pulse()
        self.is_closed = False
        self.store = store
        self.clients = Clients(
            settings.clients,
            on_received=self._received,
            on_connected=self._connected,
            on_disconnected=self._disconnected,
        )
        self._receiver = Receiver(store, settings.max_unhandled, self._stored, self._unacknowledged)
        self.connections = Connections(store, self.clients, self._receiver)
        self.sender = Sender(store, self.clients, settings.retry, self._report)
        self.deleter = Deleter(store, self.clients, settings.retry)
        self.subscriptions = Subscriptions(store, self.clients, settings.retry, self._report)
        self.notifications = Notifications(
            store,
            self.clients,
            settings.ntf,
            on_token=lambda token: self._report(TokenChanged(token)),
        )

    async def start(self) -> None:
        """Go on with whatever is stored."""
        before = now_ms() - self._settings.remember_days * DAY_MS
        await self.store.write(lambda tx: messages.forget_handled(tx, before))
        await self.sender.kick_all()
        if self._settings.workers:
            await self.notifications.start()
        self._spawn(self._watch())

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.pulse.beat()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.notifications.stop()
        await self.sender.close()
        await self.deleter.close()
        await self.subscriptions.close()
        await self._receiver.close()
        await self.clients.close()
        await self.store.close()

    async def has_work(self) -> bool:
        await self.notifications.settled()
        return await pending.has_work(self.store, self._settings.ntf, time.time())

    async def queue_added(self, created: Created) -> None:
        self.subscriptions.created(created.queue, created.client)
        await self.notify([created.queue.conn_id])

    async def notify(self, conn_ids: Iterable[str]) -> None:
        """Have subscriptions for notifications made, or deleted, as each connection wants."""
        wanted = list(conn_ids)
        found = await self.store.read(lambda tx: queues.find_connections(tx, wanted))
        await self.notifications.create([c.conn_id for c in found if c.enable_ntfs])
        await self.notifications.delete([c.conn_id for c in found if not c.enable_ntfs])

    async def release(self) -> None:
        """Have delivered again what was held back, as far as there is room now."""
        held, self._held = self._held, {}
        counts = await self.store.read(
            lambda tx: messages.of_connections(tx, [queue.conn_id for queue in held.values()])
        )
        for queue in held.values():
            if counts.get(queue.conn_id, 0) < self._settings.max_unhandled:
                self.subscriptions.repeat(queue)
            else:
                self._held[queue.queue_id] = queue

    # What happens.

    def _received(self, client: Client, entity_id: bytes, message: object) -> None:
        match message:
            case smp.MSG():
                self._receiver.put(delivered(client, entity_id, message))
            case smp.END():
                self.subscriptions.ended(client, entity_id)
            case smp.DELD():
                self._spawn(self.subscriptions.deleted(client, entity_id))

    def _stored(self, receipt: Receipt) -> None:
        if not receipt.acknowledge:
            self._held[receipt.queue.queue_id] = receipt.queue
        if Change.WORK in receipt.changes:
            self.sender.kick(receipt.queue.conn_id)
        if Change.QUEUES in receipt.changes:
            self.deleter.kick()
            self._spawn(self.subscriptions.refresh())
        if Change.READY in receipt.changes:
            self._report(ConnectionReady(receipt.queue.conn_id))
        self.pulse.beat()

    def _unacknowledged(self, queue: RcvQueue) -> None:
        """The router sends it again, and then nothing is left to do but acknowledge it."""
        if not self.is_closed:
            self.subscriptions.repeat(queue)

    def _connected(self, client: Client) -> None:
        self.subscriptions.connected(client)
        self.sender.router_connected()
        self.deleter.kick()
        self._report(RouterConnected(client.address))

    def _disconnected(self, client: Client) -> None:
        self.subscriptions.disconnected(client)
        self._report(RouterDisconnected(client.address))

    def _report(self, event: AgentEvent) -> None:
        self.pulse.beat()
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("the handler of events failed")

    async def _watch(self) -> None:
        """Look at the store again whenever someone has written to it."""
        seen = 0
        while True:
            await asyncio.sleep(self._settings.poll_interval)
            try:
                version = await self.store.data_version()
                if version != seen:
                    seen = version
                    await self._look_again()
            except (DatabaseError, AgentError) as exc:
                logger.warning("the store failed: %s", exc)

    async def _look_again(self) -> None:
        for address in await self.store.read(servers.addresses):
            self.clients.moved(address)
        await self.sender.kick_all()
        await self.subscriptions.refresh()
        await self.release()
        await self.notifications.look_again()
        self.deleter.kick()
        self.pulse.beat()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the agent failed", exc_info=task.exception())
