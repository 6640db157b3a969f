"""Operations on connections that wait for a router's answer."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from heliograph.agent.clients import ClientPool, ClientPurpose, is_temporary
from heliograph.agent.connections import links, queues
from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.connections.link_data import ContactLink, open_contact, open_link, seal_link
from heliograph.agent.connections.queues import NewRcvQueue
from heliograph.agent.connections.servers import server_for
from heliograph.agent.connections.short_link import LinkKind, ShortLink
from heliograph.agent.connections.subscribing import RECEIVABLE
from heliograph.agent.errors import (
    BadInvitation,
    LinkUsed,
    Prohibited,
    RouterError,
    UnknownConnection,
)
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import AddQueue, Confirmation
from heliograph.agent.messages.inbox import send_to
from heliograph.agent.messages.receiving import Receiver, delivered
from heliograph.agent.records import (
    Connection,
    ConnectionInfo,
    RcvQueue,
    RcvStatus,
    ReceivedMessage,
    SndQueue,
    SndStatus,
)
from heliograph.agent.routing.routes import Routes
from heliograph.agent.store import AgentStore, now_ms
from heliograph.crypto.errors import CryptoError
from heliograph.crypto.keys import KeyPair, dh, generate_key_pair, public_key
from heliograph.db.dialects import Transaction
from heliograph.transport.client import CORR_ID_SIZE, Client
from heliograph.transport.errors import ClientError, HandshakeFailed, RequestRefused
from heliograph.wire import smp
from heliograph.wire.addresses import Scheme, ServerAddress
from heliograph.wire.errors import ErrorCode
from heliograph.wire.keys import Algorithm
from heliograph.wire.smp.fields import QueueLink, QueueMode, QueueReqData, SubscriptionMode
from heliograph.wire.smp.links import sender_id_of
from heliograph.wire.versions import SMP_SHORT_LINKS

CONN_ID_SIZE = 12


class CreatedQueue(NamedTuple):
    """A new queue, and the client that is subscribed to it because it created it."""

    queue: RcvQueue
    client: Client


class QueueKeys(NamedTuple):
    """Keys of a new queue: the recipient's, the one shared with the router, the end-to-end one."""

    recipient: KeyPair
    shared: KeyPair
    e2e: KeyPair

    @classmethod
    def generate(cls) -> "QueueKeys":
        return cls(
            generate_key_pair(Algorithm.ED25519),
            generate_key_pair(Algorithm.X25519),
            generate_key_pair(Algorithm.X25519),
        )


class LinkDataRefused(Exception):
    """The router does not store link data."""


