"""Background work of an agent: receive, send, delete, resubscribe, and watch the store."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from heliograph.agent import pending
from heliograph.agent.clients import ClientPool, ClientSettings
from heliograph.agent.connections import queues, servers
from heliograph.agent.connections.deleting import Deleter
from heliograph.agent.connections.subscribing import QueueSubscriptions
from heliograph.agent.errors import AgentError
from heliograph.agent.events import (
    AgentEvent,
    ConnectionReady,
    RouterConnected,
    RouterDisconnected,
    TokenChanged,
)
from heliograph.agent.keys import Cost
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.inbox import Change, Receipt
from heliograph.agent.messages.receiving import Receiver, delivered
from heliograph.agent.messages.sending import Sender
from heliograph.agent.notifications.context import NotificationSettings
from heliograph.agent.notifications.service import Notifications
from heliograph.agent.operations import ConnectionOperations, CreatedQueue
from heliograph.agent.records import RcvQueue
from heliograph.agent.routing.modes import RoutingSettings
from heliograph.agent.routing.routes import Routes
from heliograph.agent.store import AgentStore, now_ms
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.tasks import TaskScope
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
    ntf: NotificationSettings = field(default_factory=NotificationSettings)
    proxy: RoutingSettings = field(default_factory=RoutingSettings)
    cost: Cost = field(default_factory=Cost)
    workers: bool = True
    poll_interval: float = 1.0
    """Seconds between checks whether the other process has written."""
    max_unhandled: int = 1000
    """Maximum unacknowledged messages of a connection; more stay at the router."""
    remember_days: int = 30
    """Days to recognize duplicates of a handled message; longer than routers keep one."""


class WakeUp:
    """A condition without a lock. Take `next` before checking, so that no wake-up is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        return self._event

    def notify_all(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


class Engine:
    """The parts of an agent, wired together."""

    def __init__(
        self, store: AgentStore, settings: AgentSettings, on_event: OnEvent | None
    ) -> None:
        self._settings = settings
        self._on_event = on_event
        self._tasks = TaskScope()
        self._held: dict[int, RcvQueue] = {}
        self.wake_up = WakeUp()
        self.is_closed = False
        self.store = store
        self.clients = ClientPool(
            settings.clients,
            on_received=self._received,
            on_connected=self._connected,
            on_disconnected=self._disconnected,
        )
        self._receiver = Receiver(store, settings.max_unhandled, self._stored, self._unacknowledged)
        routes = Routes(self.clients, settings.proxy, settings.clients.config)
        self.connections = ConnectionOperations(store, self.clients, routes, self._receiver)
        self.sender = Sender(store, self.clients, routes, settings.retry, self._report)
        self.deleter = Deleter(store, self.clients, settings.retry)
        self.subscriptions = QueueSubscriptions(store, self.clients, settings.retry, self._report)
        self.notifications = Notifications(
            store,
            self.clients,
            settings.ntf,
            on_token=lambda token: self._report(TokenChanged(token)),
        )

    async def start(self) -> None:
        """Resume stored work."""
        before = now_ms() - self._settings.remember_days * DAY_MS
        await self.store.write(lambda tx: messages.forget_handled(tx, before))
        await self.sender.kick_all()
        if self._settings.workers:
            await self.notifications.start()
        self._tasks.spawn(self._watch(), name="agent store watcher")

    async def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.wake_up.notify_all()
        await self._tasks.close()
        await self.notifications.stop()
        await self.sender.close()
        await self.deleter.close()
        await self.subscriptions.close()
        await self._receiver.close()
        await self.clients.close()
        await self.store.close()

    async def has_work(self) -> bool:
        await self.notifications.commands_stored()
        return await pending.has_work(self.store, self._settings.ntf, time.time())

    async def queue_added(self, created: CreatedQueue) -> None:
        self.subscriptions.created(created.queue, created.client)
        await self.notify([created.queue.conn_id])

    async def notify(self, conn_ids: Iterable[str]) -> None:
        """Create or delete the notification subscriptions of connections, as each is configured."""
        wanted = list(conn_ids)
        found = await self.store.read(lambda tx: queues.find_connections(tx, wanted))
        await self.notifications.create([c.conn_id for c in found if c.enable_ntfs])
        await self.notifications.delete([c.conn_id for c in found if not c.enable_ntfs])

    async def release(self) -> None:
        """Resubscribe queues that were paused, if their connections have room for more messages."""
        held, self._held = self._held, {}
        counts = await self.store.read(
            lambda tx: messages.count_unhandled_by_connection(
                tx, [queue.conn_id for queue in held.values()]
            )
        )
        for queue in held.values():
            if counts.get(queue.conn_id, 0) < self._settings.max_unhandled:
                self.subscriptions.repeat(queue)
            else:
                self._held[queue.queue_id] = queue

    # Callbacks.

    def _received(self, client: Client, entity_id: bytes, message: object) -> None:
        match message:
            case smp.MSG():
                self._receiver.put(delivered(client, entity_id, message))
            case smp.END():
                self.subscriptions.ended(client, entity_id)
            case smp.DELD():
                self._tasks.spawn(self.subscriptions.deleted(client, entity_id), name="agent DELD")

    def _stored(self, receipt: Receipt) -> None:
        if not receipt.acknowledge:
            self._held[receipt.queue.queue_id] = receipt.queue
        if Change.WORK in receipt.changes:
            self.sender.wake(receipt.queue.conn_id)
        if Change.QUEUES in receipt.changes:
            self.deleter.wake()
            self._tasks.spawn(self.subscriptions.refresh(), name="agent subscriptions")
        if Change.READY in receipt.changes:
            self._report(ConnectionReady(receipt.queue.conn_id))
        self.wake_up.notify_all()

    def _unacknowledged(self, queue: RcvQueue) -> None:
        """Resubscribe, so that the router redelivers the message, which is then acknowledged."""
        if not self.is_closed:
            self.subscriptions.repeat(queue)

    def _connected(self, client: Client) -> None:
        self.subscriptions.connected(client)
        self.sender.router_connected()
        self.deleter.wake()
        self._report(RouterConnected(client.address))

    def _disconnected(self, client: Client) -> None:
        self.subscriptions.disconnected(client)
        self._report(RouterDisconnected(client.address))

    def _report(self, event: AgentEvent) -> None:
        self.wake_up.notify_all()
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                logger.exception("the event handler of the application failed")

    async def _watch(self) -> None:
        """Reload from the store whenever either process has written to it."""
        seen = 0
        while True:
            await asyncio.sleep(self._settings.poll_interval)
            try:
                version = await self.store.data_version()
                if version != seen:
                    seen = version
                    await self._reload()
            except (DatabaseError, AgentError) as exc:
                logger.warning("changes of the store cannot be read now, retrying: %s", exc)

    async def _reload(self) -> None:
        for address in await self.store.read(servers.addresses):
            self.clients.moved(address)
        await self.sender.kick_all()
        await self.subscriptions.refresh()
        await self.release()
        await self.notifications.wake_pending()
        self.deleter.wake()
        self.wake_up.notify_all()
