"""What the operator of a router does to queues: find, block, unblock and delete them."""

import asyncio

from heliograph.smp.commands.queues import QueueCommands
from heliograph.smp.context import CommandContext
from heliograph.smp.store.records import QueueRecord, QueueStatus
from heliograph.smp.store.store import EntityKind
from heliograph.wire import smp
from heliograph.wire.errors import BLOCKED


class QueueOperator:
    """Operators name queues by the sender ID or link ID, which are in links that are reported.

    Every method raises `DatabaseError` if the store fails.
    """

    def __init__(self, context: CommandContext, queues: QueueCommands) -> None:
        self._context = context
        self._queues = queues

    async def find(self, entity_id: bytes) -> QueueRecord | None:
        names = [(EntityKind.SENDER, entity_id), (EntityKind.LINK, entity_id)]
        await self._context.queues.load(set(names))
        found = (self._context.queues.get(*name) for name in names)
        return next((queue for queue in found if queue is not None), None)

    async def block(self, queue: QueueRecord, reason: BLOCKED) -> None:
        """Block a queue, and report it to its subscriber."""
        context = self._context
        if queue.status is QueueStatus.ACTIVE:
            context.observer.queue_blocked()
        queue.status, queue.blocked = QueueStatus.BLOCKED, reason
        context.change(queue)
        await self._durable()
        subscriber = context.subscribers.of_queue(queue)
        if subscriber is not None:
            context.outgoing.push(subscriber, queue.recipient_id, smp.ERR(reason))
            context.outgoing.flush()

    async def unblock(self, queue: QueueRecord) -> None:
        queue.status, queue.blocked = QueueStatus.ACTIVE, None
        self._context.change(queue)
        await self._durable()

    async def delete(self, queue: QueueRecord) -> int:
        """Delete a queue; return the number of its messages."""
        messages = queue.size
        self._queues.remove(queue)
        await self._durable()
        self._context.outgoing.flush()
        return messages

    async def _durable(self) -> None:
        changes = self._context.store.changes
        done = asyncio.get_running_loop().create_future()
        changes.then(lambda _: done.set_result(None), done.set_exception)
        self._context.store.commit()
        await done
