"""Services: SUBS, NSUBS, and which service receives the messages of a queue."""

import asyncio
import logging

from heliograph.db.errors import DatabaseError
from heliograph.smp.clients.clients import SmpClient
from heliograph.smp.commands.messages import MessageCommands
from heliograph.smp.commands.service_subscriptions import ServiceSubscriptions
from heliograph.smp.context import CommandContext
from heliograph.smp.store.store import EntityKind
from heliograph.tasks import TaskScope
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.requests import Request
from heliograph.wire.smp import SmpResponse
from heliograph.wire.versions import SMP_SERVICE_HASH

logger = logging.getLogger(__name__)

QUEUES_PER_PAGE = 100
RETRY_DELAY = 1.0
DRAIN_INTERVAL = 0.05


class ServiceCommands:
    def __init__(
        self,
        context: CommandContext,
        services: ServiceSubscriptions,
        messages: MessageCommands,
        tasks: TaskScope,
    ) -> None:
        self._context = context
        self._services = services
        self._messages = messages
        self._tasks = tasks
        self._subscribed: set[SmpClient] = set()
        """Clients that sent SUBS and wait for the messages of their service."""
        self._delivering: set[SmpClient] = set()

    def nsubs(self, client: SmpClient, request: Request[smp.NSUBS], _: None) -> SmpResponse | None:
        service = self._context.services[request.entity_id]
        self._services.take_all(client, service)
        self._context.delivery.service_subscribed(client, service)
        return smp.SOKS(service.count, service.ids_hash)

    def subs(self, client: SmpClient, request: Request[smp.SUBS], _: None) -> SmpResponse | None:
        """Subscribe to all queues of the service; their first messages follow, then ALLS."""
        if client.established.session.version < SMP_SERVICE_HASH:
            return smp.ERR(ErrorCode.CMD_PROHIBITED)
        service = self._context.services[request.entity_id]
        self._services.take_all(client, service)
        self._subscribed.add(client)
        if client not in self._delivering:
            self._delivering.add(client)
            deliver = self._deliver(client, service.service_id)
            self._tasks.spawn(deliver, name="deliver messages of a service")
        return smp.SOKS(service.count, service.ids_hash)

    async def _deliver(self, client: SmpClient, service_id: bytes) -> None:
        """Deliver once for all SUBS that a client sends meanwhile, one delivery at a time."""
        try:
            while client in self._subscribed:
                self._subscribed.discard(client)
                await self._deliver_all(client, service_id)
        finally:
            self._subscribed.discard(client)
            self._delivering.discard(client)

    async def _deliver_all(self, client: SmpClient, service_id: bytes) -> None:
        context, after = self._context, b""
        while client.serving is not None:
            try:
                page = await context.store.waiting_queues(service_id, after, QUEUES_PER_PAGE)
                await context.queues.load({(EntityKind.RECIPIENT, queue_id) for queue_id in page})
            except DatabaseError as exc:
                logger.error("loading the queues of a service failed, retrying: %s", exc)
                await asyncio.sleep(RETRY_DELAY)
                continue
            for queue_id in page:
                queue = context.queues.get(EntityKind.RECIPIENT, queue_id)
                if queue is not None and queue.service_id == service_id:
                    self._messages.deliver_first(client, queue)
            await context.store.settled()
            while client.waiting and client.is_connected:  # noqa: ASYNC110 - it is not reading
                await asyncio.sleep(DRAIN_INTERVAL)
            if len(page) < QUEUES_PER_PAGE:
                break
            after = page[-1]
        if client.serving is not None:
            context.outgoing.push(client, b"", smp.ALLS())
            context.outgoing.flush()
