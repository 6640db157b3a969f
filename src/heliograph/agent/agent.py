"""The agent: connections, messages, notification tokens and pushes, over a store on disk.

Two processes may have the same store open, as an app and its notification extension do. Whatever
they agree on is in the store; each looks at it again when the other has written.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path

from heliograph.agent import messages, ntf_store, queues, servers
from heliograph.agent.connections import router_error
from heliograph.agent.engine import AgentSettings, Engine, OnEvent
from heliograph.agent.envelope import MAX_BODY, Body
from heliograph.agent.errors import (
    AgentError,
    BadNotification,
    MessageTooLong,
    Prohibited,
    UnknownConnection,
    UnknownMessage,
)
from heliograph.agent.invitation import Invitation
from heliograph.agent.notifications import connections_of, open_push
from heliograph.agent.ntf_records import NotificationsMode, TokenInfo
from heliograph.agent.records import ConnectionInfo, Message, NotificationInfo, RcvQueue
from heliograph.agent.store import Store, now_ms
from heliograph.db.dialects import Transaction
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.wire.addresses import ServerAddress, SMPQueueNtf, decode_address
from heliograph.wire.errors import WireError
from heliograph.wire.tokens import DeviceToken, TokenStatus

__all__ = ["Agent", "AgentSettings"]

PAGE = 100


class Agent:
    """Make one by `Agent.open`."""

    def __init__(self, engine: Engine, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self.store = engine.store
        self.clients = engine.clients
        self.notifications = engine.notifications

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        passphrase: str | None = None,
        settings: AgentSettings | None = None,
        journal: Journal = NO_JOURNAL,
        on_event: OnEvent | None = None,
    ) -> "Agent":
        """Open the store in a directory (or a file), made if there is none, and go on with it.

        Raises `PassphraseError` if the passphrase is missing, wrong, or not wanted.
        """
        settings = settings or AgentSettings()
        store = await Store.open(Path(path), passphrase, cost=settings.cost)
        engine = Engine(store, settings, on_event)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        return cls(engine, journal)

    async def close(self) -> None:
        """What is not done yet goes on when it is opened again."""
        await self._engine.close()

    async def has_work(self) -> bool:
        """Whether something that is stored could be done now, if its router answers."""
        return await self._engine.has_work()

    async def __aenter__(self) -> "Agent":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Connections.

    async def create_connection(self, smp_address: ServerAddress | str) -> tuple[str, Invitation]:
        """A connection that waits for whoever gets the invitation. Raises `RouterError`."""
        created, invitation = await self._engine.connections.create(_address(smp_address))
        await self._engine.queue_added(created)
        return created.queue.conn_id, invitation

    async def join_connection(
        self, invitation: Invitation | str, smp_address: ServerAddress | str | None = None
    ) -> str:
        """Join, receiving at the inviter's router or another. Messages may be sent at once."""
        if isinstance(invitation, str):
            invitation = Invitation.parse(invitation)
        address = None if smp_address is None else _address(smp_address)
        created = await self._engine.connections.join(invitation, address)
        await self._engine.queue_added(created)
        self._engine.sender.kick(created.queue.conn_id)
        return created.queue.conn_id

    async def rotate_queue(self, conn_id: str, smp_address: ServerAddress | str) -> None:
        """Receive through a new queue at this router; the old one is deleted when it is empty."""
        created = await self._engine.connections.rotate(conn_id, _address(smp_address))
        await self._engine.queue_added(created)
        self._engine.sender.kick(conn_id)

    async def delete_connection(self, conn_id: str) -> None:
        """At once here, and at its routers as soon as they can be reached."""
        await self._engine.connections.require(conn_id)
        await self.store.write(lambda tx: queues.delete_connection(tx, conn_id))
        self._engine.subscriptions.forget(conn_id)
        await self.notifications.forget([conn_id])
        self._engine.deleter.kick()

    async def connections(self) -> list[str]:
        """All that were not deleted, oldest first."""
        found = await self.store.read(queues.connections)
        return [connection.conn_id for connection in found]

    async def connection(self, conn_id: str) -> ConnectionInfo:
        return await self._engine.connections.info(conn_id)

    async def wait_ready(self, conn_id: str) -> None:
        """Until what is sent can leave: the other side has joined, or knows that we have."""
        while True:
            changed = self._engine.pulse.next()
            if (await self.connection(conn_id)).is_ready:
                return
            await changed.wait()

    async def routers(self) -> list[ServerAddress]:
        """All that are known, with where each is reached."""
        return await self.store.read(servers.addresses)

    async def move_router(self, smp_address: ServerAddress | str) -> None:
        """A router with the same fingerprint is reached at other hosts, or another port."""
        address = _address(smp_address).without_password()
        await self.store.write(lambda tx: servers.server_for(tx, address, trusted=True))
        self.clients.moved(address)
        await self.notifications.refresh()

    async def enable_notifications(self, conn_id: str, enable: bool) -> None:
        """Whether messages of a connection cause pushes."""
        await self._engine.connections.require(conn_id)
        await self.store.write(lambda tx: queues.set_enable_ntfs(tx, conn_id, enable))
        if enable:
            await self.notifications.create([conn_id])
        else:
            await self.notifications.delete([conn_id])

    # Messages.

    async def send(self, conn_id: str, body: bytes, *, notification: bool = True) -> int:
        """Accept a message: it is stored, and leaves as soon as it can. Gives its number."""
        if len(body) > MAX_BODY:
            raise MessageTooLong(f"{len(body)} bytes, and a message has at most {MAX_BODY}")
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
        self._engine.sender.kick(conn_id)
        return number

    async def subscribe(
        self, conn_ids: Iterable[str] | None = None
    ) -> dict[str, AgentError | None]:
        """Receive from connections, or from all. Gives the error of each that failed for now.

        Those that failed for a time are tried again without being asked.
        """
        known = await self.connections()
        wanted = known if conn_ids is None else list(conn_ids)
        unknown = set(wanted).difference(known)
        outcomes: dict[str, AgentError | None] = {
            conn_id: UnknownConnection("there is no such connection") for conn_id in unknown
        }
        wanted = [conn_id for conn_id in wanted if conn_id not in unknown]
        for conn_id, error in (await self._engine.subscriptions.subscribe(wanted)).items():
            outcomes[conn_id] = None if error is None else router_error(error)
        await self._engine.notify(wanted)
        return outcomes

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Every message that was not acknowledged, then each that comes, from either process."""
        after = 0
        vault = self.store.vault
        while not self._engine.is_closed:
            changed = self._engine.pulse.next()
            found: Sequence[Message] = await self.store.read(
                lambda tx: messages.unhandled(tx, vault, after, PAGE)  # noqa: B023
            )
            for message in found:
                after = message.message_id
                yield message
            if not found:
                await changed.wait()

    async def get_message(self, conn_id: str) -> Message | None:
        """The oldest message not acknowledged; if there is none here, its router is asked (GET)."""
        return await self._engine.connections.fetch(conn_id)

    async def ack(self, conn_id: str, message_id: int) -> None:
        """It was handled: it is not given again."""
        known = await self.store.write(lambda tx: messages.set_handled(tx, conn_id, message_id))
        if not known:
            raise UnknownMessage("the connection has no such message")
        await self._engine.release()

    # Tokens.

    async def register_token(
        self, device: DeviceToken, mode: NotificationsMode, ntf_address: ServerAddress | str
    ) -> TokenStatus:
        """Register this device, or go on with registering it, as its state needs."""
        return await self.notifications.register_token(device, mode, _address(ntf_address))

    async def verify_token(self, nonce: bytes, box: bytes) -> TokenStatus:
        """With what a verification push carried."""
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
        """What a message push is about; then `get_message` fetches. Raises `BadNotification`."""
        vault = self.store.vault

        def read(tx: Transaction) -> list[NotificationInfo]:
            token = ntf_store.load_token(tx, vault)
            if token is None or token.dh_secret is None:
                raise Prohibited("no token is registered, so no push can be opened")

            def find(queue: SMPQueueNtf) -> RcvQueue | None:
                place = queue.server.fingerprint, queue.notifier_id
                return queues.rcv_queue_by_notifier(tx, vault, *place)

            return connections_of(open_push(token.dh_secret, nonce, payload), find)

        found = await self.store.read(read)
        if not found:
            raise BadNotification("the push is about no connection that is here")
        for info in found:
            self._journal("agent_decrypted", notification=info.nonce)
        return found


def _address(address: ServerAddress | str) -> ServerAddress:
    if isinstance(address, ServerAddress):
        return address
    try:
        return decode_address(address)
    except WireError as exc:
        raise AgentError(f"{exc}: an address is smp://fingerprint@host[:port]") from None