class ConnectionOperations:
    def __init__(
        self, store: AgentStore, clients: ClientPool, routes: Routes, receiver: Receiver
    ) -> None:
        self._store = store
        self._clients = clients
        self._routes = routes
        self._receiver = receiver

    async def create(self, address: ServerAddress) -> tuple[CreatedQueue, Invitation]:
        """Create a queue with link data, or without if the router does not support it."""
        new, client, link = await self._new_queue_with_link(address)
        conn_id = _new_conn_id()

        def add(tx: Transaction) -> RcvQueue:
            queues.add_connection(tx, conn_id, now_ms())
            return self._add(tx, conn_id, address, new)

        queue = await self._store.write(add)
        text = None if link is None else str(link)
        return CreatedQueue(queue, client), replace(_invitation(new), link=text)

    def parse_link(self, text: str) -> ShortLink:
        """Parse a short link, which may leave out one of our routers. Raises `BadInvitation`."""
        return ShortLink.parse(text, self._routes.own_routers)

    async def read_contact(self, link: ShortLink) -> ContactLink:
        """Read what a contact link leads to (LGET)."""
        try:
            route = await self._routes.to(link.address)
            answer = await route.request(smp.LGET(), link.link_id, None)
        except ClientError as exc:
            raise router_error(exc, "there is no such link: it may have been deleted") from exc
        return open_contact(link, answer.fixed_data, answer.user_data)

    async def join_link(self, link: ShortLink, address: ServerAddress | None) -> CreatedQueue:
        """Secure the queue of a link (LKEY), then join the invitation that it leads to.

        The key is stored first: LKEY may be repeated with the same key, and with no other.
        """
        if link.kind is not LinkKind.INVITATION:
            raise BadInvitation(
                "links of contact addresses, groups and channels can be read, but not joined: ask"
                " for a one-time link, https://host/i#..."
            )
        vault, place = self._store.vault, (link.address.fingerprint, link.link_id)
        fresh = generate_key_pair(Algorithm.X25519).private
        key = await self._store.write(lambda tx: links.key_for(tx, vault, *place, fresh))
        try:
            route = await self._routes.to(link.address)
            answer = await route.request(smp.LKEY(public_key(key)), link.link_id, key)
        except ClientError as exc:
            if isinstance(exc, RequestRefused) and exc.error is ErrorCode.AUTH:
                await self._store.write(lambda tx: links.forget_key(tx, *place))
                raise LinkUsed("this link was used already, or deleted: ask for a new one") from exc
            raise router_error(exc) from exc
        invitation = open_link(link, answer.sender_id, answer.fixed_data, answer.user_data)
        return await self.join(invitation, address, link=link, sender_key=key)

    async def join(
        self,
        invitation: Invitation,
        address: ServerAddress | None,
        *,
        link: ShortLink | None = None,
        sender_key: bytes | None = None,
    ) -> CreatedQueue:
        """Join, with our own queue at the inviter's router unless `address` is given."""
        router = address or invitation.address
        new, client = await self._new_queue(router)
        conn_id = _new_conn_id()

        def add(tx: Transaction) -> RcvQueue:
            queues.add_connection(tx, conn_id, now_ms())
            first = Confirmation(reply=_invitation(new))
            vault = self._store.vault
            send_to(
                *(tx, vault, conn_id, invitation, first, now_ms()),
                is_current=True,
                sender_key=sender_key,
            )
            if link is not None:
                links.forget_key(tx, link.address.fingerprint, link.link_id)
            return self._add(tx, conn_id, router, new, trusted=address is not None)

        try:
            return CreatedQueue(await self._store.write(add), client)
        except CryptoError:
            raise BadInvitation("a damaged invitation: its key cannot be used") from None

    async def rotate(self, conn_id: str, address: ServerAddress) -> CreatedQueue:
        """Create a new receive queue; the current one is deleted once it is empty."""
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
        return CreatedQueue(queue, client)

    async def fetch(self, conn_id: str) -> ReceivedMessage | None:
        """Return the oldest unacknowledged message; fetch one (GET) if none is stored."""
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

    # Internal.

    async def _new_queue(self, address: ServerAddress) -> tuple[NewRcvQueue, Client]:
        """Create a queue, subscribed to on the connection for commands."""
        client = await self._connect(address)
        return await self._create(client, address, QueueKeys.generate()), client

    async def _new_queue_with_link(
        self, address: ServerAddress
    ) -> tuple[NewRcvQueue, Client, ShortLink | None]:
        client = await self._connect(address)
        keys = QueueKeys.generate()
        if client.established.session.version < SMP_SHORT_LINKS:
            return await self._create(client, address, keys), client, None
        corr_id = os.urandom(CORR_ID_SIZE)
        snd_id, place = sender_id_of(corr_id), address.without_password()
        invitation = Invitation(place, snd_id, keys.e2e.public, sender_can_secure=True)
        data = seal_link(invitation, generate_key_pair(Algorithm.ED25519))
        request = QueueLink(b"", snd_id, data.fixed, data.user)
        try:
            new = await self._create(client, address, keys, request, corr_id)
        except LinkDataRefused:
            return await self._create(client, address, keys), client, None
        return new, client, ShortLink(place, new.link_id, data.link_key)

    async def _connect(self, address: ServerAddress) -> Client:
        if address.scheme is not Scheme.SMP:
            raise Prohibited("a queue is created at a messaging router: give an smp:// address")
        try:
            return await self._clients.smp(address, at_once=True)
        except ClientError as exc:
            raise router_error(exc) from exc

    async def _create(
        self,
        client: Client,
        address: ServerAddress,
        keys: QueueKeys,
        link: QueueLink | None = None,
        corr_id: bytes | None = None,
    ) -> NewRcvQueue:
        command = smp.NEW(
            keys.recipient.public,
            keys.shared.public,
            None if address.password is None else address.password.encode(),
            SubscriptionMode.SUBSCRIBE,
            QueueReqData(QueueMode.MESSAGING, link),
        )
        try:
            ids = await client.request(command, b"", keys.recipient.private, corr_id=corr_id)
            secret = dh(ids.dh_key, keys.shared.private)
        except ClientError as exc:
            refused = exc.error if isinstance(exc, RequestRefused) else None
            if link is not None and refused is ErrorCode.CMD_PROHIBITED:
                raise LinkDataRefused from exc
            raise router_error(exc, "its address may need a password") from exc
        except CryptoError as exc:
            raise RouterError("the router sent an invalid key", temporary=False) from exc
        if link is not None and (ids.snd_id != link.sender_id or ids.link_id is None):
            raise RouterError("the router created another queue than requested", temporary=False)
        return NewRcvQueue(
            address.without_password(),
            ids.rcv_id,
            ids.snd_id,
            keys.recipient.private,
            secret,
            keys.e2e.private,
            ids.mode is QueueMode.MESSAGING,
            link_id=ids.link_id or b"",
        )

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

    async def _get(self, queue: RcvQueue) -> ReceivedMessage | None:
        """Fetch until a message for the user arrives, or return None when the queue is empty."""
        while True:
            try:
                client = await self._clients.smp(queue.address, ClientPurpose.GET, at_once=True)
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

    async def _take(
        self, client: Client, queue: RcvQueue, answer: smp.MSG
    ) -> ReceivedMessage | None:
        await self._receiver.take(delivered(client, queue.rcv_id, answer))
        return await self._oldest(queue.conn_id)

    async def _oldest(self, conn_id: str) -> ReceivedMessage | None:
        vault = self._store.vault
        found: Sequence[ReceivedMessage] = await self._store.read(
            lambda tx: messages.unhandled(tx, vault, 0, 1, conn_id)
        )
        return found[0] if found else None


def _new_conn_id() -> str:
    return os.urandom(CONN_ID_SIZE).hex()


def _invitation(new: NewRcvQueue) -> Invitation:
    return Invitation(new.address, new.snd_id, public_key(new.e2e_key), new.sender_can_secure)


def router_error(exc: ClientError, why: str = "it no longer has the queue") -> RouterError:
    """Return the error to show to the user; `why` explains a refusal with AUTH."""
    reason = str(exc)
    if isinstance(exc, RequestRefused) and exc.error is ErrorCode.AUTH:
        reason = f"the router refused (AUTH): {why}"
    temporary = is_temporary(exc) and not isinstance(exc, HandshakeFailed)
    return RouterError(reason, temporary=temporary)
