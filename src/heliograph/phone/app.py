"""Actions of a user in the app of a phone: the token, contacts and messages."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from heliograph.agent.agent import Agent
from heliograph.agent.errors import BadNotification, Prohibited
from heliograph.agent.notifications import records as ntf_records
from heliograph.db.dialects import Transaction
from heliograph.device.chats import store as chats, users
from heliograph.device.chats.body import Body, CallAnswer, Greeting, encode_body
from heliograph.device.chats.model import Contact, User
from heliograph.device.chats.store import ContactRow, ContactStage
from heliograph.device.store import DeviceStore
from heliograph.phone.core import CALL_LIFETIME, SMP, SharedSettings
from heliograph.phone.errors import PhoneError, SendRefused
from heliograph.phone.profiles import NO_PROFILE
from heliograph.wire.addresses import Scheme, ServerAddress, decode_address
from heliograph.wire.errors import ErrorCode
from heliograph.wire.ntf.push import VerificationPush
from heliograph.wire.ntf.tokens import DeviceToken, NotificationsMode, TokenStatus

if TYPE_CHECKING:  # it needs aiohttp, which most commands of a phone do not
    from heliograph.phone.push import PushSource

TIMEOUT = 30.0
SETTLE_TIMEOUT = 20.0
POLL_INTERVAL = 0.05
NTF = "ntf"
"""The phone's notification routers, one per line."""
AUTH = ErrorCode.AUTH.value


class Greeted(NamedTuple):
    """A contact, and whether its router has accepted our greeting; if not, it is sent later."""

    contact: Contact
    is_sent: bool


