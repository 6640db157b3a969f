"""The agent: connections, messages, notification tokens and pushes, over a store on disk.

Two processes may have the same store open, as an app and its notification extension do. Their
shared state is in the store; each process reloads it after the other has written.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path

from heliograph.agent.connections import queues, servers
from heliograph.agent.connections.invitation import Invitation
from heliograph.agent.connections.link_data import ContactLink
from heliograph.agent.connections.short_link import LinkKind, ShortLink
from heliograph.agent.engine import AgentSettings, Engine, OnEvent
from heliograph.agent.errors import (
    AgentError,
    BadInvitation,
    BadNotification,
    MessageTooLong,
    Prohibited,
    UnknownConnection,
    UnknownMessage,
)
from heliograph.agent.messages import store as messages
from heliograph.agent.messages.envelope import MAX_BODY, Body
from heliograph.agent.notifications import store as ntf_store
from heliograph.agent.notifications.opening import connections_of, open_push
from heliograph.agent.operations import router_error
from heliograph.agent.records import (
    ConnectionInfo,
    NotificationInfo,
    RcvQueue,
    ReceivedMessage,
    TokenInfo,
)
from heliograph.agent.store import AgentStore, now_ms
from heliograph.db.dialects import Transaction
from heliograph.journal.events import AgentDecrypted
from heliograph.journal.journal import NO_JOURNAL, Journal
from heliograph.opening import Closing, opening
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf, decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus

__all__ = ["Agent", "AgentSettings"]

MESSAGES_PER_PAGE = 100


class Agent(Closing):
    """An open agent. Create it with `Agent.open`.

    It has one method for each thing an application can do; the engine's parts do the work.
    """

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self.store = engine.store
        self.clients = engine.clients
        self.notifications = engine.notifications

    @classmethod
    @opening
    async def open(
        cls,
        place: Path | str,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
        on_event: OnEvent | None = None,
    ) -> "Agent":
        """Open the store, create it if missing, and resume its work.

        Use it as a context manager, or await the result for an agent that you close yourself::

            async with Agent.open("alice") as agent:
                await agent.create_connection("smp://...")

        `place` is a directory, a file, or a URL: `postgresql://...` or `sqlite:///...`.
        Raises `PassphraseError` if the passphrase is missing, wrong, or not wanted.
        """
        settings = settings or AgentSettings()
        store = await AgentStore.open(place, passphrase, cost=settings.cost)
        engine = Engine(store, settings, on_event)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        return cls(engine, journal)

    async def close(self) -> None:
        """Close the agent. Pending work resumes when the agent is opened again."""
        await self._engine.close()

    async def has_work(self) -> bool:
        """Return whether stored work could be done now if its router answers."""
        return await self._engine.has_work()

    # Connections.

    async def create_connection(self, smp_address: ServerAddress | str) -> tuple[str, Invitation]:
        """Create a connection, and return its ID and invitation. Raises `RouterError`."""
        created, invitation = await self._engine.connections.create(_address(smp_address))
        await self._engine.queue_added(created)
        return created.queue.conn_id, invitation

    async def join_connection(
        self, invitation: Invitation | str, smp_address: ServerAddress | str | None = None
    ) -> str:
        """Join by a short or full link, receiving at the inviter's router or another.

        Messages may be sent at once. Raises `BadInvitation`, `LinkUsed` or `RouterError`.
        """
        address = None if smp_address is None else _address(smp_address)
        operations = self._engine.connections
        if isinstance(invitation, str) and ShortLink.is_text(invitation):
            link = operations.parse_link(invitation)
            created = await operations.join_link(link, address)
        else:
            full = Invitation.parse(invitation) if isinstance(invitation, str) else invitation
            created = await operations.join(full, address)
        await self._engine.queue_added(created)
        self._engine.sender.wake(created.queue.conn_id)
        return created.queue.conn_id

    async def read_link(self, link: str) -> ContactLink:
        """Read what a contact link leads to: an address, a group, a channel or a relay.

        Its signatures are checked. The connection request and the user data are in the format of
        the agent that made the link. Raises `BadInvitation` or `RouterError`.
        """
        operations = self._engine.connections
        found = operations.parse_link(link)
        if found.kind is LinkKind.INVITATION:
            raise BadInvitation("a one-time link is read by joining it")
        return await operations.read_contact(found)

    async def rotate_queue(self, conn_id: str, smp_address: ServerAddress | str) -> None:
        """Receive through a new queue at this router; the old one is deleted when it is empty."""
        created = await self._engine.connections.rotate(conn_id, _address(smp_address))
        await self._engine.queue_added(created)
        self._engine.sender.wake(conn_id)

    async def delete_connection(self, conn_id: str) -> None:
        """Delete a connection here at once, and at its routers as soon as they can be reached."""
        await self._engine.connections.require(conn_id)
        await self.store.write(lambda tx: queues.delete_connection(tx, conn_id))
        self._engine.subscriptions.forget(conn_id)
        await self.notifications.forget([conn_id])
        self._engine.deleter.wake()

    async def connections(self) -> list[str]:
        """Return the connections that were not deleted, oldest first."""
        found = await self.store.read(queues.connections)
        return [connection.conn_id for connection in found]

    async def connection(self, conn_id: str) -> ConnectionInfo:
        return await self._engine.connections.info(conn_id)

    async def wait_ready(self, conn_id: str) -> None:
        """Wait until messages to the connection can be sent."""
        while True:
            changed = self._engine.wake_up.next()
            if (await self.connection(conn_id)).is_ready:
                return
            await changed.wait()

    async def routers(self) -> list[ServerAddress]:
        """Return the addresses of all known routers."""
        return await self.store.read(servers.addresses)

    async def move_router(self, smp_address: ServerAddress | str) -> None:
        """Change the hosts or port of a router that keeps its fingerprint."""
        address = _address(smp_address).without_password()
        await self.store.write(lambda tx: servers.server_for(tx, address, trusted=True))
        self.clients.moved(address)
        await self.notifications.refresh()

    async def enable_notifications(self, conn_id: str, enable: bool) -> None:
        """Set whether messages of a connection cause pushes."""
        await self._engine.connections.require(conn_id)
        await self.store.write(lambda tx: queues.set_enable_ntfs(tx, conn_id, enable))
        if enable:
            await self.notifications.create([conn_id])
        else:
            await self.notifications.delete([conn_id])

    # Messages.

    async def send(self, conn_id: str, body: bytes, *, notification: bool = True) -> int:
        """Store a message to be sent as soon as possible, and return its number."""
        if len(body) > MAX_BODY:
            raise MessageTooLong(f"{len(body)} bytes; the maximum of a message is {MAX_BODY}")
        vault, content = self.store.vault, Body(bytes(body))

        def add(tx: Transaction) -> int | None:
            if queues.find_connection(tx, conn_id) is None:
                return None
            return messages.add_outgoing(
                tx, vault, conn_id, content, now_ms(), notification=notification
            )

        number = await self.store.write(add)
        if number is None:
            raise UnknownConnection("there is no such connection: it may have been deleted")
        self._engine.sender.wake(conn_id)
        return number

    async def subscribe(
        self, conn_ids: Iterable[str] | None = None
    ) -> dict[str, AgentError | None]:
        """Receive from connections, or from all, and return the error of each that failed.

        Temporary failures are retried in the background.
        """
        known = await self.connections()
        wanted = known if conn_ids is None else list(conn_ids)
        unknown = set(wanted).difference(known)
        outcomes: dict[str, AgentError | None] = {
            conn_id: UnknownConnection("there is no such connection: it may have been deleted")
            for conn_id in unknown
        }
        wanted = [conn_id for conn_id in wanted if conn_id not in unknown]
        for conn_id, error in (await self._engine.subscriptions.subscribe(wanted)).items():
            outcomes[conn_id] = None if error is None else router_error(error)
        await self._engine.notify(wanted)
        return outcomes

    async def messages(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield every unacknowledged message, then each that arrives, in either process."""
        after = 0
        vault = self.store.vault
        while not self._engine.is_closed:
            changed = self._engine.wake_up.next()
            found: Sequence[ReceivedMessage] = await self.store.read(
                lambda tx: messages.unhandled(tx, vault, after, MESSAGES_PER_PAGE)  # noqa: B023
            )
            for message in found:
                after = message.message_id
                yield message
            if not found:
                await changed.wait()

    async def get_message(self, conn_id: str) -> ReceivedMessage | None:
        """Return the oldest unacknowledged message; fetch one (GET) if none is stored."""
        return await self._engine.connections.fetch(conn_id)

    async def ack(self, conn_id: str, message_id: int) -> None:
        """Mark a message as handled, so that it is not returned again."""
        known = await self.store.write(lambda tx: messages.set_handled(tx, conn_id, message_id))
        if not known:
            raise UnknownMessage("the connection has no such message")
        await self._engine.release()

    # Tokens.

    async def register_token(
        self, device: DeviceToken, mode: NotificationsMode, ntf_address: ServerAddress | str
    ) -> TokenStatus:
        """Register this device, or resume its registration."""
        return await self.notifications.register_token(device, mode, _address(ntf_address))

    async def verify_token(self, nonce: bytes, box: bytes) -> TokenStatus:
        """Verify the token with the code of a verification push."""
        return await self.notifications.verify_token(nonce, box)

    async def check_token(self) -> TokenStatus:
        return await self.notifications.check_token()

    async def delete_token(self) -> None:
        await self.notifications.delete_token()

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        return await self.notifications.set_mode(mode)

    async def token_info(self) -> TokenInfo | None:
        return await self.notifications.token_info()

    # Pushes.

    async def get_notification_connections(
        self, nonce: bytes, payload: bytes
    ) -> list[NotificationInfo]:
        """Return the notifications of a message push. Raises `BadNotification`."""
        vault = self.store.vault

        def read(tx: Transaction) -> list[NotificationInfo]:
            token = ntf_store.load_token(tx, vault)
            if token is None or token.dh_secret is None:
                raise Prohibited("no token is registered, so no push can be decrypted")

            def find(queue: SMPQueueNtf) -> RcvQueue | None:
                place = queue.server.fingerprint, queue.notifier_id
                return queues.rcv_queue_by_notifier(tx, vault, *place)

            return connections_of(open_push(token.dh_secret, nonce, payload), find)

        found = await self.store.read(read)
        if not found:
            raise BadNotification("the push names no connection of this agent")
        for info in found:
            self._journal.record(AgentDecrypted(notification=info.nonce))
        return found


def _address(address: ServerAddress | str) -> ServerAddress:
    if isinstance(address, ServerAddress):
        return address
    try:
        return decode_address(address)
    except WireError as exc:
        raise AgentError(f"{exc}: an address is smp://fingerprint@host[:port]") from None
