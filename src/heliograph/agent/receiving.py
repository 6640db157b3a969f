"""Receives what routers deliver: stores it, then acknowledges it, then says so.

Messages that arrive together are one transaction. The next message of a queue comes only after the
acknowledgement, so what waits here is bounded by the number of subscribed queues.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.agent.errors import AgentError
from heliograph.agent.inbox import Arrival, Receipt, receive
from heliograph.agent.records import RcvQueue
from heliograph.agent.store import Store, now_ms
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.transport.client import Client, ClientRequest
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

MAX_BATCH = 500
RETRY_DELAY = 1.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """An MSG, on the connection that it must be acknowledged on."""

    client: Client
    arrival: Arrival


Received = Callable[[Receipt], None]
"""Called once a message is stored, or held back."""


def delivered(client: Client, rcv_id: bytes, message: smp.MSG) -> Delivered:
    fingerprint = client.address.fingerprint
    return Delivered(client, Arrival(fingerprint, rcv_id, message.msg_id, message.body))


class Receiver:
    def __init__(
        self,
        store: Store,
        max_unhandled: int,
        on_received: Received,
        on_unacknowledged: Callable[[RcvQueue], None],
    ) -> None:
        """`on_unacknowledged` hears of queues whose router waits for an acknowledgement."""
        self._store = store
        self._max_unhandled = max_unhandled
        self._on_received = on_received
        self._on_unacknowledged = on_unacknowledged
        self._waiting: asyncio.Queue[Delivered] = asyncio.Queue()
        self._acknowledging: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, item: Delivered) -> None:
        self._waiting.put_nowait(item)

    async def take(self, item: Delivered) -> Receipt | None:
        """Store one, and acknowledge it: for whoever fetched it and waits."""
        [receipt] = await self._store_all([item])
        if receipt is not None:
            await self._acknowledge([(item, receipt)])
        return receipt

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, *self._acknowledging, return_exceptions=True)

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
            task = asyncio.create_task(self._acknowledge(taken))
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)

    async def _persistently(self, batch: Sequence[Delivered]) -> list[Receipt | None]:
        while True:
            try:
                return await self._store_all(batch)
            except (DatabaseError, AgentError) as exc:
                logger.warning("received messages could not be stored: %s", exc)
            except Exception:
                logger.exception("a message could not be understood")
                if len(batch) == 1:
                    return [None]  # it stays at the router, and only its queue with it
                return [(await self._persistently([item]))[0] for item in batch]
            await asyncio.sleep(RETRY_DELAY)

    async def _store_all(self, batch: Sequence[Delivered]) -> list[Receipt | None]:
        now, vault = now_ms(), self._store.vault

        def store(tx: Transaction) -> list[Receipt | None]:
            return [receive(tx, vault, item.arrival, now, self._max_unhandled) for item in batch]

        receipts = await self._store.write(store)
        for receipt in receipts:
            if receipt is not None:
                self._on_received(receipt)
        return receipts

    async def _acknowledge(self, taken: Sequence[tuple[Delivered, Receipt]]) -> None:
        """An answer may be the next message. Whatever goes wrong, the router repeats it."""
        by_client: dict[Client, list[tuple[Delivered, RcvQueue]]] = {}
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

    def _answered(self, item: Delivered, queue: RcvQueue, answer: Any) -> None:
        if isinstance(answer, smp.MSG):
            self.put(delivered(item.client, item.arrival.rcv_id, answer))
        elif isinstance(answer, RequestRefused) and answer.error is ErrorCode.NO_MSG:
            pass  # the other process has acknowledged it
        elif isinstance(answer, ClientError):
            logger.debug("an acknowledgement failed: %s", answer)
            self._on_unacknowledged(queue)