class AppSession:
    """The app while its user has it open."""

    def __init__(self, store: DeviceStore, agent: Agent, user: User | None) -> None:
        """`user` is the profile to act as; None if the phone has none."""
        self.agent = agent
        self.profile = user
        self._store = store
        self._shared = SharedSettings(store)

    @property
    def user(self) -> User:
        if self.profile is None:
            raise PhoneError(NO_PROFILE)
        return self.profile

    # The token.

    async def register(self, device: DeviceToken, mode: NotificationsMode) -> TokenStatus:
        """Register at the router that has the token, or at one chosen at random."""
        known = [decode_address(text) for text in (await self._store.get(NTF) or "").split("\n")]
        info = await self.agent.token_info()
        current = [item for item in known if info is not None and _is_same(item, info.ntf_address)]
        await self._shared.set_mode(mode)
        return await self.agent.register_token(device, mode, secrets.choice(current or known))

    async def register_and_verify(
        self, source: "PushSource", mode: NotificationsMode, within: float = TIMEOUT
    ) -> TokenStatus:
        """Register, and wait until the token is active: the code arrives in a push."""
        status = await self.register(source.device, mode)
        if status is not TokenStatus.ACTIVE:
            status = await self.verify_from(source, within)
        return status

    async def verify_from(self, source: "PushSource", within: float = TIMEOUT) -> TokenStatus:
        async with asyncio.timeout(within):
            async for delivered in source.pushes():
                if isinstance(delivered.push, VerificationPush):
                    status = await self.verify(delivered.push)
                    await source.handled(delivered.push_id)
                    if status is not None:
                        return status
        raise PhoneError("the provider has no more pushes")

    async def verify(self, push: VerificationPush) -> TokenStatus | None:
        """Verify the token; None if the code was for another registration."""
        try:
            return await self.agent.verify_token(push.nonce, push.box)
        except (BadNotification, Prohibited):
            return None

    async def set_mode(self, mode: NotificationsMode) -> TokenStatus | None:
        """Change the mode. Raises `RouterError`; a temporary failure is retried."""
        before = await self._shared.mode()
        await self._shared.set_mode(mode)
        try:
            return await self.agent.set_mode(mode)
        except Prohibited:
            await self._shared.set_mode(before)
            raise

    async def until_active(self, within: float = TIMEOUT) -> bool:
        """Wait until the token is active, whichever process verifies it."""

        async def is_so() -> bool:
            info = await self.agent.token_info()
            return info is not None and info.status is TokenStatus.ACTIVE

        return await wait_until(is_so, within)

    async def wait_idle(self, within: float = SETTLE_TIMEOUT) -> bool:
        """Wait until no work is pending, and return whether that is so."""

        async def is_so() -> bool:
            return not await self.agent.has_work()

        return await wait_until(is_so, within)

    # Contacts.

    async def invite(
        self,
        name: str | None = None,
        *,
        ask: bool = False,
        full: bool = False,
        smp: str | None = None,
    ) -> str:
        """Create a link for one contact: a short one, unless `full` or the router has none.

        With `ask`, the contact who joins it must be accepted.
        """
        address = smp or (await self._routers())[0]
        conn_id, invitation = await self.agent.create_connection(address)
        stage = ContactStage.ASKING if ask else ContactStage.INVITED
        await self._add_contact(conn_id, name, stage)
        await self.until_subscribed(conn_id)
        return str(invitation) if full else invitation.link or str(invitation)

    async def accept(
        self, link: str, name: str | None = None, *, smp: str | None = None
    ) -> Greeted:
        """Join a link, and send our name. Raises `SendRefused` if it was used already."""
        address = smp or (await self._routers())[0]
        conn_id = await self.agent.join_connection(link, address)
        contact = await self._add_contact(conn_id, name, ContactStage.JOINED)
        number = await self.agent.send(conn_id, encode_body(Greeting(self.user.name)))
        await self.until_subscribed(conn_id)
        return Greeted(contact, await self._sent(conn_id, number))

    async def accept_request(self, name: str) -> Greeted:
        """Accept a contact who joined a link that asks."""
        row = await self.find(name)
        if (
            await self._store.write(lambda tx: chats.accept_request(tx, row.contact.chat_id))
            is None
        ):
            raise PhoneError(f"{name!r} has no pending contact request")
        greeting = Greeting(self.user.name, answer=True)
        number = await self.agent.send(row.conn_id, encode_body(greeting))
        return Greeted(row.contact, await self._sent(row.conn_id, number))

    async def respond(self, name: str, accept: bool, *, any_profile: bool = False) -> str:
        """Answer a contact request or a pending call, and return which: `request` or `call`.

        The profile that it was made to becomes the active one, as after a tap on a notification.
        With `any_profile` that may be another one than the session's, unless it is hidden.
        """
        if any_profile:
            self.profile = await self._called_profile(name) or self.profile
        row = await self.find(name)
        user_id, chat_id = self.user.user_id, row.contact.chat_id
        await self._store.write(lambda tx: users.set_active_user(tx, user_id))
        if row.stage is ContactStage.REQUESTED:
            if accept:
                await self.accept_request(name)
            else:
                await self._store.write(lambda tx: chats.reject_request(tx, chat_id))
                await self.agent.delete_connection(row.conn_id)
            return "request"
        since = int(time.time()) - CALL_LIFETIME
        if await self._store.write(lambda tx: chats.answer_call(tx, chat_id, since)) is None:
            raise PhoneError(
                f"{name!r} has no pending request or call; a call expires after one minute"
            )
        number = await self.agent.send(row.conn_id, encode_body(CallAnswer(accept)))
        await self._sent(row.conn_id, number)
        return "call"

    async def _called_profile(self, name: str) -> User | None:
        """Return the profile that has a pending request or call of this contact."""
        since = int(time.time()) - CALL_LIFETIME

        def search(tx: Transaction) -> list[User]:
            calls = chats.waiting(tx, since).calls
            return [
                user
                for user in users.users(tx)
                if not user.is_hidden
                and any(
                    row.contact.name == name
                    and (row.stage is ContactStage.REQUESTED or row.contact.chat_id in calls)
                    for row in chats.contacts(tx, user.user_id)
                )
            ]

        found = await self._store.read(search)
        if len(found) > 1:
            names = ", ".join(user.name for user in found)
            raise PhoneError(f"{name!r} waits for several profiles ({names}): choose with --user")
        return found[0] if found else None

    async def mute(self, name: str, muted: bool) -> None:
        """Mute or unmute a contact, or a group `#name`.

        The router stops pushing for a muted contact. A group's messages come through contacts, so
        that pushes for them only show nothing.
        """
        if name.startswith("#"):
            user_id, group = self.user.user_id, name[1:]
            if not await self._store.write(lambda tx: chats.mute_group(tx, user_id, group, muted)):
                raise PhoneError(f"there is no group {group!r}")
            return
        row = await self.find(name)
        await self._store.write(lambda tx: chats.set_muted(tx, row.contact.chat_id, muted))
        await self.agent.enable_notifications(row.conn_id, not muted)

    async def send(self, contact: str, body: Body, *, notification: bool = True) -> bool:
        """Send a text, and return whether a router accepted it already. Raises `SendRefused`."""
        row = await self.find(contact)
        number = await self.agent.send(row.conn_id, encode_body(body), notification=notification)
        return await self._sent(row.conn_id, number)

    async def find(self, name: str) -> ContactRow:
        user_id = self.user.user_id
        rows = await self._store.read(lambda tx: chats.contacts(tx, user_id))
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

    async def until_subscribed(self, conn_id: str, within: float = TIMEOUT) -> bool:
        """Wait until a connection is subscribed at the notification router, if it should be."""
        info = await self.agent.token_info()
        if info is None or info.status is not TokenStatus.ACTIVE:
            return False
        if info.mode is not NotificationsMode.INSTANT:
            return False

        await self.agent.notifications.commands_stored()

        async def is_so() -> bool:
            found = await self.agent.notifications.subscriptions()
            created = ntf_records.SubscriptionStage.CREATED
            return any(item.conn_id == conn_id and item.stage is created for item in found)

        return await wait_until(is_so, within)

    async def until_sent(self, conn_id: str, within: float = 10.0) -> bool:
        """Wait until routers have accepted all messages; return at once if nobody has joined."""

        async def is_so() -> bool:
            info = await self.agent.connection(conn_id)
            return info.to_send == 0 or (not info.is_ready and await self._invited(conn_id))

        await wait_until(is_so, within)
        return (await self.agent.connection(conn_id)).to_send == 0

    async def refused(self) -> frozenset[str]:
        """Return the connections whose router no longer accepts our messages."""
        infos = [await self.agent.connection(item) for item in await self.agent.connections()]
        return frozenset(
            info.conn_id for info in infos if any(error == AUTH for _, error in info.failed)
        )

    async def move_router(self, address: str) -> bool:
        """Set a router's new address, and return whether no work is left."""
        moved = decode_address(address)

        def is_same(known: str | ServerAddress) -> bool:
            return _is_same(decode_address(known) if isinstance(known, str) else known, moved)

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
        return await self.wait_idle()

    async def _sent(self, conn_id: str, number: int) -> bool:
        is_sent = await self.until_sent(conn_id)
        failed = dict((await self.agent.connection(conn_id)).failed)
        if number in failed:
            raise SendRefused(failed[number])
        return is_sent

    async def _invited(self, conn_id: str) -> bool:
        row = await self._store.read(lambda tx: chats.find_contact(tx, conn_id))
        return row is not None and row.stage in (ContactStage.INVITED, ContactStage.ASKING)

    async def _routers(self) -> list[str]:
        return (await self._store.get(SMP) or "").split("\n")

    async def _add_contact(self, conn_id: str, name: str | None, stage: ContactStage) -> Contact:
        user_id = self.user.user_id
        return await self._store.write(
            lambda tx: chats.add_contact(tx, user_id, conn_id, name, stage)
        )


def _is_same(one: ServerAddress, other: ServerAddress) -> bool:
    """Return whether two addresses are of one router: its identity is the fingerprint."""
    return (one.scheme, one.fingerprint) == (other.scheme, other.fingerprint)


async def wait_until(condition: Callable[[], Awaitable[bool]], within: float) -> bool:
    deadline = time.monotonic() + within
    while not await condition():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_INTERVAL)
    return True
