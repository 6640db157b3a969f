"""What users do with connections, as far as it takes a router's answer while they wait."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from heliograph.agent import messages, queues
from heliograph.agent.clients import Clients, Purpose, is_temporary
from heliograph.agent.envelope import AddQueue, Confirmation
from heliograph.agent.errors import BadInvitation, Prohibited, RouterError, UnknownConnection
from heliograph.agent.inbox import send_to
from heliograph.agent.invitation import Invitation
from heliograph.agent.queues import NewRcvQueue
from heliograph.agent.receiving import Receiver, delivered
from heliograph.agent.records import (
    Connection,
    ConnectionInfo,
    Message,
    RcvQueue,
    RcvStatus,
    SndQueue,
    SndStatus,
)
from heliograph.agent.servers import server_for
from heliograph.agent.store import Store, now_ms
from heliograph.agent.subscribing import RECEIVABLE
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import dh, generate_key_pair, public_key
from heliograph.db.dialects import Transaction
from heliograph.transport.client import Client
from heliograph.transport.errors import ClientError, HandshakeFailed, RequestRefused
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress
from heliograph.wire.errors import ErrorCode
from heliograph.wire.fields import QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.keys import Algorithm

CONN_ID_SIZE = 12


class Created(NamedTuple):
    """A queue, and the connection that is subscribed to it by creating it."""

    queue: RcvQueue
    client: Client


class Connections:
    def __init__(self, store: Store, clients: Clients, receiver: Receiver) -> None:
        self._store = store
        self._clients = clients
        self._receiver = receiver

    async def create(self, address: ServerAddress) -> tuple[Created, Invitation]:
        new, client = await self._new_queue(address)
        conn_id = _new_conn_id()

        def add(tx: Transaction) -> RcvQueue:
            queues.add_connection(tx, conn_id, now_ms())
            return self._add(tx, conn_id, address, new)

        queue = await self._store.write(add)
        return Created(queue, client), _invitation(new)

    async def join(self, invitation: Invitation, address: ServerAddress | None) -> Created:
        """Our own queue is at the inviter's router unless another is named."""
        router = address or invitation.address
        new, client = await self._new_queue(router)
        conn_id = _new_conn_id()

        def add(tx: Transaction) -> RcvQueue:
            queues.add_connection(tx, conn_id, now_ms())
            first = Confirmation(reply=_invitation(new))
            vault = self._store.vault
            send_to(tx, vault, conn_id, invitation, first, now_ms(), is_current=True)
            return self._add(tx, conn_id, router, new, trusted=address is not None)

        try:
            return Created(await self._store.write(add), client)
        except CryptoError:
            raise BadInvitation("a damaged invitation: its key cannot be used") from None

    async def rotate(self, conn_id: str, address: ServerAddress) -> Created:
        """Receive through another queue; the present one goes when nothing more is in it."""
        if not any(queue.is_current for queue in await self._snd_queues(conn_id)):
            raise Prohibited("the queue can be rotated once the other side has joined")
        new, client = await self._new_queue(address)
        vault = self._store.vault

        def add(tx: Transaction) -> RcvQueue | None:
            if queues.find_connection(tx, conn_id) is None:
                return None
            own = [q for q in queues.rcv_queues_of(tx, vault, [conn_id]) if q.status in RECEIVABLE]
            replaces = own[-1].queue_id if own else None
            queue = self._add(tx, conn_id, address, new, replaces=replaces)
            messages.add_outgoing(tx, vault, conn_id, AddQueue(_invitation(new)), now_ms())
            return queue

        queue = await self._store.write(add)
        if queue is None:
            raise UnknownConnection("the connection was deleted meanwhile")
        return Created(queue, client)

    async def fetch(self, conn_id: str) -> Message | None:
        """The oldest message not acknowledged; if there is none here, routers are asked."""
        await self.require(conn_id)
        message = await self._oldest(conn_id)
        if message is not None:
            return message
        vault = self._store.vault
        found = await self._store.read(lambda tx: queues.rcv_queues_of(tx, vault, [conn_id]))
        for queue in found:
            if queue.status in RECEIVABLE:
                message = await self._get(queue)
                if message is not None:
                    return message
        return None

    async def require(self, conn_id: str) -> Connection:
        connection = await self._store.read(lambda tx: queues.find_connection(tx, conn_id))
        if connection is None:
            raise UnknownConnection("there is no such connection: it may have been deleted")
        return connection

    async def _snd_queues(self, conn_id: str) -> list[SndQueue]:
        await self.require(conn_id)
        vault = self._store.vault
        return await self._store.read(lambda tx: queues.snd_queues_of(tx, vault, conn_id))

    async def info(self, conn_id: str) -> ConnectionInfo:
        connection, vault = await self.require(conn_id), self._store.vault

        def read(tx: Transaction) -> ConnectionInfo:
            rcv = queues.rcv_queues_of(tx, vault, [conn_id])
            snd = queues.snd_queues_of(tx, vault, conn_id)
            return ConnectionInfo(
                conn_id,
                any(queue.is_current and queue.status is SndStatus.ACTIVE for queue in snd),
                connection.enable_ntfs,
                tuple(queue.address for queue in rcv if queue.status in RECEIVABLE),
                messages.count_outgoing(tx, conn_id),
                messages.count_unhandled(tx, conn_id),
                tuple(messages.failed_of(tx, conn_id)),
            )

        return await self._store.read(read)

    # Own.

    async def _new_queue(self, address: ServerAddress) -> tuple[NewRcvQueue, Client]:
        """Created at the router, and subscribed to on the connection for commands."""
        if address.scheme is not Scheme.SMP:
            raise Prohibited("a queue is created at a messaging router: give an smp:// address")
        recipient = generate_key_pair(Algorithm.ED25519)
        shared, e2e = generate_key_pair(Algorithm.X25519), generate_key_pair(Algorithm.X25519)
        command = smp.NEW(
            recipient.public,
            shared.public,
            None if address.password is None else address.password.encode(),
            SubscriptionMode.SUBSCRIBE,
            QueueReqData(QueueMode.MESSAGING),
        )
        try:
            client = await self._clients.smp(address, at_once=True)
            ids = await client.request(command, b"", recipient.private)
            secret = dh(_ids(ids).dh_key, shared.private)
        except ClientError as exc:
            raise router_error(exc, "its address may need a password") from exc
        except CryptoError as exc:
            raise RouterError("the router sent a bad key", temporary=False) from exc
        new = NewRcvQueue(
            address.without_password(),
            ids.rcv_id,
            ids.snd_id,
            recipient.private,
            secret,
            e2e.private,
            ids.mode is QueueMode.MESSAGING,
        )
        return new, client

    def _add(
        self,
        tx: Transaction,
        conn_id: str,
        address: ServerAddress,
        new: NewRcvQueue,
        *,
        trusted: bool = True,
        replaces: int | None = None,
    ) -> RcvQueue:
        server_for(tx, address, trusted=trusted)
        vault = self._store.vault
        queue_id = queues.add_rcv_queue(tx, vault, conn_id, new, replaces)
        queue = queues.rcv_queue(tx, vault, queue_id)
        if queue is None:
            raise UnknownConnection("the queue that was just added is gone")
        return queue

    async def _get(self, queue: RcvQueue) -> Message | None:
        """Until a message for the user came, or the queue is empty."""
        while True:
            try:
                client = await self._clients.smp(queue.address, Purpose.GET, at_once=True)
                answer = await client.request(smp.GET(), queue.rcv_id, queue.recipient_key)
            except ClientError as exc:
                if isinstance(exc, RequestRefused) and exc.error is ErrorCode.AUTH:
                    await self._gone(queue)
                    return None
                raise router_error(exc) from exc
            if not isinstance(answer, smp.MSG):
                return None
            message = await self._take(client, queue, answer)
            if message is not None:
                return message

    async def _gone(self, queue: RcvQueue) -> None:
        gone = RcvStatus.GONE
        await self._store.write(lambda tx: queues.set_rcv_status(tx, queue.queue_id, gone))

    async def _take(self, client: Client, queue: RcvQueue, answer: smp.MSG) -> Message | None:
        await self._receiver.take(delivered(client, queue.rcv_id, answer))
        return await self._oldest(queue.conn_id)

    async def _oldest(self, conn_id: str) -> Message | None:
        vault = self._store.vault
        found: Sequence[Message] = await self._store.read(
            lambda tx: messages.unhandled(tx, vault, 0, 1, conn_id)
        )
        return found[0] if found else None


def _new_conn_id() -> str:
    return os.urandom(CONN_ID_SIZE).hex()


def _invitation(new: NewRcvQueue) -> Invitation:
    return Invitation(new.address, new.snd_id, public_key(new.e2e_key), new.sender_can_secure)


def _ids(answer: object) -> smp.IDS:
    if not isinstance(answer, smp.IDS):
        raise RouterError("the router answered something else", temporary=False)
    return answer


def router_error(exc: ClientError, why: str = "it no longer has the queue") -> RouterError:
    """For the user; `why` is what a refusal without a reason means here."""
    reason = str(exc)
    if isinstance(exc, RequestRefused) and exc.error is ErrorCode.AUTH:
        reason = f"the router refused (AUTH): {why}"
    temporary = is_temporary(exc) and not isinstance(exc, HandshakeFailed)
    return RouterError(reason, temporary=temporary)
