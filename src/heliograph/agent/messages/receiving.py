"""Receives messages from routers: stores, then acknowledges, then reports them.

Messages that arrive together are stored in one transaction. The next message of a queue comes only
after the acknowledgement, so memory is bounded by the number of subscribed queues.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heliograph.agent.errors import AgentError
from heliograph.agent.messages.inbox import Arrival, Receipt, receive
from heliograph.agent.records import RcvQueue
from heliograph.agent.store import AgentStore, now_ms
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.tasks import TaskScope
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

MAX_BATCH = 500
RETRY_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """An MSG, with the connection on which it must be acknowledged."""

    client: Client
    arrival: Arrival


Received = Callable[[Receipt], None]
"""Called once a message is stored, or left at the router."""


def delivered(client: Client, rcv_id: bytes, message: smp.MSG) -> DeliveredMessage:
    fingerprint = client.address.fingerprint
    return DeliveredMessage(client, Arrival(fingerprint, rcv_id, message.msg_id, message.body))


class Receiver:
    def __init__(
        self,
        store: AgentStore,
        max_unhandled: int,
        on_received: Received,
        on_unacknowledged: Callable[[RcvQueue], None],
    ) -> None:
        """`on_unacknowledged` is called with a queue whose acknowledgement failed."""
        self._store = store
        self._max_unhandled = max_unhandled
        self._on_received = on_received
        self._on_unacknowledged = on_unacknowledged
        self._waiting: asyncio.Queue[DeliveredMessage] = asyncio.Queue()
        self._acknowledging = TaskScope()
        self._tasks = TaskScope()
        self._tasks.spawn(self._run(), name="agent inbox")

    def put(self, item: DeliveredMessage) -> None:
        self._waiting.put_nowait(item)

    async def take(self, item: DeliveredMessage) -> Receipt | None:
        """Store and acknowledge a message that was fetched (GET)."""
        [receipt] = await self._store_all([item])
        if receipt is not None:
            await self._acknowledge([(item, receipt)])
        return receipt

    async def close(self) -> None:
        await self._tasks.close()
        await self._acknowledging.wait()

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while not self._waiting.empty() and len(batch) < MAX_BATCH:
                batch.append(self._waiting.get_nowait())
            receipts = await self._persistently(batch)
            taken = [
                (item, receipt)
                for item, receipt in zip(batch, receipts, strict=True)
                if receipt is not None
            ]
            self._acknowledging.spawn(self._acknowledge(taken), name="agent ACK")

    async def _persistently(self, batch: Sequence[DeliveredMessage]) -> list[Receipt | None]:
        while True:
            try:
                return await self._store_all(batch)
            except (DatabaseError, AgentError) as exc:
                logger.warning(
                    "received messages cannot be stored; their routers redeliver them: %s", exc
                )
            except Exception:
                logger.exception("a received message cannot be processed; it stays at its router")
                if len(batch) == 1:
                    return [None]  # it stays at the router, and blocks only its queue
                return [(await self._persistently([item]))[0] for item in batch]
            await asyncio.sleep(RETRY_DELAY)

    async def _store_all(self, batch: Sequence[DeliveredMessage]) -> list[Receipt | None]:
        now, vault = now_ms(), self._store.vault

        def store(tx: Transaction) -> list[Receipt | None]:
            return [receive(tx, vault, item.arrival, now, self._max_unhandled) for item in batch]

        receipts = await self._store.write(store)
        for receipt in receipts:
            if receipt is not None:
                self._on_received(receipt)
        return receipts

    async def _acknowledge(self, taken: Sequence[tuple[DeliveredMessage, Receipt]]) -> None:
        """Acknowledge messages; an answer may be the next one. Unacknowledged ones come again."""
        by_client: dict[Client, list[tuple[DeliveredMessage, RcvQueue]]] = {}
        for item, receipt in taken:
            if receipt.acknowledge:
                by_client.setdefault(item.client, []).append((item, receipt.queue))
        for client, items in by_client.items():
            requests = [
                ClientRequest(smp.ACK(item.arrival.msg_id), queue.rcv_id, queue.recipient_key)
                for item, queue in items
            ]
            answers = await client.request_many(requests)
            for (item, queue), answer in zip(items, answers, strict=True):
                self._answered(item, queue, answer)

    def _answered(
        self, item: DeliveredMessage, queue: RcvQueue, answer: smp.MSG | smp.OK | ClientError
    ) -> None:
        if isinstance(answer, smp.MSG):
            self.put(delivered(item.client, item.arrival.rcv_id, answer))
        elif isinstance(answer, RequestRefused) and answer.error is ErrorCode.NO_MSG:
            pass  # the other process has acknowledged it
        elif isinstance(answer, ClientError):
            logger.debug("an acknowledgement failed; the router redelivers the message: %s", answer)
            self._on_unacknowledged(queue)
