"""Does what `steps` says for each connection, until there is nothing left to do.

One task for each connection that has work, across all processes: it holds the connection's lock
while it does a step. What a router did not take is tried again after growing delays.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from heliograph.agent import messages, queues
from heliograph.agent.clients import Clients, is_temporary
from heliograph.agent.envelope import Kind, seal
from heliograph.agent.errors import AgentError
from heliograph.agent.events import AgentEvent, ConnectionReady, MessageSent, QueueGone, SendFailed
from heliograph.agent.inbox import Change, activate
from heliograph.agent.records import Outgoing, RcvStatus, SndQueue, SndStatus
from heliograph.agent.steps import Fail, Resting, Secure, SecureBySender, Send, Step, next_step
from heliograph.agent.store import Store, now_ms
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import generate_key_pair, private_algorithm_of, public_key
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.runtime.backoff import Backoff
from heliograph.transport.client import Client
from heliograph.transport.errors import ClientError, RequestRefused
from heliograph.wire import smp
from heliograph.wire.errors import ErrorCode
from heliograph.wire.fields import MsgFlags
from heliograph.wire.keys import Algorithm
from heliograph.wire.versions import SMP_AUTH_COMMANDS, SMP_SENDER_AUTH_KEY

logger = logging.getLogger(__name__)

Report = Callable[[AgentEvent], None]


class Sender:
    def __init__(self, store: Store, clients: Clients, backoff: Backoff, report: Report) -> None:
        self._store = store
        self._clients = clients
        self._backoff = backoff
        self._report = report
        self._workers: dict[str, _Worker] = {}

    def kick(self, conn_id: str) -> None:
        """There may be something to do for a connection."""
        worker = self._workers.get(conn_id)
        if worker is None:
            worker = self._workers[conn_id] = _Worker(self, conn_id)
        worker.kicked.set()

    async def kick_all(self) -> None:
        """Whatever this or the other process left to do."""
        for conn_id in await self._store.read(messages.busy_connections):
            self.kick(conn_id)

    def router_connected(self) -> None:
        """What rests since its router could not be reached may go on."""
        for worker in self._workers.values():
            worker.resting.clear()
            worker.kicked.set()

    async def close(self) -> None:
        tasks = [worker.task for worker in self._workers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Worker:
    def __init__(self, sender: Sender, conn_id: str) -> None:
        self._sender = sender
        self._store = sender._store
        self._conn_id = conn_id
        self._failures: dict[Resting, int] = {}
        self.resting: dict[Resting, float] = {}
        self.kicked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                self.kicked.clear()
                try:
                    await self._work()
                except (DatabaseError, AgentError) as exc:
                    logger.warning("the store failed: %s", exc)
                    self.resting["store", 0] = self._loop.time() + self._sender._backoff.first
                if not self.resting and not self.kicked.is_set():
                    return
                await self._rest()
        finally:
            self._sender._workers.pop(self._conn_id, None)

    async def _rest(self) -> None:
        """Until something may have changed, or the first has rested enough."""
        if self.resting:
            delay = min(self.resting.values()) - self._loop.time()
            try:
                async with asyncio.timeout(max(delay, 0.0)):
                    await self.kicked.wait()
            except TimeoutError:
                pass
        now = self._loop.time()
        self.resting = {queue: at for queue, at in self.resting.items() if at > now}

    async def _work(self) -> None:
        """Step by step, as far as it goes."""
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
            self.resting,
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
            self._failures.pop(_who(step), None)
        except (ClientError, CryptoError) as exc:
            if isinstance(exc, ClientError) and is_temporary(exc):
                self._let_rest(_who(step))
            else:
                await self._refused(step, exc)

    def _let_rest(self, who: Resting) -> None:
        failures = self._failures[who] = self._failures.get(who, 0) + 1
        delay = self._sender._backoff.delay(failures, random.random())  # noqa: S311
        self.resting[who] = self._loop.time() + delay

    # The steps.

    async def _secure(self, step: Secure) -> None:
        queue = step.queue
        client = await self._sender._clients.smp(queue.address)
        await client.request(smp.KEY(queue.sender_key or b""), queue.rcv_id, queue.recipient_key)
        await self._store.write(
            lambda tx: queues.set_rcv_status(tx, queue.queue_id, RcvStatus.ACTIVE)
        )

    async def _secure_by_sender(self, queue: SndQueue) -> None:
        client = await self._sender._clients.smp(queue.address)
        key = await self._fitting_key(client, queue)
        if client.established.session.version < SMP_SENDER_AUTH_KEY:
            # Only the recipient can, through this router as it is now.
            await self._store.write(lambda tx: queues.set_recipient_secures(tx, queue.queue_id))
            return
        await client.request(smp.SKEY(public_key(key)), queue.snd_id, key)
        await self._store.write(
            lambda tx: queues.set_snd_status(tx, queue.queue_id, SndStatus.SECURED)
        )

    async def _send(self, step: Send) -> None:
        item, queue = step.item, step.queue
        client = await self._sender._clients.smp(queue.address)
        is_first = item.kind == Kind.CONFIRMATION.value
        key = queue.sender_key
        if not step.authorized:
            key = await self._fitting_key(client, queue)
            # Should the answer be lost, a refusal of the next attempt may mean that it arrived.
            await self._store.write(
                lambda tx: messages.set_attempts(tx, item.seq, item.attempts + 1)
            )
        body = seal(
            queue.e2e_secret,
            Kind(item.kind),
            item.number,
            item.body,
            public=queue.e2e_public if is_first else None,
            sender_key=None if step.authorized else public_key(key),
        )
        command = smp.SEND(MsgFlags(item.notification), body)
        await client.request(command, queue.snd_id, key if step.authorized else None)
        changes = await self._store.write(lambda tx: self._sent(tx, step))
        if item.kind == Kind.MESSAGE.value:
            self._sender._report(MessageSent(self._conn_id, item.number))
        if Change.READY in changes:
            self._sender._report(ConnectionReady(self._conn_id))

    def _sent(self, tx: Transaction, step: Send) -> set[Change]:
        item, queue = step.item, step.queue
        messages.delete_outgoing(tx, item.seq)
        if item.kind == Kind.END_QUEUE.value:
            queues.delete_snd_queue(tx, queue.queue_id)
        elif item.kind == Kind.CONFIRMATION.value:
            if step.authorized:
                return activate(tx, self._store.vault, self._conn_id, queue.queue_id, now_ms())
            # Unless it was answered already, before we knew.
            queues.replace_snd_status(tx, queue.queue_id, SndStatus.NEW, SndStatus.CONFIRMED)
        return set()

    async def _fitting_key(self, client: Client, queue: SndQueue) -> bytes:
        """Old routers know no authenticators, and we know the version only once connected."""
        is_old = client.established.session.version < SMP_AUTH_COMMANDS
        if not is_old or private_algorithm_of(queue.sender_key) is not Algorithm.X25519:
            return queue.sender_key
        key = generate_key_pair(Algorithm.ED25519).private
        vault = self._store.vault
        await self._store.write(lambda tx: queues.set_sender_key(tx, vault, queue.queue_id, key))
        return key

    # What the router refused.

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
                elif item.kind == Kind.CONFIRMATION.value:
                    await self._give_up(queue)
                elif item.kind == Kind.END_QUEUE.value:
                    await self._store.write(lambda tx: self._sent(tx, step))
                else:
                    await self._fail(item, error)
            case Fail(item):
                await self._fail(item, error)

    async def _give_up(self, queue: SndQueue) -> None:
        refused = SndStatus.REFUSED
        await self._store.write(lambda tx: queues.set_snd_status(tx, queue.queue_id, refused))

    async def _fail(self, item: Outgoing, error: str) -> None:
        await self._store.write(lambda tx: messages.set_failed(tx, item.seq, error))
        self._sender._report(SendFailed(self._conn_id, item.number, error))


def _who(step: Step) -> Resting:
    match step:
        case Secure(queue):
            return "rcv", queue.queue_id
        case SecureBySender(queue) | Send(_, queue):
            return "snd", queue.queue_id
        case Fail(item):
            return "item", item.seq
