"""Performs the steps that `steps` decides for each connection, until none is possible.

Each connection with work has one task, which holds the connection's lock during a step, so that
only one process performs it. Failed steps are retried with exponential backoff.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from heliograph.agent.clients import ClientPool, is_temporary
from heliograph.agent.connections import queues
from heliograph.agent.errors import AgentError
from heliograph.agent.events import AgentEvent, ConnectionReady, MessageSent, QueueGone, SendFailed
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import MessageKind, seal
from heliograph.agent.messages.inbox import Change, activate
from heliograph.agent.messages.steps import (
    Fail,
    QueueRef,
    Secure,
    SecureBySender,
    Send,
    Step,
    next_step,
)
from heliograph.agent.records import OutgoingMessage, RcvStatus, SndQueue, SndStatus
from heliograph.agent.routing.routes import Routes
from heliograph.agent.store import AgentStore, now_ms
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import generate_key_pair, private_algorithm_of, public_key
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.tasks import TaskScope
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import MsgFlags
from heliograph.wire.versions import SMP_AUTH_COMMANDS, SMP_SENDER_AUTH_KEY

logger = logging.getLogger(__name__)

Report = Callable[[AgentEvent], None]


class Sender:
    def __init__(
        self,
        store: AgentStore,
        clients: ClientPool,
        routes: Routes,
        backoff: Backoff,
        report: Report,
    ) -> None:
        self._store = store
        self._clients = clients
        self._routes = routes
        self._backoff = backoff
        self._report = report
        self._workers: dict[str, _ConnectionWorker] = {}
        self._tasks = TaskScope()

    def wake(self, conn_id: str) -> None:
        """Wake the worker of a connection, or start one."""
        worker = self._workers.get(conn_id)
        if worker is None:
            worker = self._workers[conn_id] = _ConnectionWorker(self, conn_id)
        worker.woken.set()

    async def kick_all(self) -> None:
        """Wake the workers of all connections with pending work, of either process."""
        for conn_id in await self._store.read(messages.busy_connections):
            self.wake(conn_id)

    def router_connected(self) -> None:
        """Retry at once the steps that back off because a router could not be reached."""
        for worker in self._workers.values():
            worker.backing_off.clear()
            worker.woken.set()

    async def close(self) -> None:
        await self._tasks.close()


class _ConnectionWorker:
    def __init__(self, sender: Sender, conn_id: str) -> None:
        self._sender = sender
        self._store = sender._store
        self._conn_id = conn_id
        self._failures: dict[QueueRef, int] = {}
        self.backing_off: dict[QueueRef, float] = {}
        self.woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        sender._tasks.spawn(self._run(), name="agent sending")

    async def _run(self) -> None:
        try:
            while True:
                self.woken.clear()
                try:
                    await self._work()
                except (DatabaseError, AgentError) as exc:
                    logger.warning("messages cannot be sent now, retrying: %s", exc)
                    self.backing_off["store", 0] = self._loop.time() + self._sender._backoff.first
                if not self.backing_off and not self.woken.is_set():
                    return
                await self._wait()
        finally:
            self._sender._workers.pop(self._conn_id, None)

    async def _wait(self) -> None:
        """Wait until something may have changed, or the first backoff ends."""
        if self.backing_off:
            delay = min(self.backing_off.values()) - self._loop.time()
            try:
                async with asyncio.timeout(max(delay, 0.0)):
                    await self.woken.wait()
            except TimeoutError:
                pass
        now = self._loop.time()
        self.backing_off = {queue: at for queue, at in self.backing_off.items() if at > now}

    async def _work(self) -> None:
        """Perform steps until none is possible."""
        while True:
            async with self._store.locks.hold(f"connection {self._conn_id}"):
                step = await self._store.read(self._next_step)
                if step is None:
                    return
                await self._perform(step)

    def _next_step(self, tx: Transaction) -> Step | None:
        vault, conn_id = self._store.vault, self._conn_id
        return next_step(
            queues.rcv_queues_of(tx, vault, [conn_id]),
            queues.snd_queues_of(tx, vault, conn_id),
            messages.outgoing_of(tx, vault, conn_id),
            self.backing_off,
        )

    async def _perform(self, step: Step) -> None:
        try:
            match step:
                case Secure():
                    await self._secure(step)
                case SecureBySender():
                    await self._secure_by_sender(step.queue)
                case Send():
                    await self._send(step)
                case Fail():
                    await self._fail(step.item, ErrorCode.AUTH.value)
                    return
            self._failures.pop(_key_of(step), None)
        except (ClientError, CryptoError) as exc:
            if isinstance(exc, ClientError) and is_temporary(exc):
                self._back_off(_key_of(step))
            else:
                await self._refused(step, exc)

    def _back_off(self, key: QueueRef) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._sender._backoff.delay(failures, random.random())  # noqa: S311
        self.backing_off[key] = self._loop.time() + delay

    # Steps.

    async def _secure(self, step: Secure) -> None:
        queue = step.queue
        client = await self._sender._clients.smp(queue.address)
        await client.request(smp.KEY(queue.sender_key or b""), queue.rcv_id, queue.recipient_key)
        await self._store.write(
            lambda tx: queues.set_rcv_status(tx, queue.queue_id, RcvStatus.ACTIVE)
        )

    async def _secure_by_sender(self, queue: SndQueue) -> None:
        route = await self._sender._routes.to(queue.address)
        key = await self._fitting_key(route.version, queue)
        if route.version < SMP_SENDER_AUTH_KEY:
            # This router lets only the recipient secure the queue.
            await self._store.write(lambda tx: queues.set_recipient_secures(tx, queue.queue_id))
            return
        await route.request(smp.SKEY(public_key(key)), queue.snd_id, key)
        await self._store.write(
            lambda tx: queues.set_snd_status(tx, queue.queue_id, SndStatus.SECURED)
        )

    async def _send(self, step: Send) -> None:
        item, queue = step.item, step.queue
        route = await self._sender._routes.to(queue.address)
        is_first = item.kind == MessageKind.CONFIRMATION.value
        key = queue.sender_key
        if not step.authorized:
            key = await self._fitting_key(route.version, queue)
            # If the answer is lost, a refusal of the next attempt may mean that this one arrived.
            await self._store.write(
                lambda tx: messages.set_attempts(tx, item.seq, item.attempts + 1)
            )
        body = seal(
            queue.e2e_secret,
            MessageKind(item.kind),
            item.number,
            item.body,
            public=queue.e2e_public if is_first else None,
            sender_key=None if step.authorized else public_key(key),
        )
        command = smp.SEND(MsgFlags(item.notification), body)
        await route.request(command, queue.snd_id, key if step.authorized else None)
        changes = await self._store.write(lambda tx: self._sent(tx, step))
        if item.kind == MessageKind.MESSAGE.value:
            self._sender._report(MessageSent(self._conn_id, item.number))
        if Change.READY in changes:
            self._sender._report(ConnectionReady(self._conn_id))

    def _sent(self, tx: Transaction, step: Send) -> set[Change]:
        item, queue = step.item, step.queue
        messages.delete_outgoing(tx, item.seq)
        if item.kind == MessageKind.END_QUEUE.value:
            queues.delete_snd_queue(tx, queue.queue_id)
        elif item.kind == MessageKind.CONFIRMATION.value:
            if step.authorized:
                return activate(tx, self._store.vault, self._conn_id, queue.queue_id, now_ms())
            # Unless the recipient has confirmed it already.
            queues.replace_snd_status(tx, queue.queue_id, SndStatus.NEW, SndStatus.CONFIRMED)
        return set()

    async def _fitting_key(self, version: int, queue: SndQueue) -> bytes:
        """Return a key that the router supports: old ones do not know authenticators."""
        is_old = version < SMP_AUTH_COMMANDS
        if not is_old or private_algorithm_of(queue.sender_key) is not Algorithm.X25519:
            return queue.sender_key
        key = generate_key_pair(Algorithm.ED25519).private
        vault = self._store.vault
        await self._store.write(lambda tx: queues.set_sender_key(tx, vault, queue.queue_id, key))
        return key

    # Refusals.

    async def _refused(self, step: Step, exc: Exception) -> None:
        error = str(exc) if isinstance(exc, RequestRefused) else "CRYPTO"
        match step:
            case Secure(queue):
                gone = RcvStatus.GONE
                await self._store.write(lambda tx: queues.set_rcv_status(tx, queue.queue_id, gone))
                self._sender._report(QueueGone(self._conn_id, queue.queue_id))
            case SecureBySender(queue):
                await self._give_up(queue)
            case Send(item, queue, authorized):
                if not authorized and item.attempts > 0:
                    await self._store.write(lambda tx: self._sent(tx, step))
                elif item.kind == MessageKind.CONFIRMATION.value:
                    await self._give_up(queue)
                elif item.kind == MessageKind.END_QUEUE.value:
                    await self._store.write(lambda tx: self._sent(tx, step))
                else:
                    await self._fail(item, error)
            case Fail(item):
                await self._fail(item, error)

    async def _give_up(self, queue: SndQueue) -> None:
        refused = SndStatus.REFUSED
        await self._store.write(lambda tx: queues.set_snd_status(tx, queue.queue_id, refused))

    async def _fail(self, item: OutgoingMessage, error: str) -> None:
        await self._store.write(lambda tx: messages.set_failed(tx, item.seq, error))
        self._sender._report(SendFailed(self._conn_id, item.number, error))


def _key_of(step: Step) -> QueueRef:
    match step:
        case Secure(queue):
            return "rcv", queue.queue_id
        case SecureBySender(queue) | Send(_, queue):
            return "snd", queue.queue_id
        case Fail(item):
            return "item", item.seq
