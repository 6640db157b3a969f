"""What the user of a simulated phone does in its app: the token, contacts and messages."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from heliograph.agent import ntf_records
from heliograph.agent.agent import Agent
from heliograph.agent.errors import BadNotification, Prohibited
from heliograph.agent.invitation import Invitation
from heliograph.db.dialects import Transaction
from heliograph.device import chats
from heliograph.device.body import Body, Hello, encode_body
from heliograph.device.chat import Contact
from heliograph.device.chats import ContactRow, Stage
from heliograph.device.states import NotificationsMode
from heliograph.device.store import DeviceStore
from heliograph.sim.phone_core import SharedSettings
from heliograph.sim.phone_push import PushSource
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address
from heliograph.wire.errors import ErrorCode
from heliograph.wire.push import VerificationPush
from heliograph.wire.tokens import DeviceToken, TokenStatus

PATIENCE = 30.0
SETTLING = 20.0
POLL = 0.05
SMP, NTF = "smp", "ntf"
"""Settings: the addresses of routers."""
AUTH = ErrorCode.AUTH.value


class PhoneError(Exception):
    """Something that a phone was asked to do, and cannot; it says what to do instead."""


class SendRefused(PhoneError):
    """A router will never take a message for this contact."""

    def __init__(self, error: str) -> None:
        why = f"the router answered {error}"
        if error == AUTH:
            why = (
                "this link was used already, or the contact deleted the chat; ask for a new link,"
                " and join it with `heliograph device connect`"
            )
        super().__init__(f"refused: {why}")


class Greeted(NamedTuple):
    """A contact, and whether its router has our greeting; if not, it leaves as soon as it can."""

    contact: Contact
    is_sent: bool


class AppSession:
    """The app, opened by its user for a while."""

    def __init__(self, store: DeviceStore, agent: Agent) -> None:
        self.agent = agent
        self._store = store
        self._shared = SharedSettings(store)

    # The token.

    async def register(self, device: DeviceToken, mode: NotificationsMode) -> TokenStatus:
        ntf = await self._store.get(NTF) or ""
        await self._shared.set_mode(mode)
        return await self.agent.register_token(device, _mode(mode), ntf)

    async def register_and_verify(
        self, source: PushSource, mode: NotificationsMode, patience: float = PATIENCE
    ) -> TokenStatus:
        """Until the token is active: the code comes by a push."""
        status = await self.register(source.device, mode)
        if status is not TokenStatus.ACTIVE:
            status = await self.verify_from(source, patience)
        return status

    async def verify_from(self, source: PushSource, patience: float = PATIENCE) -> TokenStatus:
        async with asyncio.timeout(patience):
            async for delivered in source.pushes():
                if isinstance(delivered.push, VerificationPush):
                    status = await self.verify(delivered.push)
                    if status is not None:
                        return status
        raise PhoneError("the provider has no more pushes")

    async def verify(self, push: VerificationPush) -> TokenStatus | None:
        """None if the code was for another registration."""
        try:
            return await self.agent.verify_token(push.nonce, push.box)
        except (BadNotification, Prohibited):
            return None

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        """Raises `RouterError`; if that is temporary, it changes when the router can be reached."""
        before = await self._shared.mode()
        await self._shared.set_mode(mode)
        try:
            return await self.agent.set_mode(_mode(mode))
        except Prohibited:
            await self._shared.set_mode(before)
            raise

    async def until_active(self, patience: float = PATIENCE) -> bool:
        """Until the token is, whichever process verifies it."""

        async def is_so() -> bool:
            info = await self.agent.token_info()
            return info is not None and info.status is TokenStatus.ACTIVE

        return await _until(is_so, patience)

    async def settle(self, patience: float = SETTLING) -> bool:
        """Until nothing is left to do: subscriptions are made, kept messages have left."""

        async def is_so() -> bool:
            return not await self.agent.has_work()

        return await _until(is_so, patience)

    # Contacts.

    async def invite(
        self, name: str | None = None, *, ask: bool = False, smp: str | None = None
    ) -> str:
        """A link for one contact; with `ask`, whoever joins must be accepted."""
        address = smp or (await self._routers())[0]
        conn_id, invitation = await self.agent.create_connection(address)
        stage = Stage.ASKING if ask else Stage.INVITED
        await self._add_contact(conn_id, name, stage)
        await self.until_subscribed(conn_id)
        return str(invitation)

    async def accept(
        self, link: str, name: str | None = None, *, smp: str | None = None
    ) -> Greeted:
        """Join a link, and say who we are. Raises `SendRefused` if it was used already."""
        address = smp or (await self._routers())[0]
        conn_id = await self.agent.join_connection(Invitation.parse(link), address)
        contact = await self._add_contact(conn_id, name, Stage.JOINED)
        own = (await self._store.read(chats.users))[0].name
        number = await self.agent.send(conn_id, encode_body(Hello(own)))
        await self.until_subscribed(conn_id)
        return Greeted(contact, await self._sent(conn_id, number))

    async def accept_request(self, name: str) -> Greeted:
        """Of one who joined a link that asks."""
        row = await self.find(name)
        if (
            await self._store.write(lambda tx: chats.accept_request(tx, row.contact.chat_id))
            is None
        ):
            raise PhoneError(f"{name!r} does not wait to be accepted")
        own = (await self._store.read(chats.users))[0].name
        number = await self.agent.send(row.conn_id, encode_body(Hello(own, answer=True)))
        return Greeted(row.contact, await self._sent(row.conn_id, number))

    async def send(self, contact: str, body: Body, *, notification: bool = True) -> bool:
        """Whether a router took it; if not, it leaves as soon as it can. Raises `SendRefused`."""
        row = await self.find(contact)
        number = await self.agent.send(row.conn_id, encode_body(body), notification=notification)
        return await self._sent(row.conn_id, number)

    async def find(self, name: str) -> ContactRow:
        rows = await self._store.read(chats.contacts)
        found = [row for row in rows if row.contact.name == name]
        if len(found) > 1:
            refused = await self.refused()
            found = [row for row in found if row.conn_id not in refused] or found[-1:]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(row.contact.name for row in rows)) or "none"
        if not found:
            raise PhoneError(f"there is no contact {name!r}; there are: {known}")
        raise PhoneError(f"{len(found)} contacts are called {name!r}: rename one")

    async def until_subscribed(self, conn_id: str, patience: float = PATIENCE) -> bool:
        """Until the notification router was told of a connection, if it is to be."""
        info = await self.agent.token_info()
        if info is None or info.status is not TokenStatus.ACTIVE:
            return False
        if info.mode is not ntf_records.NotificationsMode.INSTANT:
            return False

        await self.agent.notifications.settled()

        async def is_so() -> bool:
            found = await self.agent.notifications.subscriptions()
            created = ntf_records.Stage.CREATED
            return any(item.conn_id == conn_id and item.stage is created for item in found)

        return await _until(is_so, patience)

    async def until_sent(self, conn_id: str, patience: float = 10.0) -> bool:
        """Until routers have all that we sent; at once if nobody has joined yet."""

        async def is_so() -> bool:
            info = await self.agent.connection(conn_id)
            return info.to_send == 0 or (not info.is_ready and await self._invited(conn_id))

        await _until(is_so, patience)
        return (await self.agent.connection(conn_id)).to_send == 0

    async def refused(self) -> frozenset[str]:
        """Connections whose router lets us send no more."""
        infos = [await self.agent.connection(item) for item in await self.agent.connections()]
        return frozenset(
            info.conn_id for info in infos if any(error == AUTH for _, error in info.failed)
        )

    async def move_router(self, address: str) -> bool:
        """A router is reached elsewhere now; whether all that it takes was done already."""
        moved = decode_address(address)

        def is_same(known: str | ServerAddress) -> bool:
            other = decode_address(known) if isinstance(known, str) else known
            return (other.scheme, other.fingerprint) == (moved.scheme, moved.fingerprint)

        setting = SMP if moved.scheme is Scheme.SMP else NTF
        kept = (await self._store.get(setting) or "").split("\n")
        in_use = await self.agent.routers()
        if not any(map(is_same, kept)) and not any(map(is_same, in_use)):
            raise PhoneError(
                "this phone knows no router of that identity, the text before the @: one that moved"
                " keeps it; to use another router, see `heliograph device connect --smp`"
            )
        changed = "\n".join(address if is_same(known) else known for known in kept)
        await self._store.set(setting, changed)
        info = await self.agent.token_info()
        if moved.scheme is Scheme.SMP:
            await self.agent.move_router(moved)
        elif info is not None:
            await self.agent.register_token(info.device, info.mode, moved)
        return await self.settle()

    async def _sent(self, conn_id: str, number: int) -> bool:
        is_sent = await self.until_sent(conn_id)
        failed = dict((await self.agent.connection(conn_id)).failed)
        if number in failed:
            raise SendRefused(failed[number])
        return is_sent

    async def _invited(self, conn_id: str) -> bool:
        row = await self._store.read(lambda tx: chats.find_contact(tx, conn_id))
        return row is not None and row.stage in (Stage.INVITED, Stage.ASKING)

    async def _routers(self) -> list[str]:
        return (await self._store.get(SMP) or "").split("\n")

    async def _add_contact(self, conn_id: str, name: str | None, stage: Stage) -> Contact:
        def add(tx: Transaction) -> Contact:
            user = chats.users(tx)[0]
            return chats.add_contact(tx, user.user_id, conn_id, name, stage)

        return await self._store.write(add)


def _mode(mode: NotificationsMode) -> ntf_records.NotificationsMode:
    return ntf_records.NotificationsMode(mode.value)


async def _until(condition: Callable[[], Awaitable[bool]], patience: float) -> bool:
    deadline = time.monotonic() + patience
    while not await condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL)
    return True
